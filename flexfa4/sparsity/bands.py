"""Spans of masks whose terms compare something of the query with something of the key (`facts/terms.py`).

Over a row of tiles such a term holds nowhere, somewhere or everywhere in a tile as the tile's keys lie below, across or above a
threshold that is the row's. So each term is true for certain on one interval of columns and possible on a wider one, found by
bisection, and a mask of a million tokens costs as many look-ups as it has rows of tiles. A tile in which one term of an AND is
possible, and the others certain, is PARTIAL where that term's bounds are attained. Other tiles that are possible and not certain
are looked at in their four corners; a true and a false one make a tile PARTIAL, the rest is for `exact.Settler`.
"""
from __future__ import annotations

from functools import cached_property
from typing import Callable, Sequence

import numpy as np

from flexfa4.facts.interval import Analysis
from flexfa4.facts.interval_values import Interval
from flexfa4.facts.labels import LabelTable
from flexfa4.facts.terms import Comparison, Expression, OneSided, Parts, Terms, order_of, terms_of
from flexfa4.ir import Node, Op
from flexfa4.ir.dtypes import INT_RANGE

from .cells import Cells
from .spans import Kind, Spans, Tiling, run_type, runs_in_order, runs_of_segments

# Undecided tiles, and changes of a term along the columns, beyond which looking at every tile is as good.
_MOST_OPEN = 1 << 17
_MOST_CHANGES = 16
# Open tiles whose corners are alike, beyond which other ways have more to go by, in tiles a row and column.
_MOST_UNSETTLED = 2


class Unfit(Exception):
    """A term is not one of an interval of columns in each row."""


def refuse(cells: Cells):
    """For `band_spans`, where nothing else can settle tiles."""
    raise Unfit


class Side:
    """One side of a comparison over n tiles of an axis: least and greatest value [n].

    `ends()`: the value at the first and last position, [2, n]; None where it is not known exactly. dense: every whole number from
    lo to hi is a value at some position of the tile. rising: lo and hi rise from tile to tile; None: not known.
    """

    __slots__ = ("lo", "hi", "_ends", "dense", "rising")

    def __init__(self, lo: np.ndarray, hi: np.ndarray, ends, dense: bool = False, rising: bool | None = None):
        self.lo, self.hi, self._ends, self.dense, self.rising = lo, hi, ends, dense, rising

    def __neg__(self) -> "Side":
        ends = self._ends
        return Side(-self.hi, -self.lo, None if ends is None else lambda: -ends(), self.dense,
                    None if self.rising is None else not self.rising)

    def ends(self) -> np.ndarray | None:
        return None if self._ends is None else self._ends()

    def rises(self) -> bool:
        if self.rising is None:
            self.rising = bool((self.lo[1:] >= self.lo[:-1]).all() and (self.hi[1:] >= self.hi[:-1]).all())
        return self.rising


