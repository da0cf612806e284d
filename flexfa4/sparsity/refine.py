"""The kinds of the tiles of a grid, by the first way that takes the mask."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from flexfa4.facts.interval import Analysis
from flexfa4.facts.interval_values import Space, negate
from flexfa4.ir import Graph, Op
from flexfa4.ir.bound import BoundGraph
from flexfa4.threads import cached_property

from . import diagonals
from .bands import band_runs
from .cells import Cells, tile_cells
from .exact import Settler
from .sides import grid_axes
from .spans import Kind, Spans, Tiling, spans_from_segments, spans_from_states, spans_of_masks
from .squares import BATCH, FAN, walk
from .tile_pairs import labels_in_any_order, pair_runs

# A mask of at most so many tiles is looked at in one piece: a look has a cost of its own, about that of 50,000 tiles.
_AT_ONCE = 1 << 17
# Squares along each axis of the coarsest grid, at most: fewer levels for a small mask, fewer rows of large FULL
# squares for a large one.
_COARSEST_SMALL, _COARSEST_LARGE = 32, 8
_SMALL = 512
_NUMPY = Space(None)


@dataclass
class Work:
    """What one build did, in tiles: `analysed` squares of any size went through interval analysis, `paired` were compared by what
    is known of their rows and of their columns; of the `tiles` of the mask, `sampled` had both kinds of element among a few
    points, `settled` were decided element by element, and `over_budget` were left PARTIAL undecided."""

    tiles: int = 0
    analysed: int = 0
    paired: int = 0
    sampled: int = 0
    settled: int = 0
    over_budget: int = 0


class Judge:
    """What is certain of cells. It knows no Refiner, which knows it: in a circle both would stay until Python's collector comes,
    with the pinned memory of the captures that came from a device."""

    def __init__(self, analysis: Analysis, work: Work):
        self.analysis, self.work = analysis, work

    def __call__(self, cells: Cells, shape: tuple[int, ...] | None = None) -> tuple[np.ndarray, np.ndarray, object]:
        """(empty, full, poison) of cells, bool of `shape`, to which their arrays broadcast, default [n]. A cell that may depend
        on an out-of-range look-up is neither."""
        shape = (len(cells),) if shape is None else shape
        self.work.analysed += math.prod(shape)
        env = {Op.B: (cells.b, cells.b), Op.H: (cells.h, cells.h), Op.Q: (cells.q0, cells.q1), Op.KV: (cells.k0, cells.k1)}
        with np.errstate(all="ignore"):
            found = self.analysis.run(env)
        empty, full = negate(found.hi), found.lo
        if found.poison is not False:
            empty, full = empty & negate(found.poison), full & negate(found.poison)
        return np.broadcast_to(empty, shape), np.broadcast_to(full, shape), found.poison

    def breaks(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions along queries and keys at which the mask takes a new form."""
        return self.analysis.breaks(Op.Q), self.analysis.breaks(Op.KV)


