"""Work tiles and what they cost. A work tile is one query tile of one batch and head, or a KV range of it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# The kinds of a run of KV tiles, as in `flexfa4.sparsity.Kind` (a test holds them equal).
EMPTY = 0
PARTIAL = 1
FULL = 2
# PARTIAL, and every label test of the mask holds in the whole tile (`flexfa4.sparsity.work_spans`).
INSIDE = 3

# `part` of a work tile that covers its whole row, and so writes the output itself.
UNSPLIT = -1


@dataclass(frozen=True)
class CostModel:
    """Cost of a work tile in units of one full tile: its tiles, a fixed part (prologue, epilogue, latency of the first load),
    and what a split piece pays on top (partial results to memory, and its share of the combine)."""

    full: float = 1.0
    partial: float = 1.2
    fixed: float = 2.0
    split: float = 0.5


class WorkTile(NamedTuple):
    """One record of a schedule, as the kernel reads it (int32 each).

    The kernel walks the row's runs clipped to kv tiles [kv_begin, kv_end). `part` is -1 where that is the whole row; otherwise
    it is the slot for the partial output and LSE that the combine kernel reads. `head` counts what one tile covers: query
    heads, or KV heads where the heads of a group are packed into the query tile.
    """

    batch: int
    head: int
    q_tile: int
    kv_begin: int
    kv_end: int
    part: int = UNSPLIT


@dataclass(frozen=True, eq=False)
class Work:
    """What is to be scheduled: the spans of a mask, and the batch and heads it is applied to.

    row_ptr: int32 [mask_batch * mask_heads * q_tiles + 1]; runs: int32 [n, 3] of (begin, end, kind), ascending and disjoint in
    a row; both as numpy arrays or torch tensors on the CPU. row = (mb * mask_heads + mh) * q_tiles + q_tile. A mask batch or head
    count of 1 is shared by all. halved: kinds are of two halves (`flexfa4.sparsity.halves`). present: bool, which rows of the
    spans have queries; None: all. Others cost nothing and are not launched. Raises ValueError where the counts do not fit.
    """

    row_ptr: np.ndarray
    runs: np.ndarray
    batch: int
    heads: int
    kv_heads: int
    mask_batch: int = 1
    mask_heads: int = 1
    present: np.ndarray | None = None
    halved: bool = False

    def __post_init__(self):
        for name in ("row_ptr", "runs"):
            object.__setattr__(self, name, np.asarray(getattr(self, name)))
        rows = len(self.row_ptr) - 1
        if rows % (self.mask_batch * self.mask_heads):
            raise ValueError(f"{rows} rows of spans do not divide by mask batch {self.mask_batch} x heads {self.mask_heads}")
        if self.mask_batch not in (1, self.batch) or self.mask_heads not in (1, self.heads):
            raise ValueError(f"spans for batch {self.mask_batch} x heads {self.mask_heads} do not broadcast to "
                             f"{self.batch} x {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads are no multiple of {self.kv_heads} KV heads")

    @property
    def q_tiles(self) -> int:
        return (len(self.row_ptr) - 1) // (self.mask_batch * self.mask_heads)

    @property
    def rows(self) -> int:
        """Work rows, one a (batch, head, q_tile), numbered in that order."""
        return self.batch * self.heads * self.q_tiles

    def coordinates(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(batch, head, q_tile) of work rows."""
        return rows // (self.heads * self.q_tiles), rows // self.q_tiles % self.heads, rows % self.q_tiles

    def mask_rows(self, rows: np.ndarray) -> np.ndarray:
        """The row of the spans that each work row reads."""
        b, h, q = self.coordinates(rows)
        mask_b = b if self.mask_batch > 1 else 0
        mask_h = h if self.mask_heads > 1 else 0
        return (mask_b * self.mask_heads + mask_h) * self.q_tiles + q

    def costs(self, cost: CostModel) -> np.ndarray:
        """float64 [rows]: the cost of every unsplit work row."""
        per_row = row_costs(self.row_ptr, self.runs, cost, self.halved)
        per_row = per_row if self.present is None else np.where(self.present, per_row, 0.0)
        per_mask = per_row.reshape(self.mask_batch, self.mask_heads, self.q_tiles)
        return np.broadcast_to(per_mask, (self.batch, self.heads, self.q_tiles)).reshape(-1)

    def with_queries(self, rows: np.ndarray) -> np.ndarray:
        """Those of the work rows that are present."""
        return rows if self.present is None else rows[self.present[self.mask_rows(rows)]]

    def kv_bounds(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and one-past-last kv tile of work rows; (0, 0) for empty ones."""
        mask_row = self.mask_rows(rows)
        first, last = self.row_ptr[mask_row], self.row_ptr[mask_row + 1]
        begin, end = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.int32)
        full = last > first
        begin[full] = self.runs[first[full], 0]
        end[full] = self.runs[last[full] - 1, 1]
        return begin, end


def row_costs(row_ptr: np.ndarray, runs: np.ndarray, cost: CostModel, halved: bool = False) -> np.ndarray:
    """float64 [rows]: fixed + full and partial tiles. Counts are summed as integers, so equal rows cost exactly the same.
    halved: kinds are of two halves, each half a tile."""
    kinds = (runs[:, 2] & 3, runs[:, 2] >> 2) if halved else (runs[:, 2],)
    length, there = runs[:, 1] - runs[:, 0], row_ptr[1:] > row_ptr[:-1]
    counts = np.zeros((2, len(there)), np.int64)
    for count, wanted in zip(counts, (lambda kind: kind == FULL, lambda kind: (kind != FULL) & (kind != EMPTY))):
        if there.any():
            # The runs of a row end where those of the next one that holds any begin.
            tiles = sum(length * wanted(kind) for kind in kinds)
            count[there] = np.add.reduceat(tiles[:row_ptr[-1]], row_ptr[:-1][there])
    n_full, n_partial = counts / len(kinds)
    return cost.fixed + cost.full * n_full + cost.partial * n_partial
