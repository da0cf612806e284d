"""Runs of masks made of terms (`facts/terms.py`), from a look at every pair of a tile of rows and one of columns.

For terms that are no intervals and have no rectangles, or too many: labels in any order, ranks in any order. A look takes some
nanoseconds, since it compares what is known of the two tiles (`term_sides`), and of labels their sets (`shared_labels`). Where
there are more pairs than `MOST_PAIRS`, columns are looked at several together, and what is not certain of them stays PARTIAL.
"""
from __future__ import annotations

from typing import Callable, Protocol, Sequence

import numpy as np

from flexfa4.facts.interval import Analysis
from flexfa4.facts.terms import OneSided, bounds_of, terms_of
from flexfa4.ir import Op

from .rectangles import both
from .shared_labels import SharedLabels
from .sides import Axis
from .spans import Kind, run_type, runs_of_states
from .term_sides import TermSides, Unfit, come_back

# Pairs of tiles that one build looks at: the square of a million tokens in tiles of 128 x 128, half as many again. Of each an
# answer may hold half a run.
MOST_PAIRS = 3 << 25
# Pairs looked at together: their arrays stay in the last-level cache.
_AT_ONCE = 1 << 20
# Tiles in which two terms or more are not certain that one build looks into, in the order of rows; others stay PARTIAL.
_MOST_OPEN = 1 << 17


class Finish(Protocol):
    """Makes the kinds of tiles of a mask final. window: (first, one past the last) column that each row sees, int64 [rows] both,
    ascending; None: all."""

    window: tuple[np.ndarray, np.ndarray] | None

    def __call__(self, kinds: np.ndarray, r0: int, r1: int, c0: int, c1: int) -> None:
        """kinds: uint8 of rows r0 .. r1 - 1 and columns c0 .. c1 - 1, changed in place."""

    def coarse(self, kinds: np.ndarray, r0: int, r1: int) -> None:
        """The same of all columns, several taken together."""


