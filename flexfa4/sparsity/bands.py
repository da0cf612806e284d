"""Spans of masks whose terms compare something of the query with something of the key (`facts/terms.py`).

Over a row of tiles such a term holds nowhere, somewhere or everywhere in a tile as the tile's keys lie below, across or above a
threshold that is the row's. So each term is true for certain on one interval of columns and possible on a wider one, found by
bisection, and a mask of a million tokens costs as many look-ups as it has rows of tiles. What is possible and not certain is
looked at in the four corners of its tiles; a true and a false one make a tile PARTIAL, the rest is for `exact.Settler`.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Callable

import numpy as np

from flexfa4.facts.interval import Analysis
from flexfa4.facts.interval_values import Interval
from flexfa4.facts.terms import Comparison, Expression, OneSided, Parts, Terms, order_of, terms_of
from flexfa4.ir import Node, Op
from flexfa4.ir.dtypes import INT_RANGE

from .cells import Cells
from .spans import Kind, Spans, Tiling, spans_from_ascending, spans_from_segments

# Undecided tiles, and changes of a term along the columns, beyond which looking at every tile is as good.
_MOST_OPEN = 1 << 17
_MOST_CHANGES = 16
# Open tiles whose corners are alike, beyond which other ways have more to go by, in tiles a row and column.
_MOST_UNSETTLED = 2


class Unfit(Exception):
    """A term is not one of an interval of columns in each row."""


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison over n tiles of an axis: least and greatest value [n], and the value at the first and last
    position [2, n], None where that is not known exactly."""

    lo: np.ndarray
    hi: np.ndarray
    ends: np.ndarray | None

    def __neg__(self) -> "Side":
        return Side(-self.hi, -self.lo, None if self.ends is None else -self.ends)


