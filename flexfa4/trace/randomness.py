"""Whether a mod drew random numbers while it was traced: every generator that its code can name is compared with itself before.

torch's random functions are refused as they are called (`mode`), where torch tells of the call; numpy's and Python's announce
nothing. Sources that have no state to compare (clocks, the system's entropy) are known by name.
"""
from __future__ import annotations

import contextlib
import datetime
import functools
import random
import sys
import types

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from .codes import is_empty, reads
from .guards import home_of

# torch's generators are drawn from by torch's functions alone.
_KINDS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
# Each makes a generator, whose numbers no comparison with a former state would show.
MAKERS = frozenset({"default_rng", "RandomState", "SystemRandom", "Random", "Generator"})
# Modules, and of some the only functions, whose answers differ from call to call.
STATELESS = {"time": None, "secrets": None, "uuid": frozenset({"uuid1", "uuid4"}), "os": frozenset({"urandom", "getrandom"}),
             "posix": frozenset({"urandom", "getrandom"}), "nt": frozenset({"urandom"}),
             "datetime": frozenset({"now", "utcnow", "today"})}
_DEPTH, _ITEMS = 5, 64


def draws(fn) -> Draws | None:
    """What to ask after a trace of `fn`; None for one that was recorded before, which holds no code of the user's."""
    return None if hasattr(fn, "described") else Draws(fn)


class Draws:
    """The state of the module-level generators and of those that `fn` reaches, at the time of making."""

    def __init__(self, fn):
        self._generators: list = []
        self._makes: set[str] = set()
        self._sources: set[str] = set()
        self._seen: set[int] = set()
        self._visit(fn, _DEPTH)
        self._before = self._states()

    def found(self) -> str | None:
        """What was drawn from since, in words for a refusal; None if nothing was."""
        for generator, before, now in zip((*GLOBAL, *self._generators), self._before, self._states()):
            if before != now:
                return generator if isinstance(generator, str) else f"a {type(generator).__name__}"
        if self._makes:
            return f"a generator that it makes by {min(self._makes)}"
        return min(self._sources) if self._sources else None

    def _states(self) -> list:
        return [random.getstate(), _words(np.random.get_state()), *_of_torch(), *map(_state, self._generators)]

    def _visit(self, value, depth: int) -> None:
        if depth == 0 or id(value) in self._seen or isinstance(value, torch.Tensor):
            return
        self._seen.add(id(value))
        if isinstance(value, random.SystemRandom):
            self._sources.add("a SystemRandom")
            return
        if isinstance(value, _KINDS):
            self._generators.append(value)
            return
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and callable(value):
            if name in MAKERS and home_of(value).split(".", 1)[0] in ("numpy", "random", "torch"):
                self._makes.add(name)
            self._note_source(home_of(value), name)
        for inner in list(self._inside(value))[:_ITEMS]:
            self._visit(inner, depth - 1)

    def _inside(self, value):
        """What the code of `value` can reach through it."""
        if isinstance(value, types.FunctionType):
            if home_of(value).split(".", 1)[0] not in ("torch", "numpy", "random"):
                yield from self._of_function(value)
        elif isinstance(value, types.MethodType):
            yield from (value.__func__, value.__self__)
        elif isinstance(value, functools.partial):
            yield from (value.func, *value.args, *value.keywords.values())
        elif isinstance(value, (tuple, list)):
            yield from value
        elif isinstance(value, dict):
            yield from value.values()
        elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, (types.ModuleType, type)):
            yield from value.__dict__.values()
            yield from (getattr(type(value), name, None) for name in ("__call__", "forward"))

    def _of_function(self, fn: types.FunctionType):
        found = reads(fn.__code__)
        self._makes |= MAKERS & (found.attributes | set(found.names))
        for name in found.imports:
            if isinstance(module := sys.modules.get(name), types.ModuleType):
                self._note_module(module, found.attributes)
        yield from (c.cell_contents for c in fn.__closure__ or () if not is_empty(c))
        yield from (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        for name in found.names:
            value = fn.__globals__.get(name)
            yield value
            if isinstance(value, types.ModuleType):
                self._note_module(value, found.attributes)
            if value is datetime.datetime or value is datetime.date:
                for attribute in found.attributes:
                    self._note_source("datetime", attribute)
            if isinstance(value, types.ModuleType) and value.__name__.split(".", 1)[0] not in ("torch", "numpy", "random"):
                yield from (value.__dict__.get(a) for a in found.attributes)

    def _note_module(self, module: types.ModuleType, attributes) -> None:
        for attribute in attributes & module.__dict__.keys() | (attributes if module is datetime else set()):
            if callable(getattr(module, attribute, None)) or module is datetime:
                self._note_source(module.__name__, attribute)

    def _note_source(self, module: str, function: str) -> None:
        known = STATELESS.get(module, frozenset())
        if known is None or function in known:
            self._sources.add(f"{module}.{function}")


# The generators that belong to modules, as `_states` begins.
GLOBAL = ("Python's or numpy's random module",) * 2 + ("torch's random module",)


def _of_torch() -> list:
    """The state of torch's default generators: of the CPU, and of each CUDA device in use."""
    devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    generators = torch.default_generator, *devices
    # Inside torch.func.grad the state would be wrapped, its numbers out of reach; and in a mode of tensors without numbers, as
    # torch.export has, not set.
    apart = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else contextlib.nullcontext()
    with torch._C._DisableFuncTorch(), apart:
        return [b"".join(g.get_state().numpy().tobytes() for g in generators)]


def _state(generator):
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.BitGenerator):
        return repr(generator.state)
    if isinstance(generator, np.random.RandomState):
        return _words(generator.get_state())
    return generator.getstate()


def _words(state: tuple) -> tuple:
    return tuple(x.tobytes() if isinstance(x, np.ndarray) else x for x in state)
