"""Tiles that interval analysis leaves undecided: a few points, then smaller cells, then every element."""
from __future__ import annotations

from typing import Callable

import numpy as np

from flexfa4.ir.bound import BoundGraph

from .cells import Cells, evaluate_at, settle
from .spans import Kind

# Points of a tile as fractions of its height and width: first the corners that a causal diagonal tells apart, then the other
# corners, their neighbours and the inside.
_FIRST_POINTS = ((0.0, 1.0), (1.0, 0.0))
_MORE_POINTS = ((0.0, 0.0), (1.0, 1.0), (0.5, 0.5), (0.25, 0.75), (0.75, 0.25), (0.01, 0.0), (0.0, 0.01), (0.34, 0.55), (0.66, 0.4))
# Smaller cells along each axis of an undecided tile, and the least side worth cutting.
_PARTS = 4
_LEAST_SIDE = 16


class Settler:
    """Decides tiles exactly, within a budget of elements for one build: past it a tile stays PARTIAL, which is always safe."""

    def __init__(self, bound: BoundGraph, judge: Callable, work, budget: int):
        self.bound, self.judge, self.work, self.budget = bound, judge, work, budget

    def kinds(self, cells: Cells, poison) -> np.ndarray:
        """The kind of each tile, uint8 [n]. poison: False, or bool [n], True where a tile may depend on an out-of-range look-up;
        those are evaluated in full whatever the budget, so that a bad look-up is never missed.

        Raises LookupOutOfRange for one that does.
        """
        kinds = np.full(len(cells), Kind.PARTIAL, np.uint8)
        open_ = np.arange(len(cells))
        if poison is not False and poison.any():
            bad = np.flatnonzero(poison)
            kinds[bad] = settle(self.bound, cells.take(bad), checked=True)
            self.work.settled += bad.size
            open_ = np.flatnonzero(~poison)
        seen = np.zeros(open_.size, np.uint8)
        for points in (_FIRST_POINTS, _MORE_POINTS):
            if not open_.size:
                return kinds
            seen |= self._look(cells.take(open_), points)
            # Bit 0: a false element was seen; bit 1: a true one.
            mixed = seen == 3
            self.work.sampled += int(mixed.sum())
            open_, seen = open_[~mixed], seen[~mixed]
        if open_.size:
            kinds[open_] = self._close(cells.take(open_), seen)
        return kinds

    def _look(self, cells: Cells, points) -> np.ndarray:
        """Which values are among the points of each tile: bit 0 for false, bit 1 for true."""
        fq, fk = (np.array(f)[:, None] for f in zip(*points))
        # Rounded up, so that a small fraction is the neighbour of a corner.
        q = cells.q0 + np.ceil((cells.q1 - cells.q0) * fq).astype(np.int64)
        k = cells.k0 + np.ceil((cells.k1 - cells.k0) * fk).astype(np.int64)
        value = np.broadcast_to(evaluate_at(self.bound, cells.b, cells.h, q, k, checked=False), q.shape)
        some, every = value.any(axis=0), value.all(axis=0)
        return (~every).astype(np.uint8) | (some.astype(np.uint8) << 1)

    def _close(self, cells: Cells, seen: np.ndarray) -> np.ndarray:
        """Kinds of tiles in whose points only one value was seen: by smaller cells, and elements where those are undecided."""
        parent, parts = _cut(cells)
        empty, full, poison = self.judge(parts)
        seen = seen.copy()
        np.bitwise_or.at(seen, parent, np.where(full, np.uint8(2), np.where(empty, np.uint8(1), np.uint8(0))))
        undecided = np.flatnonzero(~(empty | full) & (seen[parent] != 3))
        if undecided.size:
            area = parts.take(undecided).area.cumsum()
            affordable = int(np.searchsorted(area, self.budget, side="right"))
            self.budget -= int(area[affordable - 1]) if affordable else 0
            # A tile that is only partly affordable stays PARTIAL.
            left = parent[undecided[affordable:]]
            seen[left] = 3
            self.work.over_budget += np.unique(left).size
            undecided = undecided[:affordable]
            undecided = undecided[seen[parent[undecided]] != 3]
            self.work.settled += np.unique(parent[undecided]).size
            found = settle(self.bound, parts.take(undecided), checked=False)
            np.bitwise_or.at(seen, parent[undecided], _BITS[found])
        return _KINDS[seen]


# From a kind to the bits of `seen`, and back.
_BITS = np.array([1, 3, 2], np.uint8)
_KINDS = np.array([Kind.PARTIAL, Kind.EMPTY, Kind.FULL, Kind.PARTIAL], np.uint8)


def _cut(cells: Cells) -> tuple[np.ndarray, Cells]:
    """(parent, cells): each cell in at most _PARTS x _PARTS smaller ones."""
    n = len(cells)
    steps = []
    for first, last in ((cells.q0, cells.q1), (cells.k0, cells.k1)):
        side = np.maximum(_LEAST_SIDE, -(-(last - first + 1) // _PARTS))
        steps.append((first, last, side))
    (q0, q1, q_side), (k0, k1, k_side) = steps
    at_q, at_k = (x.reshape(-1) for x in np.indices((_PARTS, _PARTS)))
    a = (q0[:, None] + at_q * q_side[:, None]).reshape(-1)
    c = (k0[:, None] + at_k * k_side[:, None]).reshape(-1)
    parent = np.repeat(np.arange(n), _PARTS * _PARTS)
    b_end = np.minimum(a + q_side[parent], q1[parent] + 1) - 1
    d_end = np.minimum(c + k_side[parent], k1[parent] + 1) - 1
    there = (a <= b_end) & (c <= d_end)
    parent = parent[there]
    return parent, Cells(cells.b[parent], cells.h[parent], a[there], b_end[there], c[there], d_end[there])
