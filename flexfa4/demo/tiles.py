"""Counts over the spans of a mask."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FULL = 2  # flexfa4.sparsity.Kind


@dataclass(frozen=True)
class TileCount:
    """Tiles of one mask at one tile size, over its own batches and heads; `runs` is the number of spans."""

    full: int
    partial: int
    total: int
    runs: int

    @property
    def empty(self) -> int:
        return self.total - self.full - self.partial

    @property
    def saved(self) -> float:
        """Share of the tiles that is never touched."""
        return self.empty / self.total


def count(spans) -> TileCount:
    """Tiles of `spans` (flexfa4.sparsity.Spans) by kind."""
    runs = np.asarray(spans.runs.cpu()).reshape(-1, 3).astype(np.int64)
    length = runs[:, 1] - runs[:, 0]
    full = int(length[runs[:, 2] == FULL].sum())
    walked = spans.q_len if spans.transposed else spans.kv_len
    tile = spans.q_tile if spans.transposed else spans.kv_tile
    rows = len(spans.row_ptr) - 1
    return TileCount(full, int(length.sum()) - full, rows * -(-walked // tile), len(runs))