class Axis:
    """The tiles along the queries or the keys, `first` and `last` position of each, int64 [n]; and what is known of nodes there,
    as intervals [3, n]: over the tile, at its first and at its last position."""

    def __init__(self, op: Op, length: int, tile: int):
        self.op, self.tile, self.length = op, tile, length
        self.first = np.arange(0, length, tile)
        self.last = self.first + (tile - 1)
        self.last[-1] = length - 1
        self.known: dict[Node, Interval] = {}

    def __len__(self) -> int:
        return self.first.size

    @cached_property
    def ends(self) -> np.ndarray:
        return np.array((self.first, self.last))

    @cached_property
    def stacked(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array((self.first, self.first, self.last)), np.array((self.last, self.first, self.last))

    def same_tiles(self, other: "Axis") -> bool:
        return self.tile == other.tile and self.length == other.length


def band_spans(analysis: Analysis, tiling: Tiling, transposed: bool, settle: Callable, work) -> Spans | None:
    """The spans of a mask; None where it is not made of such terms, or where another way is as good.

    settle(cells): kinds, uint8 [n], of Cells that stay open. work: the Work of this build.
    """
    terms = terms_of(analysis.bound.graph)
    if terms is None:
        return None
    work_before = work.sampled
    try:
        with np.errstate(all="ignore"):
            parts = [_Mask(analysis, terms, tiling, transposed, b, h).segments(settle, work)
                     for b in range(tiling.Bm) for h in range(tiling.Hm)]
    except Unfit:
        work.sampled = work_before
        return None
    lines = tiling.kv_tiles if transposed else tiling.q_tiles
    row = [part.row + i * lines if i else part.row for i, part in enumerate(parts)]
    fields = [row, *([getattr(part, name) for part in parts] for name in ("begin", "end", "kind"))]
    joined = [x[0] if len(x) == 1 else np.concatenate(x) for x in fields]
    if all(part.ascending for part in parts):
        return spans_from_ascending(*joined, tiling, transposed)
    return spans_from_segments(*joined, tiling, transposed)


@dataclass(frozen=True, eq=False)
class _Segments:
    """Runs of columns of tiles: (row, begin, end, kind), int64 [n]; `ascending` if in order and maximal."""

    row: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    kind: np.ndarray
    ascending: bool


class _Mask:
    """The mask of one batch and head."""

    def __init__(self, analysis: Analysis, terms: Terms, tiling: Tiling, transposed: bool, b: int, h: int):
        self.analysis, self.terms, self.transposed = analysis, terms, transposed
        self.b, self.h = b, h
        q, kv = Axis(Op.Q, tiling.q_len, tiling.q_tile), Axis(Op.KV, tiling.kv_len, tiling.kv_tile)
        if q.same_tiles(kv):
            kv.first, kv.last, kv.ends = q.first, q.last, q.ends
        self.q, self.kv = q, kv
        self.rows, self.columns = (kv, q) if transposed else (q, kv)
        self._names: dict = {}
        self._sides = [self._of_term(t) for t in terms.terms]

    # What each term is, tile by tile

    def _of_term(self, term) -> tuple:
        """(query's side, key's side) of a comparison; the interval of a one-sided term, Booleans [3, n]."""
        if isinstance(term, OneSided):
            return self._interval(self.q if term.axis is not Op.KV else self.kv, term.node)
        if term.pair is not None and self.analysis.tables.labels(term.pair) is not None:
            loads = term.pair.loads[::-1] if term.q_load else term.pair.loads
            return self._labels(self.q, term, loads[0]), self._labels(self.kv, term, loads[1])
        return self._sum(self.q, term.q, term), self._sum(self.kv, term.kv, term)

    def _interval(self, axis: Axis, n: Node) -> Interval:
        """Bounds of a node over tiles and at their ends; Unfit where it may be NaN or read out of range."""
        if n not in axis.known:
            env = {Op.B: (self.b, self.b), Op.H: (self.h, self.h), axis.op: axis.stacked}
            self.analysis.along(order_of(n), env, axis.known)
        found = axis.known[n]
        if np.any(found.poison) or np.any(found.nan):
            raise Unfit
        return found

    def _sum(self, axis: Axis, parts: Parts, term: Comparison) -> Side:
        if len(parts) == 1 and parts[0][1].op is axis.op:
            side = Side(axis.first, axis.last, axis.ends)
            return side if parts[0][0] > 0 else -side
        lo = hi = 0
        size = 0
        for sign, n in parts:
            found = self._interval(axis, n)
            lo, hi = (lo + found.lo, hi + found.hi) if sign > 0 else (lo - found.hi, hi - found.lo)
            if len(parts) > 1 or sign < 0:
                size += _size(found)
        if size > INT_RANGE[term.dtype][1] // 2 if size else False:
            raise Unfit
        return _side(lo, hi, len(axis))

    def _labels(self, axis: Axis, term: Comparison, load: Node) -> Side:
        table = self.analysis.tables.labels(term.pair)
        index = load.args[term.pair.dim]
        plain = index.op is axis.op
        for i in load.args:
            if i is not index or not plain:
                self._interval(axis, i)
        # Where the names rise, the least name of a tile of consecutive positions is its first.
        known = axis.known if not plain else {**axis.known, index: Interval(axis.ends, axis.ends, least=0, most=axis.length - 1)}
        shared = plain and self.q.first is self.kv.first and len(table.sizes) == 1
        key = (term.pair, tuple(i for i in load.args if i is not index)) if shared else None
        if key in self._names:
            return self._names[key]
        found = table.along(load, known)
        if found is None:
            raise Unfit
        side = Side(found[0][0], found[0][1], found[0]) if plain else _side(*found, len(axis))
        if key is not None:
            self._names[key] = side
        return side

    # Along each row

    def segments(self, settle: Callable, work) -> _Segments:
        row, begin, end, open_ = self._conjunction() if self.terms.conjunction else self._expression()
        work.analysed += len(self.rows) + len(self.columns)
        at = np.flatnonzero(open_)
        length = (end - begin)[at]
        total = int(length.sum())
        if total > _MOST_OPEN:
            raise Unfit
        if total:
            start = length.cumsum() - length
            i = np.repeat(row[at], length)
            j = np.arange(total) + np.repeat(begin[at] - start, length)
            kinds = self._open_tiles(i, j, settle, work)
            if kinds is not None:
                full, some = ~open_, np.flatnonzero(kinds)
                i, j = i[some], j[some]
                kind = np.concatenate([np.full(int(full.sum()), int(Kind.FULL)), kinds[some].astype(np.int64)])
                return _Segments(np.concatenate([row[full], i]), np.concatenate([begin[full], j]),
                                 np.concatenate([end[full], j + 1]), kind, False)
        return _Segments(row, begin, end, int(Kind.FULL) - open_, True)

    def _conjunction(self) -> tuple:
        """(row, begin, end, open) of the tiles that are not EMPTY for certain, in order: an AND of intervals is one."""
        columns = len(self.columns)
        may, must = [0, columns], [0, columns]
        for term, sides in zip(self.terms.terms, self._sides):
            for total, found in zip((may, must), self._intervals(term, sides)):
                total[0], total[1] = _greater(total[0], found[0]), _less(total[1], found[1])
        inner = must[0] < must[1]
        bounds = np.empty((len(self.rows), 4), np.int64)
        bounds[:, 0], bounds[:, 3] = may
        bounds[:, 1], bounds[:, 2] = np.where(inner, must[0], may[1]), np.where(inner, must[1], may[1])
        row, which = np.nonzero(bounds[:, 1:] > bounds[:, :-1])
        return row, bounds[row, which], bounds[row, which + 1], which != 1

    def _intervals(self, term, sides) -> tuple:
        """((begin, end) of the columns where the term may hold, of those where it certainly does), each int64 [rows] or int."""
        columns = len(self.columns)
        if isinstance(term, OneSided):
            if (term.axis or self.rows.op) is self.rows.op:
                return tuple((0, np.where(np.broadcast_to(x, (3, len(self.rows)))[0], columns, 0)) for x in (sides.hi, sides.lo))
            return tuple(_only_run(np.broadcast_to(x, (3, columns))[0]) for x in (sides.hi, sides.lo))
        f, g, below = self._oriented(term, sides)
        if term.op is Op.EQ:
            one = f.lo == f.hi
            certain = np.searchsorted(g.lo, f.lo, "left"), np.searchsorted(g.hi, f.lo, "right")
            return ((np.searchsorted(g.hi, f.lo, "left"), np.searchsorted(g.lo, f.hi, "right")),
                    (certain[0], np.where(one, certain[1], 0)))
        how = ("right", "left") if term.op is Op.LT else ("left", "right")
        if below:
            return (0, np.searchsorted(g.lo, f.hi, how[1])), (0, np.searchsorted(g.hi, f.lo, how[1]))
        return (np.searchsorted(g.hi, f.lo, how[0]), columns), (np.searchsorted(g.lo, f.hi, how[0]), columns)

    def _oriented(self, term: Comparison, sides: tuple[Side, Side]) -> tuple[Side, Side, bool]:
        """(the rows' side, the columns' side, rising along them, whether that is on the left)."""
        f, g = sides[::-1] if self.transposed else sides
        below = term.q_left == self.transposed
        for _ in range(2):
            if (g.lo[1:] >= g.lo[:-1]).all() and (g.hi[1:] >= g.hi[:-1]).all():
                return f, g, below
            # x < y is -y < -x.
            f, g, below = -f, -g, not below
        raise Unfit

    def _expression(self) -> tuple:
        """As `_conjunction`, for any expression: each row is cut where a term changes, and looked at once between cuts."""
        columns = len(self.columns)
        cuts, terms = [], []
        for term, sides in zip(self.terms.terms, self._sides):
            along = isinstance(term, OneSided) and (term.axis or self.rows.op) is not self.rows.op
            if along:
                at = [np.broadcast_to(x, (3, columns))[0] for x in (sides.lo, sides.hi)]
                change = np.flatnonzero((at[0][1:] != at[0][:-1]) | (at[1][1:] != at[1][:-1])) + 1
                if change.size > _MOST_CHANGES:
                    raise Unfit
                cuts += change.tolist()
                terms.append(lambda row, column, at=at: tuple(x[column] for x in at))
            else:
                may, must = self._intervals(term, sides)
                cuts += [x for x in (*may, *must) if not isinstance(x, int)]
                terms.append(lambda row, column, runs=(must, may): tuple(_inside(row, column, *run) for run in runs))
        bounds = np.empty((len(self.rows), len(cuts) + 2), np.int64)
        bounds[:, 0], bounds[:, -1] = 0, columns
        for i, cut in enumerate(cuts):
            bounds[:, i + 1] = cut
        bounds.sort(axis=1)
        row, which = np.nonzero(bounds[:, 1:] > bounds[:, :-1])
        begin, end = bounds[row, which], bounds[row, which + 1]
        must, may = _evaluate(self.terms.expression, [term(row, begin) for term in terms])
        return _merged(row, begin, end, may.astype(np.int8) + must)

    # Tiles that stay open

    def _open_tiles(self, i: np.ndarray, j: np.ndarray, settle: Callable, work) -> np.ndarray | None:
        """The kinds of tiles in rows i and columns j, uint8 [n]; None where all are PARTIAL."""
        mixed = self._mixed(i, j)
        if mixed is None:
            rest = np.arange(i.size)
        elif mixed.all():
            work.sampled += i.size
            return None
        else:
            rest = np.flatnonzero(~mixed)
            work.sampled += i.size - rest.size
        if rest.size > _MOST_UNSETTLED * (len(self.rows) + len(self.columns)):
            raise Unfit
        q, kv = (j[rest], i[rest]) if self.transposed else (i[rest], j[rest])
        same = np.zeros(rest.size, np.int64)
        kinds = np.full(i.size, Kind.PARTIAL, np.uint8)
        kinds[rest] = settle(Cells(same + self.b, same + self.h, self.q.first[q], self.q.last[q], self.kv.first[kv],
                                   self.kv.last[kv]))
        return None if (kinds == Kind.PARTIAL).all() else kinds

    def _mixed(self, i: np.ndarray, j: np.ndarray) -> np.ndarray | None:
        """Whether the corners of each tile hold both values, bool [n]; None where some term is not known at a point."""
        values = []
        for term, sides in zip(self.terms.terms, self._sides):
            if isinstance(term, OneSided):
                on_rows = (term.axis or self.rows.op) is self.rows.op
                lo, hi = (np.broadcast_to(x, (3, len(self.rows if on_rows else self.columns)))[1:] for x in (sides.lo, sides.hi))
                if (lo != hi).any():
                    return None
                value = lo[:, i][:, None] if on_rows else lo[:, j]
            else:
                f, g = sides[::-1] if self.transposed else sides
                if f.ends is None or g.ends is None:
                    return None
                a, b = f.ends[:, i][:, None], g.ends[:, j]
                a, b = (a, b) if term.q_left != self.transposed else (b, a)
                value = a < b if term.op is Op.LT else a <= b if term.op is Op.LE else a == b
            values.append((value, value))
        found = np.broadcast_to(_evaluate(self.terms.expression, values)[0], (2, 2, i.size)).reshape(4, -1)
        return found.any(axis=0) & ~found.all(axis=0)


def _size(x: Interval) -> int:
    """The greatest magnitude of an integer interval."""
    if x.least is None:
        raise Unfit
    return max(abs(x.least), abs(x.most), 1)


def _side(lo, hi, count: int) -> Side:
    """A Side of bounds that broadcast to [3, n]."""
    lo, hi = (np.broadcast_to(x, (3, count)) for x in (lo, hi))
    exact = lo is hi or (lo[1:] == hi[1:]).all()
    return Side(lo[0], hi[0], lo[1:] if exact else None)


def _greater(a, b):
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return b if isinstance(a, int) and a == 0 else a if isinstance(b, int) and b == 0 else np.maximum(a, b)


def _less(a, b):
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)


