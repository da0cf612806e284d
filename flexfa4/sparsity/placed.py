"""Runs of the tiles of blocks, straight from intervals and rectangles.

All blocks' tiles, one block after another, are tiles of an axis like those of a grid. Beside kinds: which lie inside a label.
"""
from __future__ import annotations

import numpy as np

from flexfa4.facts.documents import label_tests
from flexfa4.ir import Op

from .bands import alike, band_runs, grid_axes
from .documents import Blocks
from .label_runs import row_of, runs_along, sides_of
from .refine import Refiner
from .sides import Axis
from .spans import Kind, Tiling, counted, joined, row_pointer

# A kind of run beside `Kind`'s: PARTIAL, and every label test of the mask holds in the whole tile.
INSIDE = 3


def placed_runs(refiner: Refiner, blocks: Blocks, tiling: Tiling, most: int) -> tuple[np.ndarray, np.ndarray] | None:
    """(row_ptr, runs int64 [n, 3]), as in WorkSpans of `most` rows a mask; None where the mask has other terms than `band_runs`
    takes, or another way is as good."""
    masks = [_Tiles(blocks, row, tiling) for row in range(tiling.Bm * tiling.Hm)]
    if not all(mask.columns.size for mask in masks):
        return None
    axes = [mask.axes(tiling) for mask in masks]
    one = [_of_one_label(refiner, *divmod(row, tiling.Hm), pair) for row, pair in enumerate(axes)]
    if None in one:
        return None
    found = band_runs(refiner.analysis, axes, tiling.Hm, False, lambda cells: refiner.settler.kinds(cells, False), refiner.work)
    if found is None:
        return None
    rows, parts = [], []
    for i, (mask, whole, spans) in enumerate(zip(masks, one, found)):
        row, *run = mask.runs(whole, *spans)
        rows.append(row + i * most)
        parts.append(np.stack(run, axis=1))
    return row_pointer(np.concatenate(rows), most * len(masks)), np.concatenate(parts)


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


def _of_one_label(refiner: Refiner, b: int, h: int, axes: tuple[Axis, Axis]) -> list[np.ndarray] | None:
    """Whether each tile of (the queries, the keys) has one label throughout, in all label tests of the mask: bool [n]; None where
    what these read is not known by runs."""
    found = [np.ones(axis.count, bool) for axis in axes]
    for pair in label_tests(refiner.bound.graph).values():
        table = refiner.analysis.tables.labels(pair)
        row = None if table is None else row_of(refiner.bound, table, b, h)
        sides = None if row is None else sides_of(refiner.bound, table)
        if sides is None:
            return None
        for axis, side, one in zip(axes, sides, found):
            runs = runs_along(table, row, side, axis.length)
            if runs is None:
                return None
            one &= runs[0].searchsorted(axis.first, "right") == runs[0].searchsorted(axis.last, "right")
    return found


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
