"""Values of the form q_coef * q + kv_coef * kv + rest: relative positions, indices of bias tables, ALiBi.

An integer form holds modulo 2^n of its type, as its arithmetic wraps. A float is recognised where it is a multiple of such an
integer, `scale * float(q_coef * q + kv_coef * kv + rest)`, evaluated in that order; that is exact to the last bit too.
"""
from __future__ import annotations

from dataclasses import dataclass

from flexfa4.ir import DType, Node, Op, cast, const, node, topological
from flexfa4.ir.dtypes import INT_RANGE

from .axes import axes
from .fold import wrap
from .rewrite import Rewriter
from .simplify import simplifier

_PER_ELEMENT = frozenset({Op.Q, Op.KV, Op.D, Op.SCORE, Op.OUT, Op.LSE})


@dataclass(frozen=True)
class Affine:
    """`q_coef * q + kv_coef * kv + rest`, times `scale` where that is not None.

    Coefficients are Python ints, or integer nodes; `rest` is an integer node, all of one type, and `scale` a float node. The
    nodes depend on none of q, kv, d, score, out and lse: they are the same for a whole tile of one batch and head. A form whose
    coefficients are both the int 0 and that has no scale is just such a node.
    """

    q_coef: int | Node
    kv_coef: int | Node
    rest: Node
    scale: Node | None = None

    @property
    def is_free(self) -> bool:
        """True where the value depends on neither q nor kv."""
        return self.q_coef == 0 and self.kv_coef == 0

    @property
    def is_toeplitz(self) -> bool:
        """True where the value depends on q - kv alone, as relative positions do."""
        static = isinstance(self.q_coef, int) and isinstance(self.kv_coef, int)
        return static and self.q_coef != 0 and self.q_coef == -self.kv_coef


def affine(n: Node) -> Affine | None:
    """The affine form of an integer or float node, or None. Nodes in the form are simplified."""
    return affine_forms(n)[n]


def affine_forms(root: Node) -> dict[Node, Affine | None]:
    """The affine form, if any, of every node below `root`."""
    on, simple = axes(root), simplifier()
    forms: dict[Node, Affine | None] = {}
    for n in topological(root):
        if n.dtype.is_bool:
            forms[n] = None
        elif not on[n] & _PER_ELEMENT and n.dtype.is_int:
            forms[n] = Affine(0, 0, simple(n))
        elif n.dtype.is_int:
            forms[n] = _Integers(n.dtype, simple).form(n, forms)
        else:
            forms[n] = _multiple(n, forms, on, simple)
    return forms


def _multiple(n: Node, forms: dict[Node, Affine | None], on: dict[Node, frozenset[Op]], simple: Rewriter) -> Affine | None:
    """A float: a cast integer form, its negation, or its product with a float that is the same for the tile."""
    if n.op is Op.CAST and n.args[0].dtype.is_int:
        inner = forms[n.args[0]]
        return inner and Affine(inner.q_coef, inner.kv_coef, inner.rest, const(1.0, n.dtype))
    if n.op is Op.NEG and forms[n.args[0]]:
        f = forms[n.args[0]]
        return Affine(f.q_coef, f.kv_coef, f.rest, simple(node(Op.NEG, (f.scale,), n.dtype)))
    if n.op is Op.MUL:
        for a, b in (n.args, n.args[::-1]):
            f = forms[a]
            # A second factor would be multiplied in another order, and round differently.
            if f and f.scale.op is Op.CONST and abs(f.scale.attr) == 1 and not on[b] & _PER_ELEMENT:
                return Affine(f.q_coef, f.kv_coef, f.rest, simple(node(Op.MUL, (b, f.scale), n.dtype)))
    return None


class _Integers:
    """Arithmetic on forms of one integer type."""

    def __init__(self, dtype: DType, simple: Rewriter):
        self.dtype, self.simple = dtype, simple

    def form(self, n: Node, forms: dict[Node, Affine | None]) -> Affine | None:
        if n.op in (Op.Q, Op.KV):
            return Affine(int(n.op is Op.Q), int(n.op is Op.KV), const(0, self.dtype))
        operands = [forms[a] for a in n.args]
        if any(f is None for f in operands):
            return None
        if n.op is Op.CAST:
            return self._narrowed(n.args[0].dtype, operands[0])
        if n.op is Op.NEG:
            return self._scaled(operands[0], -1)
        if n.op in (Op.ADD, Op.SUB):
            a, b = operands
            return self._sum(a, b if n.op is Op.ADD else self._scaled(b, -1))
        if n.op is Op.MUL:
            a, b = operands if operands[1].is_free else operands[::-1]
            return self._scaled(a, self._number(b.rest)) if b.is_free else None
        if n.op is Op.SHL and n.args[1].op is Op.CONST:
            return self._scaled(operands[0], 1 << n.args[1].attr)
        return None

    def _number(self, n: Node) -> int | Node:
        return n.attr if n.op is Op.CONST else n

    def _node(self, coef: int | Node) -> Node:
        return coef if isinstance(coef, Node) else const(wrap(coef, self.dtype), self.dtype)

    def _combine(self, op: Op, a: int | Node, b: int | Node) -> int | Node:
        return self._number(self.simple(node(op, (self._node(a), self._node(b)), self.dtype)))

    def _scaled(self, f: Affine, by: int | Node) -> Affine:
        q, kv, rest = (self._combine(Op.MUL, c, by) for c in (f.q_coef, f.kv_coef, f.rest))
        return Affine(q, kv, self._node(rest))

    def _sum(self, a: Affine, b: Affine) -> Affine:
        pairs = ((a.q_coef, b.q_coef), (a.kv_coef, b.kv_coef), (a.rest, b.rest))
        q, kv, rest = (self._combine(Op.ADD, x, y) for x, y in pairs)
        return Affine(q, kv, self._node(rest))

    def _narrowed(self, source: DType, f: Affine) -> Affine | None:
        """A cast that wraps, from a type at least as wide, keeps sums and products. Widening does not: the narrow sum may have
        wrapped."""
        low, high = INT_RANGE[self.dtype]
        source_low, source_high = INT_RANGE[source]
        if high - low > source_high - source_low:
            return None
        q, kv, rest = (self._number(self.simple(cast(c, self.dtype))) if isinstance(c, Node) else wrap(c, self.dtype)
                       for c in (f.q_coef, f.kv_coef, f.rest))
        return Affine(q, kv, self._node(rest))
