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
_MORE_POINTS = ((0.0, 0.0), (1.0, 1.0), (0.5, 0.5), (0.25, 0.75), (0.75, 0.25),
                (0.01, 0.0), (0.0, 0.01), (0.34, 0.55), (0.66, 0.4))
# An undecided cell is cut into this many parts along each axis, this many times, while its sides are longer than the least.
_PARTS = 4
_CUTS = 2
_LEAST_SIDE = 8
# Points evaluated at once: without look-ups, and with. Up to there torch stays on one thread (its grain is 32,768
# elements, and 3,000 for indexing), and handing so little work to others costs more than it saves, far more where the
# cores are busy.
_SERIAL, _SERIAL_LOOKUPS = 32767, 2999
# What the analysis of one cell costs, in evaluations of an element.
_ANALYSIS = 16


class Settler:
    """Decides tiles exactly, within a budget of elements for one build: past it a tile stays PARTIAL, which is always safe."""

    def __init__(self, bound: BoundGraph, judge: Callable, breaks: Callable, work, budget: int):
        self.bound, self.judge, self.breaks, self.work, self.budget = bound, judge, breaks, work, budget

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
        bits = np.empty(len(cells), np.uint8)
        step = max(1, (_SERIAL_LOOKUPS if self.bound.tensors else _SERIAL) // len(points))
        for first in range(0, len(cells), step):
            part = cells.take(slice(first, first + step))
            # Rounded up, so that a small fraction is the neighbour of a corner.
            q = part.q0 + np.ceil((part.q1 - part.q0) * fq).astype(np.int64)
            k = part.k0 + np.ceil((part.k1 - part.k0) * fk).astype(np.int64)
            value = np.broadcast_to(evaluate_at(self.bound, part.b, part.h, q, k, checked=False), q.shape)
            bits[first:first + step] = (_FALSE * ~value.all(axis=0)) | (_TRUE * value.any(axis=0))
        return bits

    def _close(self, cells: Cells, seen: np.ndarray) -> np.ndarray:
        """Kinds of tiles in whose points only one value was seen (`seen`: its bit, or none)."""
        state = _Open(cells, seen.copy())
        q_breaks, k_breaks = self.breaks()
        cuts = [lambda c: _cut_at(c, q_breaks, k_breaks)] * bool(q_breaks.size or k_breaks.size) + [_cut_evenly] * _CUTS
        for cut in cuts:
            self._afford(state, np.full(len(state.cells), _ANALYSIS * _PARTS * _PARTS))
            state.cut(cut)
            empty, full, _ = self.judge(state.cells)
            state.record(np.where(full, _TRUE, np.where(empty, _FALSE, np.uint8(0))))
            state.keep(~(empty | full))
            state.record(self._look(state.cells, _FIRST_POINTS + _MORE_POINTS))
            state.keep(slice(None))
        # One part of each tile first: where it holds both values, the tile's other parts need no look.
        for first_only in (True, False):
            self._afford(state, state.cells.area)
            if not len(state.cells):
                break
            at = np.unique(state.tile, return_index=True)[1] if first_only else np.arange(len(state.cells))
            state.settled[state.tile[at]] = True
            found = settle(self.bound, state.cells.take(at), checked=False)
            np.bitwise_or.at(state.seen, state.tile[at], _BITS[found])
            rest = np.ones(len(state.cells), bool)
            rest[at] = False
            state.keep(rest)
        self.work.settled += int(state.settled.sum())
        return _KINDS[state.seen]

    def _afford(self, state: "_Open", cost: np.ndarray) -> None:
        """Pays for work on every cell; tiles with cells that the budget does not reach are given up as PARTIAL."""
        if not cost.size:
            return
        total = cost.cumsum()
        reached = int(np.searchsorted(total, self.budget, side="right"))
        self.budget -= int(total[reached - 1]) if reached else 0
        if reached < cost.size:
            given_up = np.unique(state.tile[reached:])
            state.seen[given_up] = _TRUE | _FALSE
            self.work.over_budget += given_up.size
            state.keep(slice(None))


class _Open:
    """Undecided cells and the tile each is a part of; for each tile the values seen so far."""

    def __init__(self, cells: Cells, seen: np.ndarray):
        self.cells, self.seen = cells, seen
        self.tile = np.arange(len(cells))
        self.settled = np.zeros(len(cells), bool)

    def record(self, bits: np.ndarray) -> None:
        np.bitwise_or.at(self.seen, self.tile, bits)

    def keep(self, which) -> None:
        """Drops cells not in `which`, and those of tiles that hold both values."""
        at = np.arange(len(self.cells))[which]
        at = at[self.seen[self.tile[at]] != (_TRUE | _FALSE)]
        self.cells, self.tile = self.cells.take(at), self.tile[at]

    def cut(self, how: Callable) -> None:
        parent, self.cells = how(self.cells)
        self.tile = self.tile[parent]


_FALSE, _TRUE = np.uint8(1), np.uint8(2)
# From a kind to the bits of `seen`, and back.
_BITS = np.array([1, 3, 2], np.uint8)
_KINDS = np.array([Kind.PARTIAL, Kind.EMPTY, Kind.FULL, Kind.PARTIAL], np.uint8)


def _cut_evenly(cells: Cells) -> tuple[np.ndarray, Cells]:
    """(parent, cells): each cell in at most _PARTS x _PARTS smaller ones."""
    ends = []
    for first, last in ((cells.q0, cells.q1), (cells.k0, cells.k1)):
        side = np.maximum(_LEAST_SIDE, -(-(last - first + 1) // _PARTS))
        ends.append(np.minimum(first[:, None] + side[:, None] * np.arange(1, _PARTS + 1), last[:, None] + 1))
    return _pieces(cells, *ends)


def _cut_at(cells: Cells, q_breaks: np.ndarray, k_breaks: np.ndarray) -> tuple[np.ndarray, Cells]:
    """(parent, cells): each cell cut at the breaks inside it; where they are too many, at some of them, evenly chosen."""
    ends = []
    for first, last, at in ((cells.q0, cells.q1, q_breaks), (cells.k0, cells.k1, k_breaks)):
        if not at.size:
            ends.append((last + 1)[:, None])
            continue
        begin = np.searchsorted(at, first, side="right")
        count = np.searchsorted(at, last, side="right") - begin
        step = np.arange(1, _PARTS)
        chosen = np.where(count[:, None] < _PARTS, step - 1, count[:, None] * step // _PARTS)
        inside = chosen < count[:, None]
        position = at[np.minimum(begin[:, None] + chosen, at.size - 1)]
        ends.append(np.concatenate([np.where(inside, position, (last + 1)[:, None]), (last + 1)[:, None]], axis=1))
    return _pieces(cells, *ends)


def _pieces(cells: Cells, q_ends: np.ndarray, k_ends: np.ndarray) -> tuple[np.ndarray, Cells]:
    """(parent, cells): the products of the pieces of each cell along each axis, given one past the end of every piece, ascending;
    empty pieces are dropped."""
    q_begins = np.concatenate([cells.q0[:, None], q_ends[:, :-1]], axis=1)
    k_begins = np.concatenate([cells.k0[:, None], k_ends[:, :-1]], axis=1)
    there = (q_begins < q_ends)[:, :, None] & (k_begins < k_ends)[:, None, :]
    parent, i, j = np.nonzero(there)
    return parent, Cells(cells.b[parent], cells.h[parent], q_begins[parent, i], q_ends[parent, i] - 1,
                         k_begins[parent, j], k_ends[parent, j] - 1)
