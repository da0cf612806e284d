"""Spans of masks whose terms compare something of the query with something of the key (`facts/terms.py`).

Over a row of tiles such a term holds nowhere, somewhere or everywhere in a tile as the tile's keys lie below, across or above a
threshold that is the row's. So each term is true for certain on one interval of columns and possible on a wider one, found by
bisection, and a mask of a million tokens costs as many look-ups as it has rows of tiles. A tile in which one term of an AND is
possible, and the others certain, is PARTIAL where that term's bounds are attained. Other tiles that are possible and not certain
are looked at in their four corners; a true and a false one make a tile PARTIAL, the rest is for `exact.Settler`.
"""
from __future__ import annotations

from typing import Callable, Sequence

import numpy as np

from flexfa4.facts.interval import Analysis
from flexfa4.facts.terms import Comparison, OneSided, bounds_of, terms_of, value_of
from flexfa4.ir import Op

from .rectangles import Labels, bits_of, both, cut, earlier, holding, in_order, later, met, split
from .sides import Axis, Position, RunNumbers, Side
from .spans import PARTIAL_FULL, Kind, counted, joined, run_type, runs_in_order, runs_of_segments
from .term_sides import TermSides, Unfit, come_back

# Undecided tiles, and changes of a term along the columns, beyond which looking at every tile is as good.
_MOST_OPEN = 1 << 17
_MOST_CHANGES = 16
# Open tiles whose corners are alike, beyond which other ways have more to go by, in tiles a row and column.
_MOST_UNSETTLED = 2


def band_runs(analysis: Analysis, axes: Sequence[tuple[Axis, Axis]], heads: int, transposed: bool, settle: Callable,
              work) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """(row_ptr int32 [rows + 1], runs [n, 3]), as in Spans, of each batch and head; None where the mask is not made of such
    terms, or where another way is as good. axes: (the queries', the keys') of each, those of `heads` heads a batch.
    settle(cells): kinds, uint8 [n], of Cells that stay open. work: the Work of this build."""
    terms = terms_of(analysis.bound.graph)
    if terms is None:
        return None
    sampled = work.sampled
    try:
        return [_Mask(TermSides(analysis, terms, *pair, *divmod(row, heads)), transposed, settle, work).runs()
                for row, pair in enumerate(axes)]
    except Unfit:
        work.sampled = sampled
        return None


