"""The spans that a kernel's work tiles walk, for masks of documents: tiles that begin where a document does, and the tiles in
which its labels need no look."""
from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from flexfa4.facts.documents import label_tests, only_label_tests
from flexfa4.facts.simplify import simplify
from flexfa4.ir.bound import BoundGraph
from flexfa4.threads import cached_property

from .cells import Cells
from .documents import Blocks, blocks_of
from .halves import of_halves, paired
from .placed import INSIDE, placed_runs
from .refine import Refiner
from .spans import Kind, Tiling, counted, runs_of_segments
from .squares import FAN, walk
from .tile_pairs import labels_in_any_order

# Squares of the coarsest grid along a side, at most.
_COARSEST = 32


@dataclass(frozen=True, eq=False)
class WorkSpans:
    """Runs of kv tiles for each work tile, whose rows and keys may begin anywhere.

    row_ptr: int32 [rows + 1]; runs: int32 [n, 3] of (begin, end, kind), kind PARTIAL, FULL or INSIDE; tiles: int32 [rows, 4] of
    (q0, q1, k0, k1): queries q0 .. q1 - 1, at most `q_tile` of them, and kv tile t holds keys from k0 + t * kv_tile on, of
    which those from k1 on are masked. FULL tiles end before k1. row = (mb * Hm + mh) * q_tiles + tile; a mask row of fewer work
    tiles than another ends in some without queries. On the CPU. by_document: tiles begin with documents in some mask row.
    halved: kinds are those of two halves of the queries (`halves`).
    """

    row_ptr: torch.Tensor
    runs: torch.Tensor
    tiles: torch.Tensor
    q_tile: int
    kv_tile: int
    Bm: int
    Hm: int
    by_document: bool
    halved: bool = False

    @property
    def q_tiles(self) -> int:
        return len(self.tiles) // (self.Bm * self.Hm)

    @cached_property
    def present(self) -> np.ndarray:
        """Which rows hold queries: bool [rows]."""
        return (self.tiles[:, 0] < self.tiles[:, 1]).numpy()

    @cached_property
    def mean_keys(self) -> float:
        """Keys in the tiles of a row that holds queries, on average."""
        runs = self.runs.numpy()
        return int((runs[:, 1] - runs[:, 0]).sum(dtype=np.int64)) * self.kv_tile / max(1, int(self.present.sum()))

    def counts(self) -> dict[int, int]:
        """Tiles in runs of each kind; halved: halves of tiles."""
        runs = self.runs.numpy().astype(np.int64)
        length = runs[:, 1] - runs[:, 0]
        if self.halved:
            halves = of_halves(runs[:, 2])
            return {kind: sum(int(length[half == kind].sum()) for half in halves) for kind in (Kind.PARTIAL, Kind.FULL, INSIDE)}
        return {kind: int(length[runs[:, 2] == kind].sum()) for kind in (Kind.PARTIAL, Kind.FULL, INSIDE)}

    def __repr__(self) -> str:
        counts = self.counts()
        how = "documents" if self.by_document else "the grid"
        return (f"WorkSpans({self.present.sum():,} work tiles of {self.q_tile} rows along {how}, kv tiles of {self.kv_tile}: "
                f"{counts[Kind.FULL]:,} full, {counts[Kind.PARTIAL]:,} partial, {counts[INSIDE]:,} partial inside a document)")


def has_label_tests(bound: BoundGraph) -> bool:
    """Whether `work_spans` takes the mask: a property of its graph alone."""
    return bool(label_tests(simplify(bound.graph)))


