"""Intervals of indices into a captured tensor."""
from __future__ import annotations

from flexfa4.ir import Node, Op, topological

from .interval_values import Interval, Space

_POSITIONS = frozenset({Op.Q, Op.KV, Op.D, Op.SCORE, Op.OUT, Op.LSE})


def spreads(index: Node) -> bool:
    """Whether an index takes more than one value in a rectangle: it depends on the position. Batch and head are points."""
    return any(n.op in _POSITIONS for n in topological(index))


def wrapped(space: Space, at: Interval, size: int) -> tuple:
    """(lo, hi, may be out of range) of an index after negative ones have wrapped, clamped into the tensor."""
    if at.least is not None and 0 <= at.least and at.most < size:
        return at.lo, at.hi, False
    bad = (at.lo < -size) | (at.hi >= size)
    if at.least is not None and at.least >= 0:
        return space.minimum(at.lo, size - 1), space.minimum(at.hi, size - 1), bad
    # An interval across zero wraps to both ends of the tensor. One that may be out of range reads anything.
    anything = ((at.lo < 0) & (at.hi >= 0)) | bad
    negative = at.hi < 0
    lo = space.where(anything, 0, space.where(negative, at.lo + size, at.lo))
    hi = space.where(anything, size - 1, space.where(negative, at.hi + size, at.hi))
    return lo, hi, bad