class _Mask:
    """The mask of one batch and head."""

    def __init__(self, sides: TermSides, transposed: bool, settle: Callable, work):
        self.sides, self.terms, self.transposed, self.settle, self.work = sides, sides.terms, transposed, settle, work
        self.rows, self.columns = (sides.kv, sides.q) if transposed else (sides.q, sides.kv)

    def runs(self) -> tuple[np.ndarray, np.ndarray]:
        """(row_ptr int32 [rows + 1], runs [n, 3]), as in Spans."""
        self.work.analysed += self.rows.count + self.columns.count
        return self._conjunction() if self.terms.conjunction else self._expression()

    def _conjunction(self) -> tuple[np.ndarray, np.ndarray]:
        """An AND of intervals is one: in each row the tiles that are possible, and among them those that are certain."""
        columns, rows = self.columns.count, self.rows.count
        may = must = inner = None, None
        known, back, first = True, None, True
        for term, sides in self.sides:
            one_sided = isinstance(term, OneSided)
            if not one_sided and isinstance(sides[0], Labels):
                back = sides if back is None else both(back, sides)
                continue
            possible, certain = self._intervals(term, sides)
            if first:
                may, must, first = possible, certain, False
            else:
                may = later(may[0], possible[0]), earlier(may[1], possible[1])
                inner = _but_one(inner, must, certain)
                must = later(must[0], certain[0]), earlier(must[1], certain[1])
            known = known and not one_sided and sides[0].dense and sides[1].dense
        if back is not None:
            return self._rectangles(back, may, must, known)
        # In each row [begin, first) and [last, end) are PARTIAL and [first, last) is FULL.
        begin = may[0] if isinstance(may[0], np.ndarray) else np.full(rows, may[0] or 0)
        end = may[1] if isinstance(may[1], np.ndarray) else np.full(rows, columns if may[1] is None else may[1])
        first, last = end.copy(), end.copy()
        some = np.less(0 if must[0] is None else must[0], columns if must[1] is None else must[1])
        np.copyto(first, 0 if must[0] is None else must[0], where=some)
        np.copyto(last, columns if must[1] is None else must[1], where=some)
        if known:
            open_ = [(begin if low is None else np.maximum(low, begin), end if high is None else np.minimum(high, end))
                     for low, high in _looks(must, inner)]
        else:
            open_ = [(begin, first), (last, end)]
        kinds = self._open_tiles(*_tiles(open_), known)
        if kinds is None:
            return _packed((begin, first, last, end), columns)
        full = np.flatnonzero(last > first)
        return self._segments((full, first[full], last[full]), _tiles([(begin, first), (last, end)]), kinds)

    def _rectangles(self, labels: tuple[Labels, Labels], may: tuple, must: tuple, known: bool) -> tuple[np.ndarray, np.ndarray]:
        """As `_conjunction`, of what the other terms leave of the rectangles of labels that come back."""
        found, count = met(*(labels[::-1] if self.transposed else labels), may, must), self.columns.count
        if found is None:
            raise Unfit
        runs = split(*found, count)
        partial = runs.those(full=False)
        # Where the other terms are certain, it is the labels that are not.
        open_ = [cut(*partial, (None, must[0]))] if must[0] is not None else []
        open_ += [cut(*partial, (later(*must), None))] if must[1] is not None else []
        kinds = self._open_tiles(*_tiles_of(open_), known) if open_ else None
        if kinds is None:
            return runs.packed(self.rows.count, count)
        return self._segments(runs.those(full=True), _tiles_of([partial]), kinds)

    def _intervals(self, term, sides) -> tuple:
        """((begin, end) of the columns where the term may hold, of those where it certainly does), each int64 [rows], int, or
        None for all columns before or after."""
        columns = self.columns.count
        if isinstance(term, OneSided):
            if (term.axis or self.rows.op) is self.rows.op:
                whole = (np.broadcast_to(x, (3, self.rows.count))[0] for x in (sides.hi, sides.lo))
                return tuple((None, np.where(x, columns, 0)) for x in whole)
            return tuple(_only_run(np.broadcast_to(x, (3, columns))[0]) for x in (sides.hi, sides.lo))
        f, g, below = self._oriented(term, sides)
        if term.op is Op.EQ:
            begin, end = g.from_low(f, False), g.from_high(f, True)
            # One that holds nowhere for certain is past its end from its begin on.
            return (g.from_high(f, False), g.from_low(f, True)), (begin, np.maximum(begin, end))
        beyond = (term.op is Op.LT) is not below
        if below:
            return (None, g.from_low(f, beyond)), (None, g.from_high(f, beyond))
        return (g.from_high(f, beyond), None), (g.from_low(f, beyond), None)

    def _oriented(self, term: Comparison, sides: tuple[Side, Side]) -> tuple[Side, Side, bool]:
        """(the rows' side, the columns' side, rising along them, whether that is on the left)."""
        f, g = sides[::-1] if self.transposed else sides
        below = term.q_left == self.transposed
        if g.rises():
            return f, g, below
        # x < y is -y < -x.
        f, g = -f, -g
        if g.rises():
            return f, g, not below
        raise Unfit

    def _expression(self) -> tuple[np.ndarray, np.ndarray]:
        """As `_conjunction`, for any expression: each row is cut where a term changes, and looked at once between cuts."""
        columns = self.columns.count
        cuts, marks, terms = [], [], []
        for term, sides in self.sides:
            if come_back(sides):
                found = met(*(sides[::-1] if self.transposed else sides), (None, None), (None, None))
                if found is None:
                    raise Unfit
                some, full = found[0], in_order(found[1])
                marks += [*some, *full]
                terms.append(lambda row, column, parts=(full, some): tuple(
                    holding(part, row << bits_of(columns) | column) for part in parts))
            elif isinstance(term, OneSided) and (term.axis or self.rows.op) is not self.rows.op:
                at = [np.broadcast_to(x, (3, columns))[0] for x in (sides.lo, sides.hi)]
                change = np.flatnonzero((at[0][1:] != at[0][:-1]) | (at[1][1:] != at[1][:-1])) + 1
                if change.size > _MOST_CHANGES:
                    raise Unfit
                cuts += change.tolist()
                terms.append(lambda row, column, at=at: tuple(x[column] for x in at))
            else:
                may, must = self._intervals(term, sides)
                cuts += [x for x in (*may, *must) if x is not None]
                terms.append(lambda row, column, runs=(must, may): tuple(_inside(row, column, *run) for run in runs))
        row, begin, end = self._between(cuts, marks)
        must, may = bounds_of(self.terms.expression, [term(row, begin) for term in terms])
        row, begin, end, kind = _merged(row, begin, end, may.astype(np.int8) + must)
        open_ = np.flatnonzero(kind == Kind.PARTIAL)
        i, j = _tiles([(begin[open_], end[open_])])
        tiles = row[open_][i], j
        kinds = self._open_tiles(*tiles, False)
        if kinds is None:
            return runs_in_order(row, begin, end, kind, self.rows.count, columns)
        full = kind == Kind.FULL
        return self._segments((row[full], begin[full], end[full]), tiles, kinds)

    def _between(self, cuts: list, marks: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, begin, end) of the segments that rows are cut into: at the same columns or at one each ([rows]), and at flat
        places, as in `Segments`."""
        columns = self.columns.count
        bounds = np.empty((self.rows.count, len(cuts) + 2), np.int64)
        bounds[:, 0], bounds[:, -1] = 0, columns
        for i, places in enumerate(cuts):
            bounds[:, i + 1] = places
        if not marks:
            bounds.sort(axis=1)
            row, which = np.nonzero(bounds[:, 1:] > bounds[:, :-1])
            return row, bounds[row, which], bounds[row, which + 1]
        bits = bits_of(columns)
        bounds |= np.arange(self.rows.count)[:, None] << bits
        flat = np.concatenate([bounds.reshape(-1), *marks])
        flat.sort()
        row, begin, end = flat[:-1] >> bits, flat[:-1] & ((1 << bits) - 1), flat[1:] & ((1 << bits) - 1)
        there = begin < end                               # of the last one of a row, the end is the next row's begin, 0
        return row[there], begin[there], end[there]

    def _segments(self, full: tuple, tiles: tuple, others: tuple) -> tuple[np.ndarray, np.ndarray]:
        """(row_ptr, runs) of FULL segments (row, begin, end) and of tiles (row, column), PARTIAL but for `others`: the flat
        places of some of them, and their kinds."""
        (row, begin, end), (i, j), (places, kinds) = full, tiles, others
        kind = np.full(i.size, int(Kind.PARTIAL))
        flat = i * self.columns.count + j
        order = np.argsort(flat)
        kind[order[np.searchsorted(flat, places, sorter=order)]] = kinds
        some = np.flatnonzero(kind)
        i, j, kind = i[some], j[some], kind[some]
        kind = np.concatenate([np.full(row.size, int(Kind.FULL)), kind])
        return runs_of_segments(np.concatenate([row, i]), np.concatenate([begin, j]), np.concatenate([end, j + 1]), kind,
                                self.rows.count, self.columns.count)

    # Tiles that stay open

    def _open_tiles(self, i: np.ndarray, j: np.ndarray, not_full: bool) -> tuple[np.ndarray, np.ndarray] | None:
        """Which of the tiles in rows i and columns j are not PARTIAL, as flat places and kinds; None where all are. not_full:
        each tile has an element that is masked."""
        if i.size and not_full and self._true_on_diagonal():
            other = (i != j).nonzero()[0]
            self.work.sampled += i.size - other.size
            i, j = i[other], j[other]
        if not i.size:
            return None
        mixed = self._mixed(i, j, not_full)
        if mixed is not None:
            count = np.count_nonzero(mixed)
            self.work.sampled += count
            if count == i.size:
                return None
            i, j = i[~mixed], j[~mixed]
        if i.size > _MOST_UNSETTLED * (self.rows.count + self.columns.count):
            raise Unfit
        q, kv = (j, i) if self.transposed else (i, j)
        kinds = self.settle(self.sides.cells(q, kv))
        others = np.flatnonzero(kinds != Kind.PARTIAL)
        return (i[others] * self.columns.count + j[others], kinds[others]) if others.size else None

    def _true_on_diagonal(self) -> bool:
        """Whether tiles on the diagonal are squares of equal positions, at which all terms hold."""
        if self.rows.tile != self.columns.tile or not (self.rows.on_grid or self.rows.first is self.columns.first):
            return False
        for term, (q, kv) in zip(self.terms.terms, self.sides.found):
            if isinstance(q, Position) and isinstance(kv, Position):
                a, b = (q.added, kv.added) if term.q_left else (kv.added, q.added)
                if not (a < b if term.op is Op.LT else a <= b if term.op is Op.LE else a == b):
                    return False
            elif not (isinstance(q, (RunNumbers, Labels)) and q is kv):
                return False
        return True

    def _mixed(self, i: np.ndarray, j: np.ndarray, not_full: bool) -> np.ndarray | None:
        """Whether the corners of each tile hold both values, or just a true one if `not_full`, bool [n]; None where some term is
        not known at a point."""
        values = []
        for term, sides in zip(self.terms.terms, self.sides.found):
            if isinstance(term, OneSided):
                on_rows = (term.axis or self.rows.op) is self.rows.op
                at = (np.broadcast_to(x, (3, (self.rows if on_rows else self.columns).count))[1:] for x in (sides.lo, sides.hi))
                lo, hi = at
                if (lo != hi).any():
                    return None
                values.append(lo[:, i][:, None] if on_rows else lo[:, j])
                continue
            f, g = sides[::-1] if self.transposed else sides
            f, g = f.corners(i), g.corners(j)
            if f is None or g is None:
                return None
            f = f[:, None]
            a, b = (f, g) if term.q_left != self.transposed else (g, f)
            values.append(a < b if term.op is Op.LT else a <= b if term.op is Op.LE else a == b)
        found = value_of(self.terms.expression, values)
        found = found if found.shape == (2, 2, i.size) else np.broadcast_to(found, (2, 2, i.size))
        some = found[0] | found[1]
        some = some[0] | some[1]
        if not_full:
            return some
        every = found[0] & found[1]
        return some & ~(every[0] & every[1])


def _tiles(segments: Sequence[tuple]) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of the tiles in segments of each row, given as (begin, end) arrays; an end may lie before its begin."""
    found = []
    for begin, end in segments:
        row = (end > begin).nonzero()[0]
        if row.size:
            found.append((row, begin.take(row), end.take(row)))
    return _tiles_of(found) if found else (np.zeros(0, np.int64), np.zeros(0, np.int64))


