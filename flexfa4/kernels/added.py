"""What a score graph adds to the score and multiplies it by, kept out of the scores and put into the exponent.

Of `score - slope[h] * (q - kv)` the second part is an affine term (`affine.py`): `begin + step * column` in a fragment. In the
exponent it costs one FMA an element where the top of the row is subtracted anyway; added to the score it costs two. Terms of
the row alone cost nothing there, and neither does a factor that is the same for the whole launch: of `cap * tanh(score / cap)`
one goes into the exponent's scale, the other into the scores'. Where a thread has one row, so does a factor of the row.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from cutlass import Float32

from flexfa4.emit.emitter import Emitter, Scope
from flexfa4.emit.values import select
from flexfa4.facts.axes import axes
from flexfa4.ir import DType, Node, Op, topological

from .affine import Term
from .carried import Fixed

LAUNCH: frozenset[Op] = frozenset()
ROW = frozenset({Op.B, Op.H, Op.Q})
# In place of a factor of 0, which would make NaN of what is hidden.
SMALL = 1e-30


@dataclass(frozen=True)
class Split:
    """A score graph's root as the product of `factors` and `inner`, plus sign * value of each addition: walked (indices among
    the graph's affine terms) and of the row alone. factors: nodes that are the same for the launch, or for a row (`shared` of
    `split_root`). scaled: of a node `score * other` that alone reads the score, where `other` is as shared: the node and
    `other`."""

    inner: Node
    walked: tuple[tuple[int, int], ...]
    of_row: tuple[tuple[int, Node], ...]
    factors: tuple[Node, ...] = ()
    scaled: tuple[Node, Node] | None = None

    def factor(self, at: Scope) -> Float32 | None:
        """The product of the factors; None for 1."""
        if not self.factors:
            return None
        first, *rest = (Float32(at.value_of(n)) for n in self.factors)
        for value in rest:
            first = first * value
        return select((first < SMALL) & (first > -SMALL), Float32(SMALL), first, Float32)


def split_root(emitter: Emitter, terms: Sequence[Term], shared: frozenset[Op] = LAUNCH) -> Split:
    """Takes off additions from the outside until one is neither walked nor of the row, then factors; nothing where the graph is
    to be precise. shared: what factors may depend on."""
    (n,) = emitter.roots
    on, index = axes(n), {t.node: k for k, t in enumerate(terms)}
    walked, of_row = [], []
    if emitter.precise:
        return Split(n, (), ())
    while n.dtype is DType.F32 and n.op in (Op.ADD, Op.SUB):
        left, right = n.args
        sign = -1 if n.op is Op.SUB else 1
        if Op.SCORE in on[right] and sign > 0:
            left, right = right, left
        if Op.SCORE not in on[left] or Op.SCORE in on[right] or left.dtype is not DType.F32:
            break
        if right in index:
            walked.append((sign, index[right]))
        elif on[right] <= ROW and right.dtype is DType.F32:
            of_row.append((sign, right))
        else:
            break
        n = left
    factors = []
    while product := _product(n, on, shared):
        n = product[0]
        factors.append(product[1])
    readers = [m for m in topological(n) if any(a.op is Op.SCORE for a in m.args)]
    scaled = _product(readers[0], on, shared) if len(readers) == 1 else None
    return Split(n, tuple(walked), tuple(of_row), tuple(factors),
                 (readers[0], scaled[1]) if scaled and scaled[0].op is Op.SCORE else None)


def _product(n: Node, on: dict, shared: frozenset[Op]) -> tuple[Node, Node] | None:
    """(what depends on the score, what is shared) of a product of the two."""
    if n.op is not Op.MUL or any(a.dtype is not DType.F32 for a in n.args):
        return None
    for inner, factor in (n.args, n.args[::-1]):
        if Op.SCORE in on[inner] and on[factor] <= shared:
            return inner, factor
    return None


@dataclass(frozen=True)
class Added(Fixed):
    """The additions at one fragment, in units of the exponent: begin[i] + step * offsets[j] at row i and column j. step: None
    for 0."""

    begin: list[Float32]
    step: Float32 | None
    offsets: tuple[int, ...]

    def below(self, base: Sequence[Float32]) -> "Added":
        """With base[i] subtracted."""
        return Added([a - b for a, b in zip(self.begin, base)] if self.begin else [-b for b in base], self.step, self.offsets)

    def at(self, i: int, j: int) -> Float32:
        if self.step is None or self.offsets[j] == 0:
            return self.begin[i]
        return self.begin[i] + self.step * float(self.offsets[j])


NOTHING = Added([], None, ())
