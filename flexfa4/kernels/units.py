"""A score graph's value in units of the exponent, where its terms can be multiplied instead of it.

The softmax measures scores from their maximum, in log2. One FMA an element scales and subtracts; not so of scores by -1e10, of
which that FMA's offset, a rounded product, is off by 2^9 (`sm100/exponents.py`): it takes an addition and a multiplication. Of
`where(keep, score, -1e10)` the multiplication goes into the score's own scale and into the number, once a row. A number that
would overflow there, like the least float, stays finite.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Container

from cutlass import Boolean, Float32

from flexfa4.emit.emitter import Scope
from flexfa4.emit.values import select
from flexfa4.facts.axes import axes
from flexfa4.ir import DType, Node, Op

from .rounding import as_finite

_ROW = frozenset({Op.B, Op.H, Op.Q})
# Graphs with these at their end, a factor apart, write no number far from 0.
BOUNDED = frozenset({Op.TANH, Op.SIGMOID, Op.SIN, Op.COS, Op.ERF})


@dataclass(frozen=True)
class Terms:
    """A node as sums and choices of the score, of numbers of the row, of products with those, and of affine terms. score: the
    score, or its product with a number of the row, which is a term; None where it is none, and the rest of the graph reads it.
    rows: the numbers."""

    root: Node
    score: Node | None
    rows: tuple[Node, ...]

    def scaled(self, row: Scope, unit: Float32) -> dict[Node, Float32]:
        """The row's numbers in a unit."""
        values = {n: Float32(row.value_of(n)) for n in self.rows}
        return {n: as_finite(value * unit, value) for n, value in values.items()}

    def value(self, at: Scope, known: dict[Node, Float32]) -> Float32:
        """known: the row's numbers, the score and the affine terms in that unit, as the result."""

        def of(n: Node) -> Float32:
            if n in known:
                return known[n]
            if n.op is Op.WHERE:
                return select(Boolean(at.value_of(n.args[0])), of(n.args[1]), of(n.args[2]), Float32)
            left, right = n.args
            if n.op is Op.MUL:
                inner, number = (left, right) if right in self.rows else (right, left)
                return Float32(at.value_of(inner)) * known[number]
            return of(left) + of(right) if n.op is Op.ADD else of(left) - of(right)

        return of(self.root)


def terms_of(root: Node, score: Node | None, affine: Container[Node], apart: Container[Node | None]) -> Terms | None:
    """None where a term is none of those, or the score is read in a condition or a factor beside being one; and where the whole
    is bounded. score: as in `Terms`; affine: the affine terms; apart: nodes that are read
    from a table or spread."""
    if root.op in BOUNDED:
        return None
    on, rows, read, is_term = axes(root), {}, [], False
    stack = [root]
    while stack:
        n = stack.pop()
        if n.dtype is not DType.F32 or n in apart:
            return None
        if n is score:
            is_term = True
        elif n in affine:
            pass
        elif on[n] <= _ROW:
            rows[n] = None
        elif n.op is Op.WHERE:
            read.append(n.args[0])
            stack.extend(n.args[1:])
        elif n.op in (Op.ADD, Op.SUB):
            stack.extend(n.args)
        elif n.op is Op.MUL and any(on[a] <= _ROW and a.dtype is DType.F32 for a in n.args):
            number = next(a for a in n.args[::-1] if on[a] <= _ROW and a.dtype is DType.F32)
            rows[number] = None
            read.append(n.args[0] if number is n.args[1] else n.args[1])
        else:
            return None
    if is_term and any(Op.SCORE in on[n] for n in read):
        return None
    return Terms(root, score if is_term else None, tuple(rows))
