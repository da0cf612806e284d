"""Names of torch that are not public and have no public equal. Where a torch has one no more, the answer is the careful one:
calls then take a slower way that is right whatever the truth is."""
from __future__ import annotations

from importlib import import_module
from typing import Callable


def find(module: str, name: str, instead: Callable) -> Callable:
    """The function of that name, or `instead` where this torch has none."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return instead


# How many modes see every operation: without the name, one does.
dispatch_modes = find("torch._C", "_len_torch_dispatch_stack", lambda: 1)
# The innermost running transform of torch.func, None where there is none: without the name, there is one.
transform = find("torch._C._functorch", "peek_interpreter_stack", lambda: "unknown")
# Whether autocast is on for any device: without the name, it is.
any_autocast = find("torch._C", "_is_any_autocast_enabled", lambda: True)
