"""A mask as a Boolean expression of terms, each of which compares something of the query with something of the key.

Most masks are such: `q >= kv`, `q - kv < window`, `doc[q] == doc[kv]`, `kv < prefix`, joined by & | ~. What each side is over a
row or a column of tiles then takes one number a tile, where the whole mask takes one for each pair of them.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Sequence

from flexfa4.ir import DType, Graph, Node, Op, topological

from .axes import axes
from .labels import LabelPair, label_pair

# Terms beyond which a mask is not worth taking apart.
_MOST_TERMS = 16
_COMPARISONS = frozenset({Op.LT, Op.LE, Op.EQ, Op.NE})
_SUMS = frozenset({Op.ADD, Op.SUB, Op.NEG})
_SIDES = frozenset({Op.Q, Op.KV})

Parts = tuple[tuple[int, Node], ...]


@dataclass(frozen=True)
class Comparison:
    """The sum of the signed nodes `q` against that of `kv`, with `op` LT, LE or EQ; the query's sum on the left if `q_left`.

    Each node depends on one of the positions at most. dtype: of both sides. pair: the same as an equality of labels, where it
    is one; `q_load` says which of its two look-ups is the query's. bare: whether the query's side, and the key's, is the position
    itself.
    """

    op: Op
    q: Parts
    kv: Parts
    q_left: bool
    dtype: DType
    pair: LabelPair | None = None
    q_load: int = 0
    bare: tuple[bool, bool] = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "bare", tuple(len(side) == 1 and side[0][0] > 0 and side[0][1].op is op
                                               for side, op in ((self.q, Op.Q), (self.kv, Op.KV))))


@dataclass(frozen=True)
class OneSided:
    """A Boolean node that depends on the position along `axis` alone (Q or KV; None: on neither)."""

    node: Node
    axis: Op | None


Term = Comparison | OneSided
# A term by its number, or (NOT, x), (AND, x, y), (OR, x, y).
Expression = int | tuple


@dataclass(frozen=True)
class Terms:
    """`expression` over the numbers of `terms`. conjunction: it is nothing but an AND of them; then equalities of labels come
    last, so that the others are worked out while labels are on their way from a device."""

    terms: tuple[Term, ...]
    expression: Expression
    conjunction: bool


def bounds_of(x: Expression, terms: Sequence[tuple]) -> tuple:
    """(certain, possible) of an expression from those of its terms, Boolean arrays of numpy or torch."""
    if isinstance(x, int):
        return terms[x]
    if x[0] is Op.NOT:
        must, may = bounds_of(x[1], terms)
        return ~may, ~must
    (a_must, a_may), (b_must, b_may) = (bounds_of(inner, terms) for inner in x[1:])
    return (a_must & b_must, a_may & b_may) if x[0] is Op.AND else (a_must | b_must, a_may | b_may)


def value_of(x: Expression, terms: Sequence):
    """An expression from the values of its terms, Boolean arrays of numpy or torch."""
    if isinstance(x, int):
        return terms[x]
    if x[0] is Op.NOT:
        return ~value_of(x[1], terms)
    a, b = (value_of(inner, terms) for inner in x[1:])
    return a & b if x[0] is Op.AND else a | b


class _Unfit(Exception):
    """The mask is not such an expression."""


@lru_cache(maxsize=256)
def terms_of(graph: Graph) -> Terms | None:
    """The terms of a mask; None where some part of it looks at query and key together in another way."""
    reader = _Reader(graph)
    try:
        expression = reader.read(graph.root)
    except _Unfit:
        return None
    conjunction = _conjunction(expression)
    if conjunction:
        reader.terms.sort(key=lambda t: isinstance(t, Comparison) and t.pair is not None)
    return Terms(tuple(reader.terms), expression, conjunction)


@lru_cache(maxsize=1024)
def order_of(root: Node) -> tuple[Node, ...]:
    """The nodes below `root`, arguments first."""
    return tuple(topological(root))


def _conjunction(x: Expression) -> bool:
    return isinstance(x, int) or x[0] is Op.AND and all(map(_conjunction, x[1:]))


class _Reader:
    def __init__(self, graph: Graph):
        self.on = {n: found & _SIDES for n, found in axes(graph.root).items()}
        self.terms: list[Term] = []

    def read(self, n: Node) -> Expression:
        if len(self.on[n]) < 2:
            return self._term(OneSided(n, next(iter(self.on[n]), None)))
        if n.op is Op.NOT:
            return (Op.NOT, self.read(n.args[0]))
        if n.op in (Op.AND, Op.OR):
            return (n.op, *map(self.read, n.args))
        if n.op not in _COMPARISONS:
            raise _Unfit
        return self._with_constant(n) if n.args[0].dtype.is_bool else self._compared(n)

    def _term(self, term: Term) -> int:
        if len(self.terms) == _MOST_TERMS:
            raise _Unfit
        self.terms.append(term)
        return len(self.terms) - 1

    def _with_constant(self, n: Node) -> Expression:
        """x == False, as `not_mask` writes it."""
        for x, c in (n.args, n.args[::-1]):
            if c.op is Op.CONST and n.op in (Op.EQ, Op.NE):
                inner = self.read(x)
                return inner if c.attr == (n.op is Op.EQ) else (Op.NOT, inner)
        raise _Unfit

    def _compared(self, n: Node) -> Expression:
        a, b = n.args
        for x, y, x_left in ((a, b, True), (b, a, False)):
            if x.op is Op.ABS and x.dtype.is_int and len(self.on[x]) == 2:
                return self._distance(n.op, x.args[0], y, x_left)
        if n.op is Op.NE:
            return (Op.NOT, self._term(self._sides(Op.EQ, n, ((1, a),), ((1, b),))))
        return self._term(self._sides(n.op, n, ((1, a),), ((1, b),)))

    def _distance(self, op: Op, x: Node, y: Node, x_left: bool) -> Expression:
        """abs(x) < y is x < y and -x < y; y < abs(x) is y < x or y < -x; and so for <=."""
        if op not in (Op.LT, Op.LE):
            raise _Unfit
        both = []
        for sign in (1, -1):
            pair = ((sign, x),), ((1, y),)
            both.append(self._term(self._sides(op, None, *(pair if x_left else pair[::-1]))))
        return (Op.AND if x_left else Op.OR, *both)

    def _sides(self, op: Op, n: Node | None, left: Parts, right: Parts) -> Comparison:
        dtype = left[0][1].dtype
        pair = label_pair(n) if n is not None and op is Op.EQ else None
        if pair is not None:
            at = [self.on[load] for load in pair.loads]
            if len(at[0]) == len(at[1]) == 1 and at[0] != at[1]:
                q_load = 0 if Op.Q in at[0] else 1
                loads = [((1, n.args[i]),) for i in (q_load, 1 - q_load)]
                return Comparison(op, *loads, True, dtype, pair, q_load)
        on = [self.on[parts[0][1]] for parts in (left, right)]
        if Op.Q not in on[1] and Op.KV not in on[0]:
            return Comparison(op, left, right, True, dtype)
        if Op.Q not in on[0] and Op.KV not in on[1]:
            return Comparison(op, right, left, False, dtype)
        if not dtype.is_int or dtype is DType.U8:
            raise _Unfit
        # left < right is (query's part of left - right) < (key's part of right - left) while nothing wraps.
        total = [*left, *((-sign, x) for sign, x in right)]
        parts = [part for sign, x in total for part in self._split(sign, x)]
        q = tuple((sign, x) for sign, x in parts if Op.KV not in self.on[x])
        kv = tuple((-sign, x) for sign, x in parts if Op.KV in self.on[x])
        return Comparison(op, q, kv, True, dtype)

    def _split(self, sign: int, n: Node) -> list[tuple[int, Node]]:
        """A sum as signed nodes of one axis each."""
        if len(self.on[n]) < 2:
            return [(sign, n)]
        if n.op not in _SUMS:
            raise _Unfit
        signs = {Op.ADD: (1, 1), Op.SUB: (1, -1), Op.NEG: (-1,)}[n.op]
        return [part for s, a in zip(signs, n.args) for part in self._split(sign * s, a)]
