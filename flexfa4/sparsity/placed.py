"""Runs of the tiles of blocks, straight from intervals and rectangles.

All blocks' tiles, one block after another, are tiles of an axis like those of a grid. Beside kinds: which lie inside a label.
"""
from __future__ import annotations

import numpy as np

from flexfa4.facts.documents import label_tests
from flexfa4.facts.terms import terms_of
from flexfa4.ir import Op

from .bands import band_runs
from .documents import Blocks
from .label_runs import row_of, runs_along, sides_of
from .refine import Refiner
from .sides import Axis, alike, grid_axes
from .spans import Kind, Tiling, counted, joined, row_pointer
from .term_sides import TermSides, Unfit
from .tile_pairs import pair_runs

# A kind of run beside `Kind`'s: PARTIAL, and every label test of the mask holds in the whole tile.
INSIDE = 3


def placed_runs(refiner: Refiner, blocks: Blocks, tiling: Tiling, most: int,
                pairs: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """(row_ptr, runs int [n, 3]), as in WorkSpans of `most` rows a mask; None where the mask has other terms than `band_runs`
    takes, and, if `pairs`, `pair_runs`, or another way is as good."""
    masks = [_Tiles(blocks, row, tiling) for row in range(tiling.Bm * tiling.Hm)]
    if not all(mask.columns.size for mask in masks) or terms_of(refiner.bound.graph) is None:
        return None
    axes = [mask.axes(tiling) for mask in masks]
    try:
        one = [_of_one_label(refiner, *divmod(row, tiling.Hm), pair) for row, pair in enumerate(axes)]
    except Unfit:
        return None
    how = refiner.analysis, axes, tiling.Hm, False, lambda cells: refiner.settler.kinds(cells, False), refiner.work
    found, rows, parts = band_runs(*how), [], []
    if found is None and not pairs:
        return None
    if found is None:
        found = pair_runs(*how, [_Finish(mask, *whole) for mask, whole in zip(masks, one)])
        return None if found is None else _of_masks(masks, found, most)
    for i, (mask, whole, spans) in enumerate(zip(masks, one, found)):
        row, *run = mask.runs(whole, *spans)
        rows.append(row + i * most)
        parts.append(np.stack(run, axis=1))
    return row_pointer(np.concatenate(rows), most * len(masks)), np.concatenate(parts)


def _of_masks(masks: list["_Tiles"], found: list[tuple], most: int) -> tuple[np.ndarray, np.ndarray]:
    """As `placed_runs`, of (row_ptr, runs) of each mask whose kinds are final."""
    counts = np.zeros((len(masks), most), np.int64)
    for mask, (pointer, runs), count in zip(masks, found, counts):
        count[:pointer.size - 1] = np.diff(pointer)
        if mask.window is not None:
            runs[:, :2] -= mask.low.repeat(count[:mask.low.size])[:, None]
    pointer = np.zeros(counts.size + 1, np.int32)
    counts.cumsum(out=pointer[1:])
    return pointer, found[0][1] if len(found) == 1 else np.concatenate([runs for _, runs in found])


class _Tiles:
    """The tiles of the blocks of one mask. low, high: of each row, the first and one past the last column of its block, where
    columns are the key tiles of all blocks; ragged: whether the last one has keys past the block's. int64 and bool [rows]."""

    def __init__(self, blocks: Blocks, row: int, tiling: Tiling):
        own = slice(*blocks.row.searchsorted((row, row + 1)).tolist())
        self.queries, self.keys = (blocks.q0[own], blocks.q1[own]), (blocks.k0[own], blocks.k1[own])
        self.count, self.width = (x[own] for x in blocks.tiles(tiling))
        self.columns = np.arange(self.width.size).repeat(self.width)
        end = self.width.cumsum()
        self.low, self.high = (end - self.width).repeat(self.count), end.repeat(self.count)
        self.ragged = ((self.keys[1] - self.keys[0]) % tiling.kv_tile != 0).repeat(self.count)

    def axes(self, tiling: Tiling) -> tuple[Axis, Axis]:
        """(the queries', the keys'); the same tiles where both are cut alike."""
        if self.count.size == 1 and not self.keys[0][0] and self.keys[1][0] == tiling.kv_len:
            return grid_axes(tiling)
        block = np.arange(self.count.size).repeat(self.count)
        line = counted(0, self.count)
        q = Axis(Op.Q, tiling.q_len, tiling.q_tile, _ends(*self.queries, tiling.q_tile, block, line))
        if alike(tiling) and all(np.array_equal(*x) for x in zip(self.queries, self.keys)):
            return q, q.like(Op.KV)
        line = counted(0, self.width)
        return q, Axis(Op.KV, tiling.kv_len, tiling.kv_tile, _ends(*self.keys, tiling.kv_tile, self.columns, line))

    @property
    def window(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The columns that rows see, as `pair_runs` takes them."""
        return None if self.count.size == 1 else (self.low, self.high)

    def runs(self, one: list[np.ndarray], pointer: np.ndarray, runs: np.ndarray) -> tuple:
        """(row, begin, end, kind) of maximal runs in order, columns counted from the block's first; from runs over all columns
        without INSIDE."""
        row = np.arange(pointer.size - 1).repeat(np.diff(pointer))
        begin, end, kind = np.array(runs.T, np.int64)
        low, high = self.low.take(row), self.high.take(row)
        if self.count.size > 1:
            # Past its budget a build leaves tiles PARTIAL, be they those of other blocks.
            begin, end = np.maximum(begin, low), np.minimum(end, high)
        found = row, begin, end, kind
        ragged = (kind == Kind.FULL) & (end == high) & self.ragged.take(row)
        if ragged.any():
            found = _tails(found, ragged)
        row, begin, end, kind = _marked(found, one)
        there = (begin < end).nonzero()[0]
        row, begin, end, kind = joined(*(x.take(there) for x in (row, begin, end, kind)))
        low = self.low.take(row)
        return row, begin - low, end - low, kind


class _Finish:
    """Makes kinds of tiles final, those of other blocks EMPTY and some INSIDE, for `pair_runs`. queries, keys: which tiles have
    one label."""

    def __init__(self, mask: _Tiles, queries: np.ndarray, keys: np.ndarray):
        self.mask, self.queries, self.keys, self.window = mask, queries, keys, mask.window

    def __call__(self, kinds: np.ndarray, r0: int, r1: int, c0: int, c1: int) -> None:
        if self.window is not None:
            column = np.arange(c0, c1)
            kinds[(column < self.mask.low[r0:r1, None]) | (column >= self.mask.high[r0:r1, None])] = Kind.EMPTY
        inside = self.queries[r0:r1, None] & self.keys[None, c0:c1]
        kinds[inside & (kinds == Kind.PARTIAL)] = INSIDE
        self._tails(kinds, self.mask.ragged[r0:r1].nonzero()[0], self.mask.high[r0:r1] - 1 - c0, INSIDE)

    def coarse(self, kinds: np.ndarray, r0: int, r1: int) -> None:
        """The same of several columns together."""
        self._tails(kinds, self.mask.ragged[r0:r1].nonzero()[0], np.full(r1 - r0, kinds.shape[1] - 1), Kind.PARTIAL)

    @staticmethod
    def _tails(kinds: np.ndarray, row: np.ndarray, column: np.ndarray, kind: int) -> None:
        """A FULL tile that reaches past its block's last key is not to be taken whole."""
        column = column[row]
        full = kinds[row, column] == Kind.FULL
        kinds[row[full], column[full]] = kind


def _ends(begin: np.ndarray, end: np.ndarray, tile: int, block: np.ndarray, line: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first, last) position of the tiles `line` of blocks."""
    first = begin.take(block) + line * tile
    return first, np.minimum(first + tile, end.take(block)) - 1


def _tails(segments: tuple, cut: np.ndarray) -> tuple:
    """Segments of which those `cut` give their last tile to one of kind INSIDE. To a kernel a FULL tile that reaches past its
    block's last key is not to be taken whole."""
    count = 1 + cut
    row, begin, end, kind = (x.repeat(count) for x in segments)
    tail = (count.cumsum() - 1)[cut]
    begin[tail], kind[tail] = end[tail] - 1, INSIDE
    end[tail - 1] -= 1
    return row, begin, end, kind


def _of_one_label(refiner: Refiner, b: int, h: int, axes: tuple[Axis, Axis]) -> list[np.ndarray]:
    """Whether each tile of (the queries, the keys) has one label throughout, in all label tests of the mask: bool [n]. Unfit
    where these may read out of range."""
    found = [np.ones(axis.count, bool) for axis in axes]
    sides = TermSides(refiner.analysis, terms_of(refiner.bound.graph), *axes, b, h)
    for n, pair in label_tests(refiner.bound.graph).items():
        for axis, begins, one in zip(axes, _begins(refiner, sides, pair), found):
            one &= begins.searchsorted(axis.first, "right") == begins.searchsorted(axis.last, "right")
    return found


def _begins(refiner: Refiner, sides: TermSides, pair) -> list[np.ndarray]:
    """Where runs of labels begin along (the queries, the keys), int64 [runs] each."""
    table = refiner.analysis.tables.labels(pair)
    row = None if table is None else row_of(refiner.bound, table, sides.b, sides.h)
    along = None if row is None else sides_of(refiner.bound, table)
    if along is not None:
        runs = [runs_along(table, row, side, axis.length) for side, axis in zip(along, (sides.q, sides.kv))]
        if None not in runs:
            return [bounds[:-1] for bounds, _, _ in runs]
    return [labels.begins for labels in sides.of_pair(pair)]


def _marked(segments: tuple, one: list[np.ndarray]) -> tuple:
    """Segments of which the PARTIAL ones are cut where keys of one label begin and end; INSIDE where queries have one too: it is
    the same, since some query sees a key."""
    row, begin, end, kind = segments
    queries, keys = one
    starts = np.concatenate([[0], (keys[1:] != keys[:-1]).nonzero()[0] + 1, [keys.size]])
    partial = (kind == Kind.PARTIAL) & (begin < end)
    piece = starts.searchsorted(begin, "right") - 1
    count = np.where(partial, starts.searchsorted(end) - piece, 1)
    if (count > 1).any():
        place = counted(0, count)
        row, begin, end, kind, piece, partial = (x.repeat(count) for x in (row, begin, end, kind, piece, partial))
        piece += place
        begin = np.where(partial, np.maximum(begin, starts.take(piece, mode="clip")), begin)
        end = np.where(partial, np.minimum(end, starts.take(piece + 1, mode="clip")), end)
    at = partial.nonzero()[0]
    kind[at[queries.take(row.take(at)) & keys.take(begin.take(at))]] = INSIDE
    return row, begin, end, kind
