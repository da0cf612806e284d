"""From a call to an engine: the registered torch op, its gradients, and how graphs travel through it as text."""
from . import compiled, engine, repeat
from .torch_op import Attention, attention

__all__ = ["Attention", "attention", "compiled", "engine", "repeat"]
