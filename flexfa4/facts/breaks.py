"""Where a mask changes its form along an axis: the ends of periods of // and %, and of runs of equal captured values.

A rectangle cut at these positions is one on which interval analysis loses nothing to a quotient, a remainder or a look-up.
"""
from __future__ import annotations

import numpy as np

from flexfa4.ir import Node, Op
from flexfa4.ir.bound import BoundGraph

_PERIODIC = frozenset({Op.FLOORDIV, Op.MOD, Op.TRUNCDIV, Op.FMOD})
# Positions between breaks, on average, below which cutting at them is no better than cutting evenly.
_LEAST_GAP = 16


def breaks(bound: BoundGraph, axis: Op, length: int, run_starts) -> np.ndarray:
    """Sorted positions in 1..length-1 at which some part of the mask takes a new form along `axis` (Q or KV); sources of too many
    are left out. run_starts(load) gives the starts of the runs of the row that a LOAD reads, or None."""
    found = [np.zeros(0, np.int64)]
    for n in bound.graph.nodes:
        positions = None
        if n.op in _PERIODIC and n.dtype.is_int:
            offset, divisor = offset_along(n.args[0], axis, bound), number_of(n.args[1], bound)
            if offset is not None and divisor and abs(divisor) >= _LEAST_GAP:
                positions = np.arange(-offset % abs(divisor), length, abs(divisor))
        elif n.op is Op.LOAD:
            moved = [offset for offset in (offset_along(a, axis, bound) for a in n.args) if offset is not None]
            starts = run_starts(n) if len(moved) == 1 else None
            if starts is not None:
                positions = starts - moved[0]
        if positions is not None and positions.size * _LEAST_GAP <= length:
            found.append(positions)
    total = np.unique(np.concatenate(found))
    return total[(total > 0) & (total < length)]


def offset_along(n: Node, axis: Op, bound: BoundGraph) -> int | None:
    """c where n is the position along `axis` plus a number c."""
    if n.op is axis:
        return 0
    if n.op in (Op.ADD, Op.SUB):
        a, b = n.args
        if n.op is Op.ADD and b.op is axis:
            a, b = b, a
        number = number_of(b, bound) if a.op is axis else None
        return None if number is None else number if n.op is Op.ADD else -number
    return None


def number_of(n: Node, bound: BoundGraph) -> int | None:
    """The value of a constant or runtime scalar of integer type."""
    if not n.dtype.is_int or n.op not in (Op.CONST, Op.SLOT):
        return None
    return int(n.attr if n.op is Op.CONST else bound.literals[n.attr])
