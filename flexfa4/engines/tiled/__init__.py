"""Attention in pure torch, tile by tile over the spans of the mask: online softmax, exact gradients, memory linear in length."""
from . import out_hook
from .backward import Gradients, backward
from .forward import forward
from .problem import Mask, Problem

__all__ = ["Gradients", "Mask", "Problem", "backward", "forward", "out_hook"]
