"""What a score graph adds to the score and multiplies it by, kept out of the scores and put into the exponent.

Of `score - slope[h] * (q - kv)` the second part is an affine term (`affine.py`): `begin + step * column` in a fragment. In the
exponent it costs one FMA an element where the top of the row is subtracted anyway; added to the score it costs two. Terms of
the row alone cost nothing there, and neither does a factor that is the same for the whole launch: of `cap * tanh(score / cap)`
one goes into the exponent's scale, the other into the scores'. Where a thread has one row, so does a factor of the row, and what
is the same along columns or diagonals of a tile is read from a table (`sm100/additions.py`).
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

from cutlass import Boolean, Float32, Int64

from flexfa4.emit.emitter import Emitter, Scope
from flexfa4.emit.values import select
from flexfa4.facts.axes import axes
from flexfa4.facts.lines import Line, lines
from flexfa4.ir import DType, Node, Op, topological
from flexfa4.ir import node as make
from flexfa4.plan.hoist import element_operations

from .affine import Term
from .bits import Words
from .carried import Fixed

_ROW = frozenset({Op.B, Op.H, Op.Q})
# A value in the middle of a graph is kept apart where that saves so many operations.
_WORTH = 4
# What a look-up costs: its index is clamped and multiplied.
_LOAD = 8
# In place of a factor of 0, which would make NaN of what is hidden.
SMALL = 1e-30


@dataclass(frozen=True)
class Split:
    """A score graph's root as the product of `factors` and `inner`, plus sign * value of each addition: walked (indices among
    the graph's affine terms), of the row alone, and tabled, which are the same along lines. factors: nodes that are the same for
    the launch, or for a row. scaled: of a node `score * other` that alone reads the score, where `other` is as shared: the node
    and `other`. summed: that, or the score, is an operand of a sum, which takes the multiplication in. line: of the table.
    kept: a node below `inner` that is read from it, where nothing added is. spread: where there are more such nodes than a table
    holds, all of them, a piece of a tile at a time (`spread.py`); there is no table then."""

    inner: Node
    walked: tuple[tuple[int, int], ...]
    of_row: tuple[tuple[int, Node], ...]
    factors: tuple[Node, ...] = ()
    scaled: tuple[Node, Node] | None = None
    summed: bool = False
    tabled: tuple[tuple[int, Node], ...] = ()
    kept: Node | None = None
    line: Line | None = None
    spread: tuple[tuple[Node, Line], ...] = ()

    def factor(self, at: Scope) -> Float32 | None:
        """The product of the factors; None for 1."""
        if not self.factors:
            return None
        first, *rest = (Float32(at.value_of(n)) for n in self.factors)
        for value in rest:
            first = first * value
        return select((first < SMALL) & (first > -SMALL), Float32(SMALL), first, Float32)


@dataclass(frozen=True)
class Rows:
    """What a thread's rows allow. own: it has one row, whose factors need no register more than those of the launch, and shares
    a table with threads of other rows; one_head: these have the same head."""

    own: bool = False
    one_head: bool = True

    @property
    def shared(self) -> frozenset[Op]:
        """What factors may depend on."""
        return _ROW if self.own else frozenset()

    def lines(self, root: Node) -> dict[Node, Line]:
        """Nodes that can be tabled or spread."""
        on = axes(root)
        found = lines(root) if self.own else {}
        return {n: line for n, line in found.items() if line is not Line.TILE and (self.one_head or Op.H not in on[n])}

    def apart(self, root: Node, words: Sequence[Node]) -> tuple[tuple[Node, Line], ...]:
        """The outermost of those, but what only `words` read, where they are worth it."""
        on_line, found, stack = self.lines(root), {}, [root]
        while stack:
            n = stack.pop()
            if n in words or n in found:
                continue
            if n in on_line and not n.dtype.is_bool:
                found[n] = on_line[n]
            else:
                stack.extend(n.args)
        return tuple((n, line) for n, line in found.items() if _operations(n) >= _WORTH)


def split_root(emitter: Emitter, terms: Sequence[Term], rows: Rows = Rows()) -> Split:
    """Takes off additions from the outside until one is none of those that can be kept apart, then factors; neither where the
    graph is to be precise. Then what is left of it is looked through for what is the same along lines."""
    split = _taken_off(emitter, terms, rows, True)
    found = _apart(emitter, rows, split.inner)
    if not found:
        return split
    ((node, line), *others) = found
    if split.line or others or node.dtype.is_int and emitter.int_type(node) is Int64:
        split = _taken_off(emitter, terms, rows, False)
        return replace(split, spread=_apart(emitter, rows, split.inner))
    return replace(split, kept=node, line=line)


def _apart(emitter: Emitter, rows: Rows, inner: Node) -> tuple[tuple[Node, Line], ...]:
    return rows.apart(inner, Words(emitter, not rows.one_head, root=inner).nodes) if rows.own else ()


def _taken_off(emitter: Emitter, terms: Sequence[Term], rows: Rows, tables: bool) -> Split:
    """tables: what is added along lines is taken off, of one kind of line; else it stays, within what else is taken off."""
    (n,) = emitter.roots
    if emitter.precise:
        return Split(n, (), ())
    on, index = axes(n), {t.node: k for k, t in enumerate(terms)}
    walked, of_row, tabled, stays, line = [], [], [], [], None
    on_line, shared = rows.lines(n), rows.shared
    while n.dtype is DType.F32 and n.op in (Op.ADD, Op.SUB):
        left, right = n.args
        sign = -1 if n.op is Op.SUB else 1
        if Op.SCORE in on[right] and sign > 0:
            left, right = right, left
        if Op.SCORE not in on[left] or Op.SCORE in on[right] or left.dtype is not DType.F32:
            break
        if right in index:
            walked.append((sign, index[right]))
        elif on[right] <= _ROW and right.dtype is DType.F32:
            of_row.append((sign, right))
        elif right in on_line and not tables:
            stays.append((sign, right))
        elif right in on_line and line in (None, on_line[right]):
            line = on_line[right]
            tabled.append((sign, right))
        else:
            break
        n = left
    for sign, right in reversed(stays):
        n = make(Op.ADD if sign > 0 else Op.SUB, (n, right), DType.F32)
    factors = []
    while product := _product(n, on, shared):
        n = product[0]
        factors.append(product[1])
    readers = [m for m in topological(n) if any(a.op is Op.SCORE for a in m.args)]
    scaled = _product(readers[0], on, shared) if len(readers) == 1 else None
    scaled = (readers[0], scaled[1]) if scaled and scaled[0].op is Op.SCORE else None
    products = readers[:1] if scaled else [a for m in readers for a in m.args if a.op is Op.SCORE]
    summed = any(m.op in (Op.ADD, Op.SUB) and not set(products).isdisjoint(m.args) for m in topological(n))
    if line is not None:
        # One more in the table is for nothing.
        tabled += [(sign, terms[k].node) for sign, k in walked if on_line.get(terms[k].node) is line]
        walked = [(sign, k) for sign, k in walked if on_line.get(terms[k].node) is not line]
    return Split(n, tuple(walked), tuple(of_row), tuple(factors), scaled, summed, tuple(tabled), None, line)


def _operations(n: Node) -> int:
    """Of a node for each element, as additions count."""
    return element_operations(n) + sum(_LOAD - 1 for m in topological(n) if m.op is Op.LOAD and m.args)


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
    for 0. lost: of each row, whether it is NaN if it sees a key: what is added is NaN or +inf, and 0 stands for it here. Empty
    where no row is."""

    begin: list[Float32]
    step: Float32 | None
    offsets: tuple[int, ...]
    lost: tuple[Boolean, ...] = ()

    def below(self, base: Sequence[Float32]) -> "Added":
        """With base[i] subtracted."""
        begin = [a - b for a, b in zip(self.begin, base)] if self.begin else [-b for b in base]
        return replace(self, begin=begin)

    def at(self, i: int, j: int) -> Float32:
        if self.step is None or self.offsets[j] == 0:
            return self.begin[i]
        return self.begin[i] + self.step * float(self.offsets[j])


NOTHING = Added([], None, ())
