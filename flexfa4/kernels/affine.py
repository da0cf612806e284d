"""Affine terms of a score graph, walked along the columns of a fragment instead of computed for every element.

ALiBi's slope[h] * float(q - kv) changes by -slope[h] from one column to the next. Computed as written it costs an integer
subtraction and a conversion an element, and conversions run at a quarter of the rate of additions. Here it is computed once a
row, at the fragment's first column, and every column adds a constant multiple of its step: one FMA.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

import cutlass.cute as cute
from cutlass import Boolean, Float32

from flexfa4.emit.emitter import Emitter, Scope
from flexfa4.emit.values import select
from flexfa4.facts.affine import affine_forms
from flexfa4.facts.axes import axes
from flexfa4.ir import DType, Node, Op, topological

# An inner integer within this many bits is the same number in 32 and 64 bits, and does not wrap on the way.
_SAFE_BITS = 30


@dataclass(frozen=True)
class Term:
    """A float node that is `scale * float(q_coef * q + kv_coef * kv + rest)`: `scale` is the same for a whole work tile.
    numbers: nodes below it that the scale is made of, where they meet the integer."""

    node: Node
    kv_coef: int
    scale: Node
    numbers: tuple[Node, ...]


def affine_terms(emitter: Emitter) -> tuple[Term, ...]:
    """The outermost such nodes of the emitter's root that depend on the key; none where it is to be precise: the sum is rounded
    where the graph would round a product."""
    if emitter.precise:
        return ()
    (root,) = emitter.roots
    forms, found, stack, seen = affine_forms(root), [], [root], set()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        form = forms[n]
        if (n.dtype is DType.F32 and form is not None and isinstance(form.kv_coef, int) and form.kv_coef != 0
                and _is_small(emitter, n)):
            found.append(Term(n, form.kv_coef, form.scale, _numbers(n)))
        else:
            stack.extend(n.args)
    return tuple(found)


def _numbers(term: Node) -> tuple[Node, ...]:
    on = axes(term)
    apart = [a for n in topological(term) if n.dtype.is_float and Op.KV in on[n] for a in n.args]
    return tuple(a for a in apart if a.dtype.is_float and on[a].isdisjoint({Op.Q, Op.KV}))


def _is_small(emitter: Emitter, n: Node) -> bool:
    """Whether the integer below a float affine node stays within `_SAFE_BITS`."""
    on = axes(n)
    while n.op is not Op.CAST:
        n = next(a for a in n.args if Op.KV in on[a])
    low, high = emitter.ranges[n.args[0]]
    return -(1 << _SAFE_BITS) < low and high < 1 << _SAFE_BITS


class Walker:
    """The terms of one graph at one work tile: `steps` from one column to the next."""

    def __init__(self, terms: Sequence[Term], tile: Scope):
        self.terms = terms
        self.tile = tile
        self.steps = [tile.value_of(t.scale) * float(t.kv_coef) for t in terms]

    def finite(self) -> tuple[Boolean, dict[Node, Float32]]:
        """(whether all terms are, but for what overflows; what they are made of, with 0 for what is not)."""
        values = {n: Float32(self.tile.value_of(n)) for t in self.terms for n in t.numbers}
        are, known = Boolean(True), {}
        for n, value in values.items():
            is_finite = cute.math.absf(value) < math.inf
            are, known[n] = are & is_finite, select(is_finite, value, Float32(0.0), Float32)
        return are, known

    def start(self, emitter: Emitter, row: Scope, first_column: Scope, known: dict[Node, Float32] | None = None) -> list[Float32]:
        """The terms of a row at the fragment's first column. known: in place of what they are made of."""
        scope = emitter.join(row, first_column, known=known)
        return [scope.value_of(t.node) for t in self.terms]

    def known(self, begin: list[Float32], offset: int, unit: Float32 | None = None) -> dict[Node, Float32]:
        """The terms `offset` columns further. unit: of these and of `begin`; None for 1."""
        steps = self.steps if unit is None else [s * unit for s in self.steps]
        return {t.node: b + s * float(offset) if offset else b for t, b, s in zip(self.terms, begin, steps)}
