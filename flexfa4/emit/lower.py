"""The last rewrites before emission: what pays only in a kernel, where one level is cheaper than the next."""

from __future__ import annotations

from functools import lru_cache

from flexfa4.facts.axes import axes
from flexfa4.ir import DType, Node, Op, const, node
from flexfa4.ir.dtypes import INT_RANGE
from flexfa4.ir.graph import rebuild
from flexfa4.ir.ops import COMPARISONS
from flexfa4.plan.hoist import Level, level
from flexfa4.plan.ranges import Assumptions, Range, fits_i32, integer_ranges

_SINGLE = frozenset({DType.F32, DType.F64})
_LOW, _HIGH = INT_RANGE[DType.I32]


@lru_cache(maxsize=512)
def lower(roots: tuple[Node, ...], precise: bool, assume: Assumptions) -> tuple[Node, ...]:
    """The roots with

    - `a / b` as `a * (1 / b)` where b is computed less often than every element and approximations are allowed, so that the
      reciprocal is hoisted with b;
    - a 64-bit side of a comparison saturated to 32 bits where it is computed less often than every element and the other side
      fits strictly: the comparison comes out the same, and takes one instruction an element.
    """

    def rewrite(n: Node) -> Node:
        if n.op is Op.DIV and n.dtype in _SINGLE and not precise and not _per_element(n.args[1]):
            return node(Op.MUL, (n.args[0], node(Op.RECIPROCAL, (n.args[1],), n.dtype)), n.dtype)
        if n.op in COMPARISONS and n.args[0].dtype is DType.I64:
            return node(n.op, _saturated(*n.args, assume), n.dtype)
        return n

    return tuple(rebuild(root, rewrite) for root in roots)


def _per_element(n: Node) -> bool:
    return level(axes(n)[n]) is Level.ELEMENT


def _saturated(a: Node, b: Node, assume: Assumptions) -> tuple[Node, Node]:
    ranges = integer_ranges((a, b), assume)
    if _strictly_inside(ranges[a]) and not fits_i32(ranges[b]) and not _per_element(b):
        return a, _clamp(b)
    if _strictly_inside(ranges[b]) and not fits_i32(ranges[a]) and not _per_element(a):
        return _clamp(a), b
    return a, b


def _strictly_inside(r: Range) -> bool:
    return _LOW < r[0] and r[1] < _HIGH


def _clamp(n: Node) -> Node:
    at_least = node(Op.MAX, (n, const(_LOW, DType.I64)), DType.I64)
    return node(Op.MIN, (at_least, const(_HIGH, DType.I64)), DType.I64)