def _tiles_of(segments: Sequence[tuple]) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of the tiles in segments, given as (row, begin, end) arrays."""
    row, begin, end = segments[0] if len(segments) == 1 else (np.concatenate(x) for x in zip(*segments))
    length = end - begin
    if not (length > 1).nonzero()[0].size:
        return row, begin
    if int(length.sum()) > _MOST_OPEN:
        raise Unfit
    return row.repeat(length), counted(begin, length)


def _packed(bounds: tuple[np.ndarray, ...], columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr, runs) of rows that are a PARTIAL, a FULL and a PARTIAL run, some of them empty, between four `bounds` [rows]."""
    rows, dtype = bounds[0].size, run_type(columns)
    # Narrow arrays: beyond 128 KiB an allocator maps pages anew, which takes longer than the work on them.
    flat = np.empty((rows, 4), dtype)
    for k, bound in enumerate(bounds):
        flat[:, k] = bound
    flat = flat.reshape(-1)
    there = np.empty(flat.size, bool)
    np.less(flat[:-1], flat[1:], out=there[:-1])
    there[3::4] = False                 # from one row to the next
    at = there.nonzero()[0]
    runs = np.empty((at.size, 3), dtype)
    runs[:, 0] = flat.take(at)
    runs[:, 2] = PARTIAL_FULL.take(at & 1)
    at += 1
    runs[:, 1] = flat.take(at)
    pointer = np.zeros(rows + 1, np.int32)
    # The product has the sum of the four Booleans of a row in its upper byte.
    np.add.accumulate(there.view(np.int32) * 0x01010101 >> 24, out=pointer[1:])
    return pointer, runs


