"""From a call to an engine: the registered torch op, its gradients, and how graphs travel through it as text.

`compiled` loads on first use: it needs Dynamo, whose import takes longer than all others together."""
from importlib import import_module

from . import capture, engine, repeat
from .torch_op import Attention, attention

__all__ = ["Attention", "attention", "capture", "compiled", "engine", "repeat"]


def __getattr__(name: str):
    if name == "compiled":
        return import_module("flexfa4.runtime.compiled")
    raise AttributeError(f"module 'flexfa4.runtime' has no attribute {name!r}")