def _only_run(x: np.ndarray) -> tuple[int, int]:
    """(begin, end) of the one run of True in a Boolean vector."""
    at = np.flatnonzero(x)
    if not at.size:
        return 0, 0
    begin, end = int(at[0]), int(at[-1]) + 1
    if end - begin != at.size:
        raise Unfit
    return begin, end


def _inside(row: np.ndarray, column: np.ndarray, begin, end) -> np.ndarray:
    """Whether columns lie in the intervals of their rows, each int64 [rows] or int."""
    begin, end = (x if isinstance(x, int) else x[row] for x in (begin, end))
    return (begin <= column) & (column < end)


def _evaluate(x: Expression, terms: list[tuple]) -> tuple:
    """(certain, possible) of an expression from those of its terms, Boolean arrays."""
    if isinstance(x, int):
        return terms[x]
    must, may = zip(*(_evaluate(inner, terms) for inner in x[1:]))
    if x[0] is Op.NOT:
        return ~may[0], ~must[0]
    join = np.logical_and if x[0] is Op.AND else np.logical_or
    return join(*must), join(*may)


def _merged(row, begin, end, kind) -> tuple:
    """(row, begin, end, open) of segments in order, neighbours of one kind joined and kind 0 dropped."""
    some = np.flatnonzero(kind)
    row, begin, end, kind = row[some], begin[some], end[some], kind[some]
    joined = (row[1:] == row[:-1]) & (begin[1:] == end[:-1]) & (kind[1:] == kind[:-1])
    first, last = np.ones(row.size, bool), np.ones(row.size, bool)
    first[1:], last[:-1] = ~joined, ~joined
    return row[first], begin[first], end[last], kind[first] == 1
