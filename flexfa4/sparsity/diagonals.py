"""Spans of masks of q - kv: a tile's kind depends on its distance from the diagonal alone, so each distance is looked at once.

Causal at a million tokens has 16,383 distances of tiles and 67 million tiles.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flexfa4.facts.relative import is_relative, small_literals
from flexfa4.ir.bound import BoundGraph

from .cells import Cells
from .spans import Spans, Tiling, spans_from_segments

# Runs of all rows together, beyond which this is no gain: a mask that changes from tile to tile.
_MOST_RUNS = 1 << 22


def applies(bound: BoundGraph, tiling: Tiling, transposed: bool) -> bool:
    """True if the mask is one of q - kv, and tiles along a row are no larger than across, by a whole factor."""
    across, along = _sizes(tiling, transposed)
    return across % along == 0 and is_relative(bound.graph) and small_literals(bound.literals)


def diagonal_spans(classify, tiling: Tiling, transposed: bool) -> Spans | None:
    """The spans of a mask for which `applies` holds; None where runs are so many that another way is as good.

    classify: the kinds, uint8 [n], of Cells.
    """
    grid = _Grid.of(tiling, transposed)
    kinds = grid.kinds(classify)
    runs = _runs(kinds)
    if runs[0].size * grid.lines > _MOST_RUNS:
        return None
    parts = [grid.inside(*runs), *grid.edges(classify)]
    return spans_from_segments(*(np.concatenate(x) for x in zip(*parts)), tiling, transposed)


def _sizes(tiling: Tiling, transposed: bool) -> tuple[int, int]:
    """(tile across the rows, tile along them)."""
    return (tiling.kv_tile, tiling.q_tile) if transposed else (tiling.q_tile, tiling.kv_tile)


@dataclass(frozen=True)
class _Grid:
    """Lines of tiles (query tiles; key tiles if transposed) and the columns along them. The distance of a tile is
    factor * line - column, in tiles along. `lines` and `columns` count whole tiles; `lengths` are positions (across, along)."""

    tiling: Tiling
    transposed: bool
    across: int
    along: int
    factor: int
    lengths: tuple[int, int]

    @classmethod
    def of(cls, tiling: Tiling, transposed: bool) -> "_Grid":
        across, along = _sizes(tiling, transposed)
        lengths = (tiling.kv_len, tiling.q_len) if transposed else (tiling.q_len, tiling.kv_len)
        return cls(tiling, transposed, across, along, across // along, lengths)

    @property
    def lines(self) -> int:
        return self.lengths[0] // self.across

    @property
    def columns(self) -> int:
        return self.lengths[1] // self.along

    @property
    def rows(self) -> int:
        """Masks of one batch and head."""
        return self.tiling.Bm * self.tiling.Hm

    @property
    def lines_in_all(self) -> int:
        return -(-self.lengths[0] // self.across)

    def kinds(self, classify) -> np.ndarray:
        """Kinds by distance, uint8 [rows, distances], from that of (line 0, last column) on."""
        if not self.lines or not self.columns:
            return np.zeros((self.rows, 0), np.uint8)
        distance = np.arange(1 - self.columns, self.factor * (self.lines - 1) + 1)
        row = np.repeat(np.arange(self.rows), distance.size)
        begin = np.tile(np.maximum(distance, 0) * self.along, self.rows)
        other = np.tile(np.maximum(-distance, 0) * self.along, self.rows)
        return classify(self._cells(row, begin, other)).reshape(self.rows, -1)

    def inside(self, row, first, last, kind) -> tuple:
        """Segments (row of tiles, begin, end, kind) of all whole lines, from runs of distances first..last - 1."""
        line = np.arange(self.lines)[:, None]
        top = self.factor * line + self.columns       # distance d is at index d + columns - 1, and column factor * line - d
        begin, end = np.maximum(top - last, 0), np.minimum(top - first, self.columns)
        at_line, at_run = np.nonzero(begin < end)
        at = (at_line, at_run)
        return row[at_run] * self.lines_in_all + at_line, begin[at], end[at], kind[at_run]

    def edges(self, classify):
        """Segments of the last line and column, where they are cut short."""
        rows = np.arange(self.rows)[:, None]
        if self.lengths[0] % self.across:
            column = np.arange(-(-self.lengths[1] // self.along))
            yield self._tiles(classify, rows, np.full_like(column, self.lines), column)
        if self.lengths[1] % self.along and self.lines:
            line = np.arange(self.lines)
            yield self._tiles(classify, rows, line, np.full_like(line, self.columns))

    def _tiles(self, classify, row, line, column) -> tuple:
        row, line, column = (x.reshape(-1) for x in np.broadcast_arrays(row, line, column))
        kind = classify(self._cells(row, line * self.across, column * self.along))
        some = np.flatnonzero(kind)
        begin = column[some]
        return row[some] * self.lines_in_all + line[some], begin, begin + 1, kind[some].astype(np.int64)

    def _cells(self, row, across, along) -> Cells:
        """Cells of a tile's size that begin at the given positions across and along."""
        b, h = np.divmod(row, self.tiling.Hm)
        ends = (np.minimum(begin + size, length) - 1
                for begin, size, length in zip((across, along), (self.across, self.along), self.lengths))
        sides = list(zip((across, along), ends))
        (q0, q1), (k0, k1) = sides[::-1] if self.transposed else sides
        return Cells(b, h, q0, q1, k0, k1)


def _runs(kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(row, first, last + 1, kind) of the runs that are not EMPTY in each row of a table of kinds, int64 each."""
    padded = np.zeros((kinds.shape[0], kinds.shape[1] + 2), np.int16)
    padded[:, 1:-1] = kinds
    row, at = np.nonzero(np.diff(padded, axis=1))
    begins = np.flatnonzero(padded[row, at + 1])
    row, first = row[begins], at[begins]
    return row, first, at[begins + 1], padded[row, first + 1].astype(np.int64)
