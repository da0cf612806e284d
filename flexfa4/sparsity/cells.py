"""Cells: rectangles of positions, held as arrays, and their exact settlement element by element."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from flexfa4.interpret import evaluate, evaluate_checked, lookup_error
from flexfa4.ir import Op
from flexfa4.ir.bound import BoundGraph

from .spans import Tiling

# Elements evaluated at once: a few megabytes a temporary, which stays in the last-level cache.
_CHUNK = 1 << 19


@dataclass(frozen=True, eq=False)
class Cells:
    """n rectangles: batch b, head h, queries q0..q1 and keys k0..k1, both ends included; int64 [n] each."""

    b: np.ndarray
    h: np.ndarray
    q0: np.ndarray
    q1: np.ndarray
    k0: np.ndarray
    k1: np.ndarray

    def __len__(self) -> int:
        return self.q0.size

    def take(self, index) -> "Cells":
        """The cells at `index` (an index array, mask or slice)."""
        return Cells(self.b[index], self.h[index], self.q0[index], self.q1[index], self.k0[index], self.k1[index])

    @property
    def area(self) -> np.ndarray:
        """Elements of each cell, int64 [n]."""
        return (self.q1 - self.q0 + 1) * (self.k1 - self.k0 + 1)


def settle(bound: BoundGraph, cells: Cells, checked: bool) -> np.ndarray:
    """The kind of each cell, uint8 [n], from every one of its elements.

    Raises LookupOutOfRange, if `checked`, where an element's value depends on a look-up past the end of a capture.
    """
    kinds = np.empty(len(cells), np.uint8)
    if not len(cells):
        return kinds
    height, width = int((cells.q1 - cells.q0).max()) + 1, int((cells.k1 - cells.k0).max()) + 1
    step = max(1, _CHUNK // (height * width))
    for first in range(0, len(cells), step):
        part = cells.take(slice(first, first + step))
        # Lanes past a smaller cell's end repeat its last position, which changes neither "any" nor "all".
        q = np.minimum(part.q0[:, None] + np.arange(height), part.q1[:, None])[:, :, None]
        k = np.minimum(part.k0[:, None] + np.arange(width), part.k1[:, None])[:, None, :]
        allowed = evaluate_at(bound, part.b[:, None, None], part.h[:, None, None], q, k, checked)
        some, every = _reduce(allowed, len(part))
        kinds[first:first + step] = some.astype(np.uint8) + every
    return kinds


def evaluate_at(bound: BoundGraph, b: np.ndarray, h: np.ndarray, q: np.ndarray, k: np.ndarray,
                checked: bool) -> np.ndarray:
    """The mask at positions given by broadcastable int64 arrays: bool, in the broadcast shape of what it depends on.

    Raises LookupOutOfRange as `settle` does.
    """
    env = {op: torch.from_numpy(np.ascontiguousarray(x)) for op, x in zip((Op.B, Op.H, Op.Q, Op.KV), (b, h, q, k))}
    with torch.no_grad():
        if not checked:
            return evaluate(bound, env).numpy()
        value, bad = evaluate_checked(bound, env)
    if bad is not None and bool(bad.any()):
        raise lookup_error(bound, env)
    return value.numpy()


def _reduce(allowed: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(any, all) over the last two axes, each [count], of an array broadcastable to [count, height, width]."""
    axes = tuple(range(-min(2, allowed.ndim), 0))
    some, every = allowed.any(axis=axes).reshape(-1), allowed.all(axis=axes).reshape(-1)
    return np.broadcast_to(some, count), np.broadcast_to(every, count)


def tile_cells(tiling: Tiling, row: np.ndarray, i: np.ndarray, j: np.ndarray, size: int) -> Cells:
    """Cells of squares of size x size tiles, the i-th along the queries and the j-th along the keys; `row` is mb * Hm + mh."""
    height, width = size * tiling.q_tile, size * tiling.kv_tile
    q0, k0 = i * height, j * width
    b, h = (row, row) if tiling.Bm == tiling.Hm == 1 else np.divmod(row, tiling.Hm)
    return Cells(b, h, q0, np.minimum(q0 + height, tiling.q_len) - 1, k0, np.minimum(k0 + width, tiling.kv_len) - 1)