def work_spans(bound: BoundGraph, tiling: Tiling, budget: int, halved: bool = False) -> WorkSpans:
    """The spans of a mask with label tests. bound: captures on the CPU; budget: elements that may be evaluated to settle tiles.
    halved: with kinds for two halves of the queries of a tile.

    Raises LookupOutOfRange where the mask depends on a look-up past the end of a capture.
    """
    bound = replace(bound, graph=simplify(bound.graph))
    fine = replace(tiling, q_tile=tiling.q_tile // 2) if halved else tiling
    refiner = Refiner(bound, fine, budget)
    tables = refiner.analysis.labels
    blocks = blocks_of(bound, tiling, next((tables[n] for n in label_tests(bound.graph) if n in tables), None))
    found = _Builder(refiner, blocks, fine).spans()
    return _halved(found, blocks, fine, tiling) if halved else found


def _halved(spans: WorkSpans, blocks: Blocks, fine: Tiling, tiling: Tiling) -> WorkSpans:
    """From spans of half the queries a tile, cut along the same blocks."""
    (small, _), (large, _) = blocks.tiles(fine), blocks.tiles(tiling)
    first, first_large = (_first_rows(blocks, n, tiling.Bm * tiling.Hm)[0] for n in (small, large))
    rows = _first_rows(blocks, large, tiling.Bm * tiling.Hm)[1] * tiling.Bm * tiling.Hm
    block = np.repeat(np.arange(len(blocks)), small)
    line = counted(0, small)
    row, side = (np.zeros(len(spans.tiles), np.int64) for _ in range(2))
    row[first[block] + line], side[first[block] + line] = first_large[block] + line // 2, line % 2
    row_ptr, runs = paired(spans.row_ptr.numpy(), spans.runs.numpy(), row, side, rows)
    tiles, halves = np.zeros((rows, 4), np.int32), spans.tiles.numpy()
    upper, lower = (first[block] + line)[line % 2 == 0], (first[block] + line)[line % 2 == 1]
    tiles[row[upper]] = halves[upper]
    tiles[row[lower], 1] = halves[lower, 1]
    arrays = (torch.from_numpy(x) for x in (row_ptr, runs.astype(np.int32, copy=False), tiles))
    return WorkSpans(*arrays, tiling.q_tile, tiling.kv_tile, tiling.Bm, tiling.Hm, spans.by_document, halved=True)


def _first_rows(blocks: Blocks, q_tiles: np.ndarray, masks: int) -> tuple[np.ndarray, int]:
    """The first row of each block, its mask's and what the mask's blocks before it take; and the rows of a mask."""
    per_mask = np.bincount(blocks.row, weights=q_tiles, minlength=masks).astype(np.int64)
    most, before = int(per_mask.max()), np.cumsum(q_tiles) - q_tiles
    return blocks.row * most + before - (np.cumsum(per_mask) - per_mask)[blocks.row], most


@dataclass
class _Builder:
    """Classifies the tiles of blocks, coarse to fine."""

    refiner: Refiner
    blocks: Blocks
    tiling: Tiling
    parts: list = field(default_factory=list)

    def spans(self) -> WorkSpans:
        t, blocks = self.tiling, self.blocks
        q_tiles, kv_tiles = blocks.tiles(t)
        masks = t.Bm * t.Hm
        self.first, most = _first_rows(blocks, q_tiles, masks)
        self.size = q_tiles, kv_tiles
        # As in `Refiner.spans`.
        at_once = labels_in_any_order(self.refiner.analysis)
        found = placed_runs(self.refiner, blocks, t, most, at_once)
        if found is None and not at_once:
            found = self._refined(masks * most, attempt=True) or placed_runs(self.refiner, blocks, t, most, True)
        row_ptr, runs = found or self._refined(masks * most)
        tiles = self._tiles(masks * most)
        by_document = len(blocks) > masks or bool((blocks.q0 > 0).any())
        arrays = (torch.from_numpy(x) for x in (row_ptr, runs.astype(np.int32, copy=False), tiles))
        return WorkSpans(*arrays, t.q_tile, t.kv_tile, t.Bm, t.Hm, by_document)

    def _tiles(self, rows: int) -> np.ndarray:
        blocks, (q_tiles, _) = self.blocks, self.size
        block = np.repeat(np.arange(len(blocks)), q_tiles)
        line = counted(0, q_tiles)
        q0 = blocks.q0[block] + line * self.tiling.q_tile
        tiles = np.zeros((rows, 4), np.int32)
        tiles[self.first[block] + line] = np.stack(
            [q0, np.minimum(q0 + self.tiling.q_tile, blocks.q1[block]), blocks.k0[block], blocks.k1[block]], axis=1)
        return tiles

    def _refined(self, rows: int, attempt: bool = False) -> tuple[np.ndarray, np.ndarray] | None:
        """(row_ptr, runs), as in WorkSpans; attempt: None where that is much work."""
        self.parts = []
        if not self._refine(attempt):
            return None
        columns = zip(*self.parts) if self.parts else [()] * 4
        row, begin, end, kind = (np.concatenate([np.zeros(0, np.int64), *x]) for x in columns)
        return runs_of_segments(row, begin, end, kind, rows, int(self.size[1].max(initial=0)))

    def _refine(self, attempt: bool) -> bool:
        q_tiles, kv_tiles = self.size
        size = 1
        while max(q_tiles.max(), kv_tiles.max()) > _COARSEST * size:
            size *= FAN
        rows, columns = -(-q_tiles // size), -(-kv_tiles // size)
        block = np.repeat(np.arange(len(self.blocks)), rows * columns)
        i, j = np.divmod(counted(0, rows * columns), columns[block])
        return walk(self, size, (block, i, j), self.refiner, attempt)

    def there(self, block, i, j, size: int) -> np.ndarray:
        """As `squares.Grids` has it, like the following."""
        return (i * size < self.size[0][block]) & (j * size < self.size[1][block])

    def cells(self, block, i, j, size: int) -> Cells:
        blocks, t = self.blocks, self.tiling
        b, h = np.divmod(blocks.row[block], t.Hm)
        height, width = size * t.q_tile, size * t.kv_tile
        q0, k0 = blocks.q0[block] + i * height, blocks.k0[block] + j * width
        return Cells(b, h, q0, np.minimum(q0 + height, blocks.q1[block]) - 1, k0, np.minimum(k0 + width, blocks.k1[block]) - 1)

    def emit(self, block, i, j, size: int, kind: Kind) -> None:
        """The rows of tiles that squares cover. A FULL tile that reaches past its block's last key is PARTIAL to a kernel."""
        if not block.size:
            return
        line, begin = i * size, j * size
        last = self.size[1][block]
        end = np.minimum(begin + size, last)
        if size > 1:
            line = (line[:, None] + np.arange(size)).reshape(-1)
            block, begin, end, last = (np.repeat(x, size) for x in (block, begin, end, last))
            there = line < self.size[0][block]
            block, line, begin, end, last = (x[there] for x in (block, line, begin, end, last))
        if kind == Kind.FULL:
            ragged = (end == last) & ((self.blocks.k1 - self.blocks.k0)[block] % self.tiling.kv_tile != 0)
            if ragged.any():
                self._partial(block[ragged], line[ragged], end[ragged] - 1)
                end = end - ragged
                some = begin < end
                block, line, begin, end = block[some], line[some], begin[some], end[some]
            self.parts.append((self.first[block] + line, begin, end, np.full(line.size, int(Kind.FULL))))
        elif size > 1:
            self.parts.append((self.first[block] + line, begin, end, np.full(line.size, int(Kind.PARTIAL))))
        else:
            self._partial(block, line, begin)

    def _partial(self, block, line, column) -> None:
        """Single tiles that are not to be taken whole: INSIDE where the label tests hold in all of them."""
        _, same, _ = self._tests.judge(self.cells(block, line, column, 1))
        kind = np.where(same, INSIDE, int(Kind.PARTIAL))
        self.parts.append((self.first[block] + line, column, column + 1, kind))

    @cached_property
    def _tests(self) -> Refiner:
        return self.refiner.of(only_label_tests(self.refiner.bound.graph))