class Axis:
    """The tiles along the queries or the keys, `first` and `last` position of each, int64 [n]; and what is known of nodes there,
    as intervals [3, n]: over the tile, at its first and at its last position."""

    def __init__(self, op: Op, length: int, tile: int, twin: "Axis | None" = None):
        """twin: an axis with the same tiles."""
        self.op, self.tile, self.length, self._twin = op, tile, length, twin
        self.known: dict[Node, Interval] = {}
        if twin is not None:
            self.first, self.last = twin.first, twin.last
            return
        self.first = np.arange(0, length, tile)
        self.last = self.first + (tile - 1)
        self.last[-1] = length - 1

    def __len__(self) -> int:
        return self.first.size

    @cached_property
    def ends(self) -> np.ndarray:
        return np.array((self.first, self.last)) if self._twin is None else self._twin.ends

    @cached_property
    def stacked(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array((self.first, self.first, self.last)), np.array((self.last, self.first, self.last))

    def plain(self) -> Side:
        """The position itself."""
        return Side(self.first, self.last, lambda: self.ends, True, True)


def band_spans(analysis: Analysis, tiling: Tiling, transposed: bool, settle: Callable, work) -> Spans | None:
    """The spans of a mask; None where it is not made of such terms, or where another way is as good.

    settle(cells): kinds, uint8 [n], of Cells that stay open. work: the Work of this build.
    """
    terms = terms_of(analysis.bound.graph)
    if terms is None:
        return None
    sampled = work.sampled
    try:
        with np.errstate(all="ignore"):
            found = [_Mask(analysis, terms, tiling, transposed, b, h, settle, work).runs()
                     for b in range(tiling.Bm) for h in range(tiling.Hm)]
    except Unfit:
        work.sampled = sampled
        return None
    pointer, runs = found[0]
    for more_pointer, more in found[1:]:
        pointer = np.concatenate([pointer, pointer[-1] + more_pointer[1:]])
    return tiling.spans(pointer, runs if len(found) == 1 else np.concatenate([r for _, r in found]), transposed)


class _Mask:
    """The mask of one batch and head."""

    def __init__(self, analysis: Analysis, terms: Terms, tiling: Tiling, transposed: bool, b: int, h: int, settle: Callable,
                 work):
        self.analysis, self.terms, self.tiling, self.transposed = analysis, terms, tiling, transposed
        self.b, self.h, self.settle, self.work = b, h, settle, work
        q = Axis(Op.Q, tiling.q_len, tiling.q_tile)
        same = tiling.kv_len == tiling.q_len and tiling.kv_tile == tiling.q_tile
        kv = Axis(Op.KV, tiling.kv_len, tiling.kv_tile, q if same else None)
        self.q, self.kv = q, kv
        self.rows, self.columns = (kv, q) if transposed else (q, kv)
        self._names: dict = {}
        self._sides = [self._of_term(t) for t in terms.terms]

    # What each term is, tile by tile

    def _of_term(self, term) -> tuple:
        """(query's side, key's side) of a comparison; the interval of a one-sided term, Booleans [3, n]."""
        if isinstance(term, OneSided):
            return self._interval(self.q if term.axis is not Op.KV else self.kv, term.node)
        table = None if term.pair is None else self.analysis.tables.labels(term.pair)
        if table is not None:
            loads = term.pair.loads
            return self._labels(self.q, table, loads[term.q_load]), self._labels(self.kv, table, loads[1 - term.q_load])
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
            return axis.plain() if parts[0][0] > 0 else -axis.plain()
        lo = hi = size = 0
        varying = []
        for sign, n in parts:
            found = self._interval(axis, n)
            lo, hi = (lo + found.lo, hi + found.hi) if sign > 0 else (lo - found.hi, hi - found.lo)
            if not found.fixed:
                varying.append((sign, n))
            if len(parts) > 1 or sign < 0:
                size += _size(found)
        if size > INT_RANGE[term.dtype][1] // 2 if size else False:
            raise Unfit
        side = _side(lo, hi, len(axis))
        if len(varying) == 1 and varying[0][1].op is axis.op:
            side.dense, side.rising = True, varying[0][0] > 0
        return side

    def _labels(self, axis: Axis, table: LabelTable, load: Node) -> Side:
        index = load.args[table.pair.dim]
        if index.op is not axis.op:
            for i in load.args:
                self._interval(axis, i)
            found = table.along(load, axis.known)
            if found is None:
                raise Unfit
            return _side(*found, len(axis))
        ends = self._ends_of_labels(axis, table, load)
        # Names that rise do so by one, so that a tile of consecutive positions holds all from its first to its last.
        return Side(ends[0], ends[1], lambda: ends, True, True)

    def _ends_of_labels(self, axis: Axis, table: LabelTable, load: Node) -> np.ndarray:
        """The names at the first and last position of each tile, [2, n]."""
        side = int(load is not table.pair.loads[0])
        if len(load.args) == 1 and axis.length <= table.sizes[side % len(table.sizes)]:
            key = table, len(table.sizes) == 2 and side, id(axis.first)
            if key not in self._names:
                self._names[key] = table.at_ends(axis.tile, axis.length, axis.ends, side)
            found = self._names[key]
        else:
            index = load.args[table.pair.dim]
            for i in load.args:
                if i is not index:
                    self._interval(axis, i)
            known = {**axis.known, index: Interval(axis.ends, axis.ends, least=0, most=axis.length - 1)}
            found = table.along(load, known)
            found = None if found is None else found[0]
        if found is None:
            raise Unfit
        return found

    # Along each row

    def runs(self) -> tuple[np.ndarray, np.ndarray]:
        """(row_ptr int32 [rows + 1], runs [n, 3]), as in Spans."""
        self.work.analysed += len(self.rows) + len(self.columns)
        return self._conjunction() if self.terms.conjunction else self._expression()

    def _conjunction(self) -> tuple[np.ndarray, np.ndarray]:
        """An AND of intervals is one: in each row the tiles that are possible, and among them those that are certain."""
        columns = len(self.columns)
        may = must = inner = 0, columns
        known = True
        for term, sides in zip(self.terms.terms, self._sides):
            possible, certain = self._intervals(term, sides)
            may = _met(may, possible, columns)
            inner = _but_one(inner, must, certain, columns)
            must = _met(must, certain, columns)
            known = known and not isinstance(term, OneSided) and sides[0].dense and sides[1].dense
        rows = len(self.rows)
        bounds = np.empty((4, rows), np.int64)
        bounds[0], bounds[3] = may
        some = np.less(must[0], must[1])
        bounds[1:3] = bounds[3]
        np.copyto(bounds[1], must[0], where=some)
        np.copyto(bounds[2], must[1], where=some)
        if not known:
            open_ = [(bounds[0], bounds[1]), (bounds[2], bounds[3])]
        else:
            # Left and right of where all terms but one hold, and between the two intervals of terms that hold nowhere together.
            open_ = [(may[0], inner[0]), (must[1], must[0]), (inner[1], may[1])]
            open_ = [(np.maximum(begin, bounds[0]), np.minimum(end, bounds[3])) for begin, end in open_
                     if not (_is(end, 0) or _is(begin, columns))]
        kinds = self._open_tiles(*_tiles(open_))
        if kinds is None:
            return _packed(bounds, columns)
        full = np.flatnonzero(bounds[2] > bounds[1])
        return self._segments((full, bounds[1][full], bounds[2][full]), _tiles([(bounds[0], bounds[1]), (bounds[2], bounds[3])]),
                              kinds)

    def _intervals(self, term, sides) -> tuple:
        """((begin, end) of the columns where the term may hold, of those where it certainly does), each int64 [rows] or int."""
        columns = len(self.columns)
        if isinstance(term, OneSided):
            if (term.axis or self.rows.op) is self.rows.op:
                return tuple((0, np.where(np.broadcast_to(x, (3, len(self.rows)))[0], columns, 0)) for x in (sides.hi, sides.lo))
            return tuple(_only_run(np.broadcast_to(x, (3, columns))[0]) for x in (sides.hi, sides.lo))
        f, g, below = self._oriented(term, sides)
        if term.op is Op.EQ:
            first, last = g.lo.searchsorted(f.lo, "left"), g.hi.searchsorted(f.lo, "right")
            one = f.lo == f.hi
            return ((g.hi.searchsorted(f.lo, "left"), g.lo.searchsorted(f.hi, "right")),
                    (np.where(one, first, columns), np.where(one, last, columns)))
        how = ("right", "left") if term.op is Op.LT else ("left", "right")
        if below:
            return (0, g.lo.searchsorted(f.hi, how[1])), (0, g.hi.searchsorted(f.lo, how[1]))
        return (g.hi.searchsorted(f.lo, how[0]), columns), (g.lo.searchsorted(f.hi, how[0]), columns)

    def _oriented(self, term: Comparison, sides: tuple[Side, Side]) -> tuple[Side, Side, bool]:
        """(the rows' side, the columns' side, rising along them, whether that is on the left)."""
        f, g = sides[::-1] if self.transposed else sides
        below = term.q_left == self.transposed
        for _ in range(2):
            if g.rises():
                return f, g, below
            # x < y is -y < -x.
            f, g, below = -f, Side(-g.hi, -g.lo, None), not below
        raise Unfit

    def _expression(self) -> tuple[np.ndarray, np.ndarray]:
        """As `_conjunction`, for any expression: each row is cut where a term changes, and looked at once between cuts."""
        columns = len(self.columns)
        cuts, terms = [], []
        for term, sides in zip(self.terms.terms, self._sides):
            if isinstance(term, OneSided) and (term.axis or self.rows.op) is not self.rows.op:
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
        row, begin, end, kind = _merged(row, begin, end, may.astype(np.int8) + must)
        open_ = np.flatnonzero(kind == Kind.PARTIAL)
        i, j = _tiles([(begin[open_], end[open_])])
        tiles = row[open_][i], j
        kinds = self._open_tiles(*tiles)
        if kinds is None:
            return runs_in_order(row, begin, end, kind, len(self.rows), columns)
        full = kind == Kind.FULL
        return self._segments((row[full], begin[full], end[full]), tiles, kinds)

    def _segments(self, full: tuple, tiles: tuple, others: tuple) -> tuple[np.ndarray, np.ndarray]:
        """(row_ptr, runs) of FULL segments (row, begin, end) and of tiles (row, column), PARTIAL but for `others`: the flat
        places of some of them, and their kinds."""
        (row, begin, end), (i, j), (places, kinds) = full, tiles, others
        kind = np.full(i.size, int(Kind.PARTIAL))
        flat = i * len(self.columns) + j
        order = np.argsort(flat)
        kind[order[np.searchsorted(flat, places, sorter=order)]] = kinds
        some = np.flatnonzero(kind)
        i, j, kind = i[some], j[some], kind[some]
        kind = np.concatenate([np.full(row.size, int(Kind.FULL)), kind])
        return runs_of_segments(np.concatenate([row, i]), np.concatenate([begin, j]), np.concatenate([end, j + 1]), kind,
                                len(self.rows), len(self.columns))

    # Tiles that stay open

    def _open_tiles(self, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Which of the tiles in rows i and columns j are not PARTIAL, as flat places and kinds; None where all are."""
        if not i.size:
            return None
        mixed = self._mixed(i, j)
        if mixed is not None:
            rest = (~mixed).nonzero()[0]
            self.work.sampled += i.size - rest.size
            if not rest.size:
                return None
            i, j = i[rest], j[rest]
        if i.size > _MOST_UNSETTLED * (len(self.rows) + len(self.columns)):
            raise Unfit
        q, kv = (j, i) if self.transposed else (i, j)
        same = np.zeros(i.size, np.int64)
        kinds = self.settle(Cells(same + self.b, same + self.h, self.q.first[q], self.q.last[q], self.kv.first[kv],
                                  self.kv.last[kv]))
        others = np.flatnonzero(kinds != Kind.PARTIAL)
        return (i[others] * len(self.columns) + j[others], kinds[others]) if others.size else None

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
                f, g = (side.ends() for side in (sides[::-1] if self.transposed else sides))
                if f is None or g is None:
                    return None
                a, b = f.take(i, axis=1)[:, None], g.take(j, axis=1)
                a, b = (a, b) if term.q_left != self.transposed else (b, a)
                value = a < b if term.op is Op.LT else a <= b if term.op is Op.LE else a == b
            values.append((value, value))
        found = np.broadcast_to(_evaluate(self.terms.expression, values)[0], (2, 2, i.size)).reshape(4, -1)
        return (found[1:] != found[0]).any(axis=0)


def _size(x: Interval) -> int:
    """The greatest magnitude of an integer interval."""
    if x.least is None:
        raise Unfit
    return max(abs(x.least), abs(x.most), 1)


def _side(lo, hi, count: int) -> Side:
    """A Side of bounds that broadcast to [3, n]."""
    lo, hi = (np.broadcast_to(x, (3, count)) for x in (lo, hi))
    exact = (lo[1:] == hi[1:]).all()
    return Side(lo[0], hi[0], (lambda: lo[1:]) if exact else None)


def _tiles(segments: Sequence[tuple]) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of the tiles in segments of each row, given as (begin, end) arrays; an end may lie before its begin."""
    if not segments:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    begin, end = segments[0] if len(segments) == 1 else (np.concatenate(x) for x in zip(*segments))
    at = (end > begin).nonzero()[0]
    if not at.size:
        return at, at
    begin = begin[at]
    length = end[at] - begin
    if length.max() == 1:
        return at if len(segments) == 1 else at % (end.size // len(segments)), begin
    total = int(length.sum())
    if total > _MOST_OPEN:
        raise Unfit
    row = at if len(segments) == 1 else at % (end.size // len(segments))
    return row.repeat(length), np.arange(total) + (begin - length.cumsum() + length).repeat(length)


_KINDS = np.array([Kind.PARTIAL, Kind.FULL, Kind.PARTIAL], np.int16)


def _packed(bounds: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr, runs) of rows that are a PARTIAL, a FULL and a PARTIAL run, some of them empty, between `bounds` [4, rows]."""
    flat = bounds.T.reshape(-1)
    there = flat[1:] > flat[:-1]
    there[3::4] = False                 # from one row to the next
    at = there.nonzero()[0]
    runs = np.empty((at.size, 3), run_type(columns))
    runs[:, 0], runs[:, 1], runs[:, 2] = flat[at], flat[at + 1], _KINDS[at & 3]
    pointer = np.zeros(bounds.shape[1] + 1, np.int32)
    pointer[1:] = there.cumsum()[2::4]
    return pointer, runs


def _is(x, number: int) -> bool:
    return type(x) is int and x == number


def _met(a: tuple, b: tuple, columns: int) -> tuple:
    """The intersection of two intervals, (begin, end) each. Here and below the Python ints 0 and `columns` cost nothing."""
    return (b[0] if _is(a[0], 0) else a[0] if _is(b[0], 0) else np.maximum(a[0], b[0]),
            b[1] if _is(a[1], columns) else a[1] if _is(b[1], columns) else np.minimum(a[1], b[1]))


def _but_one(inner: tuple, must: tuple, found: tuple, columns: int) -> tuple:
    """The columns past the begins of all terms but one, and before the ends of all but one, with one more term: certain in
    `found`, where those before it are all certain in `must`."""
    begin, end = inner
    if not (_is(must[0], 0) or _is(found[0], 0)):
        begin = np.maximum(begin, np.minimum(must[0], found[0]))
    if not (_is(must[1], columns) or _is(found[1], columns)):
        end = np.minimum(end, np.maximum(must[1], found[1]))
    return begin, end


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
    """(row, begin, end, kind) of segments in order, neighbours of one kind joined and kind 0 dropped."""
    some = np.flatnonzero(kind)
    row, begin, end, kind = row[some], begin[some], end[some], kind[some]
    joined = (row[1:] == row[:-1]) & (begin[1:] == end[:-1]) & (kind[1:] == kind[:-1])
    first, last = np.ones(row.size, bool), np.ones(row.size, bool)
    first[1:], last[:-1] = ~joined, ~joined
    return row[first], begin[first], end[last], kind[first]