def pair_runs(analysis: Analysis, axes: Sequence[tuple[Axis, Axis]], heads: int, transposed: bool, settle: Callable, work,
              finish: Sequence[Finish] | None = None) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """As `bands.band_runs`, of tiles made final by `finish` of their batch and head."""
    terms = terms_of(analysis.bound.graph)
    if terms is None:
        return None
    grids = [_Grid(*(pair[::-1] if transposed else pair), None if finish is None else finish[i].window)
             for i, pair in enumerate(axes)]
    together = -(-sum(grid.pairs for grid in grids) // MOST_PAIRS)
    if together > 1:
        if not all(grid.columns.on_grid for grid in grids):
            return None
        grids = [grid.of_several(together) for grid in grids]
    look, found = _Looks(transposed, settle, work), []
    try:
        for i, grid in enumerate(grids):
            last = None if finish is None else finish[i] if together <= 1 else _coarse(finish[i])
            q, kv = grid.axes[::-1] if transposed else grid.axes
            runs = look.runs(TermSides(analysis, terms, q, kv, *divmod(i, heads)), grid, last)
            found.append(_expanded(*runs, together, axes[i][not transposed].count))
    except Unfit:
        return None
    return found


def _coarse(finish: Finish) -> Callable:
    return lambda kinds, r0, r1, c0, c1: finish.coarse(kinds, r0, r1)


def _expanded(pointer: np.ndarray, runs: np.ndarray, together: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr, runs) in columns, of runs in `together` of them."""
    if together <= 1:
        return pointer, runs
    found = runs.astype(run_type(columns))
    found[:, :2] *= together
    np.minimum(found[:, 1], columns, out=found[:, 1])
    return pointer, found


def labels_in_any_order(analysis: Analysis) -> bool:
    """Whether a term is an equality of labels that come back, or change too often for runs: `pair_runs` is the way, then."""
    terms = terms_of(analysis.bound.graph)
    pairs = () if terms is None else [t.pair for t in terms.terms if not isinstance(t, OneSided) and t.pair is not None]
    tables = [analysis.tables.labels(pair) for pair in pairs]
    return any(table is None or not table.rising for table in tables)


class _Grid:
    """Tiles of rows and of columns. parts: (first row, one past the last, first column, one past the last) of what is looked at
    together; pairs: how many tiles that is."""

    def __init__(self, rows: Axis, columns: Axis, window: tuple | None = None):
        self.axes = self.rows, self.columns = rows, columns
        low, high = (np.zeros(rows.count, np.int64), np.full(rows.count, columns.count)) if window is None else window
        step = max(1, _AT_ONCE // max(1, int((high - low).max())))
        begin = np.arange(0, rows.count, step)
        end = np.minimum(begin + step, rows.count)
        self.parts = np.stack([begin, end, low[begin], high[end - 1]], axis=1).tolist()
        self.pairs = sum((r1 - r0) * (c1 - c0) for r0, r1, c0, c1 in self.parts)

    def of_several(self, together: int) -> "_Grid":
        """With so many columns in one."""
        return _Grid(self.rows, Axis(self.columns.op, self.columns.length, self.columns.tile * together))


class _Looks:
    """Looks at the pairs of tiles of one mask after another, within one budget of tiles to look into."""

    def __init__(self, transposed: bool, settle: Callable, work):
        self.transposed, self.settle, self.work, self.left = transposed, settle, work, _MOST_OPEN

    def runs(self, sides: TermSides, grid: _Grid, finish: Callable | None) -> tuple[np.ndarray, np.ndarray]:
        """(row_ptr int32 [rows + 1], runs [n, 3])."""
        terms = self._terms(sides, grid)
        self.work.paired += grid.pairs
        parts, count = [], []
        for part in grid.parts:
            kinds = self._kinds(sides, terms, part)
            if finish is not None:
                finish(kinds, *part)
            pointer, runs = runs_of_states(kinds)
            if part[2]:
                runs[:, :2] += part[2]
            parts.append(runs.astype(run_type(grid.columns.count), copy=False))
            count.append(np.diff(pointer))
        pointer = np.zeros(grid.rows.count + 1, np.int32)
        np.concatenate(count).cumsum(out=pointer[1:])
        return pointer, np.concatenate(parts)

    def _terms(self, sides: TermSides, grid: _Grid) -> tuple:
        """(expression, looks): for each term of it what gives (certain, possible) of a part of the grid, Booleans that broadcast
        to it, and whether a tile has both values where it is possible and not certain."""
        looks, back = [], None
        for term in sides.terms.terms:
            if isinstance(term, OneSided):
                looks.append((self._one_sided(term, sides.of(term), grid), False))
                continue
            pair = self._sides(sides, term)
            if not come_back(pair):
                looks.append((_compared(term.op, *pair, term.q_left != self.transposed), pair[0].dense and pair[1].dense))
            elif sides.terms.conjunction:
                back = pair if back is None else both(back, pair)
            else:
                looks.append((_labels(pair), True))
        if back is not None:
            looks.append((_labels(back), True))
        if not sides.terms.conjunction:
            return sides.terms.expression, looks
        expression = 0
        for i in range(1, len(looks)):
            expression = (Op.AND, expression, i)
        return expression, looks

    def _sides(self, sides: TermSides, term) -> tuple:
        """(rows' side, columns' side) of a comparison. Equal labels that rise along neither are told apart by sets."""
        try:
            found = sides.of(term)
        except Unfit:
            if term.op is not Op.EQ:
                raise
            found = sides.equal(term)
        if term.op is Op.EQ and not come_back(found) and not all(side.rises() or (-side).rises() for side in found):
            found = sides.equal(term)
        return found[::-1] if self.transposed else found

    @staticmethod
    def _one_sided(term: OneSided, interval, grid: _Grid) -> Callable:
        if (term.axis or grid.rows.op) is grid.rows.op:
            lo, hi = (np.broadcast_to(x, (3, grid.rows.count))[0] for x in (interval.lo, interval.hi))
            return lambda r0, r1, c0, c1: (lo[r0:r1, None], hi[r0:r1, None])
        lo, hi = (np.broadcast_to(x, (3, grid.columns.count))[0] for x in (interval.lo, interval.hi))
        return lambda r0, r1, c0, c1: (lo[None, c0:c1], hi[None, c0:c1])

    def _kinds(self, sides: TermSides, terms: tuple, part: list[int]) -> np.ndarray:
        """uint8 [rows, columns] of a part of the grid."""
        expression, looks = terms
        r0, r1, c0, c1 = part
        shape = r1 - r0, c1 - c0
        known = [look(*part) for look, _ in looks]
        must, may = (np.broadcast_to(x, shape) for x in bounds_of(expression, known))
        kinds = may.view(np.uint8) + must.view(np.uint8)
        if len(looks) == 1 and looks[0][1]:
            return kinds
        # Where one term alone is not certain and has both values, so has the mask.
        doubts = sum(np.add(a != b, 0 if attained else (a != b), dtype=np.uint8) for (a, b), (_, attained) in zip(known, looks))
        open_ = np.flatnonzero((kinds == Kind.PARTIAL) & (doubts > 1))
        at = open_[:self.left]
        self.left -= at.size
        self.work.over_budget += open_.size - at.size
        if at.size:
            i, j = np.divmod(at, shape[1])
            i, j = i + r0, j + c0
            kinds.reshape(-1)[at] = self.settle(sides.cells(*((j, i) if self.transposed else (i, j))))
        return kinds


def _labels(pair: tuple) -> Callable:
    shared = SharedLabels(*pair)
    rows, columns = shared.row_label, shared.column_label
    return lambda r0, r1, c0, c1: (rows[r0:r1, None] == columns[None, c0:c1], shared.of_rows(r0, r1)[:, c0:c1])


def _compared(op: Op, f, g, f_left: bool) -> Callable:
    """Of the sides of rows, `f`, and of columns."""
    def look(r0, r1, c0, c1):
        rows, columns = (f.lo[r0:r1, None], f.hi[r0:r1, None]), (g.lo[None, c0:c1], g.hi[None, c0:c1])
        (a_lo, a_hi), (b_lo, b_hi) = (rows, columns) if f_left else (columns, rows)
        if op is Op.EQ:
            return (a_lo == b_hi) & (a_hi == b_lo), (a_lo <= b_hi) & (b_lo <= a_hi)
        less = np.less if op is Op.LT else np.less_equal
        return less(a_hi, b_lo), less(a_lo, b_hi)

    return look