class Refiner:
    """Classifies the tiles of one mask. `bound` holds CPU tensors."""

    def __init__(self, bound: BoundGraph, tiling: Tiling, budget: int):
        self.bound, self.tiling, self.budget = bound, tiling, budget
        limits = {Op.B: (0, tiling.Bm - 1), Op.H: (0, tiling.Hm - 1), Op.Q: (0, tiling.q_len - 1), Op.KV: (0, tiling.kv_len - 1)}
        self.analysis = Analysis(bound, limits, _NUMPY)
        self.work = Work(tiling.Bm * tiling.Hm * tiling.q_tiles * tiling.kv_tiles)

    @cached_property
    def judge(self) -> Judge:
        return Judge(self.analysis, self.work)

    @cached_property
    def settler(self) -> Settler:
        return Settler(self.bound, self.judge, self.judge.breaks, self.work, self.budget)

    def of(self, graph: Graph) -> "Refiner":
        """As `Analysis.of`: judges cells for another graph."""
        other = Refiner.__new__(Refiner)
        other.bound, other.tiling, other.budget = replace(self.bound, graph=graph), self.tiling, self.budget
        other.analysis, other.work = self.analysis.of(graph), self.work
        return other

    def _settled(self, cells: Cells, undecided: np.ndarray, poison, shape: tuple[int, ...]) -> np.ndarray:
        """The kinds, uint8, of cells that `judge` left open: those at flat places `undecided` of its result's `shape`."""
        bad = poison if poison is False else np.broadcast_to(poison, shape).reshape(-1)[undecided]
        return self.settler.kinds(cells, bad)

    def may_look_past(self) -> bool:
        """Whether one look at all positions leaves it open that the mask depends on a look-up past the end of a capture."""
        with np.errstate(all="ignore"):
            return bool(np.any(self.analysis.run(self.analysis.limits).poison))

    def spans(self, transposed: bool, device: torch.device | None = None) -> Spans:
        """The kinds of all tiles. device: where they are wanted; they may be on the CPU all the same."""
        axes = [grid_axes(self.tiling) for _ in range(self.tiling.Bm * self.tiling.Hm)]
        how = self.analysis, axes, self.tiling.Hm, transposed, lambda cells: self.settler.kinds(cells, False), self.work
        found = band_runs(*how)
        if found is not None:
            return spans_of_masks(found, self.tiling, transposed, device)
        if diagonals.applies(self.bound, self.tiling, transposed):
            found = diagonals.diagonal_spans(self._kinds, self.tiling, transposed)
            if found is not None:
                return found
        # Other masks have large squares of one kind as a rule; only where they have not, every pair of tiles is looked at.
        if not labels_in_any_order(self.analysis):
            spans = self._all_at_once(transposed) if self.work.tiles <= _AT_ONCE else self._refine(transposed, attempt=True)
            if spans is not None:
                return spans
        found = pair_runs(*how)
        if found is not None:
            return spans_of_masks(found, self.tiling, transposed, device)
        return self._all_at_once(transposed) if self.work.tiles <= _AT_ONCE else self._refine(transposed)

    def _all_at_once(self, transposed: bool) -> Spans:
        """Every tile in one look. Rows and columns of tiles are axes of their own, so that what depends on one of them alone, as
        a look-up does, is worked out once for it."""
        t = self.tiling
        shape = (t.Bm * t.Hm, t.q_tiles, t.kv_tiles)
        row, i, j = (np.arange(n) for n in shape)
        cells = tile_cells(t, row[:, None, None], i[:, None], j, 1)
        empty, full, poison = self.judge(cells, shape)
        states = np.multiply(full, np.uint8(Kind.FULL), dtype=np.uint8)
        undecided = np.flatnonzero(~(empty | full))
        if undecided.size:
            row, rest = np.divmod(undecided, t.q_tiles * t.kv_tiles)
            i, j = np.divmod(rest, t.kv_tiles)
            states.reshape(-1)[undecided] = self._settled(tile_cells(t, row, i, j, 1), undecided, poison, shape)
        return spans_from_states(states.reshape(t.Bm, t.Hm, t.q_tiles, t.kv_tiles), t, transposed)

    def _refine(self, transposed: bool, attempt: bool = False) -> Spans | None:
        """Every tile, from the coarsest squares down. attempt: None where that is much work."""
        tiling = self.tiling
        size, side = 1, max(tiling.q_tiles, tiling.kv_tiles)
        coarsest = _COARSEST_SMALL if side <= _SMALL else _COARSEST_LARGE
        while side > coarsest * size:
            size *= FAN
        shape = (tiling.Bm * tiling.Hm, -(-tiling.q_tiles // size), -(-tiling.kv_tiles // size))
        found = _Segments(tiling, transposed)
        done = walk(found, size, tuple(x.reshape(-1) for x in np.indices(shape)), self, attempt)
        return found.spans() if done else None

    def classify(self, row: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """The kinds of given tiles, uint8 [n]."""
        return self._kinds(tile_cells(self.tiling, row, i, j, 1))

    def _kinds(self, cells: Cells) -> np.ndarray:
        """The kinds of cells of at most a tile's size, uint8 [n]."""
        kinds = np.empty(len(cells), np.uint8)
        for first in range(0, len(cells), BATCH):
            part = cells if len(cells) <= BATCH else cells.take(slice(first, first + BATCH))
            empty, full, poison = self.judge(part)
            kinds[first:first + BATCH] = np.multiply(full, np.uint8(Kind.FULL), dtype=np.uint8)
            undecided = np.flatnonzero(~(empty | full))
            if undecided.size:
                kinds[first + undecided] = self._settled(part.take(undecided), undecided, poison, (len(part),))
        return kinds


class _Segments:
    """Runs of tiles of a grid found so far, unordered: (row, begin, end, kind) arrays of rows and columns of tiles."""

    def __init__(self, tiling: Tiling, transposed: bool):
        self.tiling, self.transposed, self.parts = tiling, transposed, []

    def spans(self) -> Spans:
        empty = np.zeros(0, np.int64)
        row, begin, end, kind = (np.concatenate([empty, *x]) for x in (zip(*self.parts) if self.parts else [()] * 4))
        return spans_from_segments(row, begin, end, kind, self.tiling, self.transposed)

    def cells(self, row: np.ndarray, i: np.ndarray, j: np.ndarray, size: int) -> Cells:
        return tile_cells(self.tiling, row, i, j, size)

    def there(self, row: np.ndarray, i: np.ndarray, j: np.ndarray, size: int) -> np.ndarray:
        return (i * size < self.tiling.q_tiles) & (j * size < self.tiling.kv_tiles)

    def emit(self, row: np.ndarray, i: np.ndarray, j: np.ndarray, size: int, kind: Kind) -> None:
        """The rows of tiles that squares cover."""
        if not row.size:
            return
        rows, columns = self.tiling.q_tiles, self.tiling.kv_tiles
        if self.transposed:
            i, j, rows, columns = j, i, columns, rows
        line = i * size
        begin = j * size
        end = np.minimum(begin + size, columns)
        if size > 1:
            line = (line[:, None] + np.arange(size)).reshape(-1)
            row, begin, end = np.repeat(row, size), np.repeat(begin, size), np.repeat(end, size)
            inside = line < rows
            if not inside.all():
                row, line, begin, end = row[inside], line[inside], begin[inside], end[inside]
        self.parts.append((row * rows + line, begin, end, np.full(line.size, int(kind), np.int64)))