def _but_one(inner: tuple, must: tuple, found: tuple) -> tuple:
    """The columns past the begins of all terms but one, and before the ends of all but one, with one more term: certain in
    `found`, where those before it are all certain in `must`."""
    begin, end = inner
    if must[0] is not None and found[0] is not None:
        begin = later(begin, np.minimum(must[0], found[0]))
    if must[1] is not None and found[1] is not None:
        end = earlier(end, np.maximum(must[1], found[1]))
    return begin, end


def _looks(must: tuple, inner: tuple) -> list[tuple]:
    """The intervals of columns in which two terms or more are not certain, of those that are possible: left (from None: the first
    one) and right (to None: the last) of where all terms but one hold, and between those of terms that hold nowhere together."""
    found = []
    if inner[0] is not None:
        found.append((None, inner[0]))
    if must[0] is not None and must[1] is not None:
        found.append((must[1], must[0]))
    if inner[1] is not None:
        found.append((inner[1], None))
    return found


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
    """Whether columns lie in the intervals of their rows, each int64 [rows] or None."""
    found = np.ones(row.size, bool) if begin is None else begin[row] <= column
    return found if end is None else found & (column < end[row])


def _merged(row, begin, end, kind) -> tuple:
    """(row, begin, end, kind) of segments in order, neighbours of one kind joined and kind 0 dropped."""
    some = np.flatnonzero(kind)
    return joined(row[some], begin[some], end[some], kind[some])
