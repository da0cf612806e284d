"""KV splits: rows that do not fit are cut to fill every worker up to one target time.

Only capping rows at the target leaves P gaps of up to a piece each. Filling (McNaughton's wrap-around rule, 1959, with the
fixed cost of a piece counted) packs whole rows longest-first while they fit under the target, then pours the rows left over
into the gaps, cutting where a worker is full. About P + leftover pieces are made, so the overhead a worker is about one piece.
"""
from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heapreplace

import numpy as np

from .work import FULL, CostModel, Work

# A piece shorter than this many tiles costs more in its fixed part than it moves.
MIN_PIECE_TILES = 2
ROUNDS = 24


@dataclass(frozen=True)
class Piece:
    """kv tiles [begin, end) of a work row, planned to start at `start`."""

    row: int
    begin: int
    end: int
    cost: float
    start: float
    whole: bool


@dataclass(frozen=True)
class Filling:
    """Whole rows in launch order (positions in the order that was given), then pieces by planned start."""

    whole: list[int]
    pieces: list[Piece]
    target: float


def fill(work: Work, order: np.ndarray, costs: np.ndarray, workers: int, cost: CostModel) -> Filling | None:
    """Pack the rows of `order` (with `costs` indexed by row) under the lowest target found to hold them; None where `ROUNDS`
    raises of the target did not find one."""
    ordered = costs[order].tolist()
    target = max(sum(ordered) / workers, cost.fixed + cost.split + MIN_PIECE_TILES * cost.partial)
    packing = _Packing(ordered, workers)
    for _ in range(ROUNDS):
        loads, whole, left = packing.under(target)
        pieces, rest = _pour(work, [int(order[i]) for i in left], loads, target, cost)
        if not rest:
            return Filling(whole, pieces, target)
        target += max(rest / workers, 0.05)
    return None


class _Packing:
    """Longest-first packing under a target. Every row before the first that did not fit the lowest target tried fits any
    higher one just the same, so that part is done once."""

    def __init__(self, ordered: list[float], workers: int):
        self.ordered = ordered
        self.loads = [0.0] * workers
        self.fitted = 0

    def under(self, target: float) -> tuple[list[float], list[int], list[int]]:
        """(load of each worker, positions that fit, positions left over)."""
        ordered, loads = self.ordered, self.loads
        i = self.fitted
        while i < len(ordered) and loads[0] + ordered[i] <= target:
            heapreplace(loads, loads[0] + ordered[i])
            i += 1
        self.fitted = i
        loads, whole, left = list(loads), list(range(i)), []
        for j in range(i, len(ordered)):
            c = ordered[j]
            if loads[0] + c <= target:
                heapreplace(loads, loads[0] + c)
                whole.append(j)
            else:
                left.append(j)
        return loads, whole, left


def _pour(work: Work, rows: list[int], loads: list[float], target: float, cost: CostModel) -> tuple[list[Piece], float]:
    """Pieces of `rows` that fill the workers up to the target, and the work that found no room."""
    pieces: list[Piece] = []
    free = sorted(loads)
    if not rows:
        return pieces, 0.0
    mask_rows = work.mask_rows(np.array(rows, np.int64)).tolist()
    cursors = iter(_Cursor(work, row, mask_row, cost) for row, mask_row in zip(rows, mask_rows))
    current = next(cursors, None)
    for start in free:
        while current is not None:
            piece = current.take(start, target)
            if piece is None:
                break
            pieces.append(piece)
            start += piece.cost
            if current.done:
                current = next(cursors, None)
    rest = 0.0
    while current is not None:
        rest += current.rest_cost() + cost.split
        current = next(cursors, None)
    pieces.sort(key=lambda p: p.start)
    return pieces, rest


class _Cursor:
    """What is left of one row being cut: everything from kv tile `position`, which `spent` of the row's cost comes before."""

    def __init__(self, work: Work, row: int, mask_row: int, cost: CostModel):
        runs = work.runs[work.row_ptr[mask_row]:work.row_ptr[mask_row + 1]]
        length = runs[:, 1] - runs[:, 0]
        rates = np.where(runs[:, 2] == FULL, cost.full, cost.partial)
        self.row, self.cost = row, cost
        self.begins, self.rates = runs[:, 0].tolist(), rates.tolist()
        # Cost and tiles before each run, and the row's total last.
        self.costs = [0.0, *np.cumsum(rates * length).tolist()]
        self.tiles = [0, *np.cumsum(length).tolist()]
        self.last = int(runs[-1, 1]) if len(runs) else 0
        self.position = self.begins[0] if len(runs) else 0
        self.spent, self.taken = 0.0, 0
        self.done = False

    def _reach(self, budget: float) -> tuple[int, float, int]:
        """(kv tile, cost before it, tiles before it) as far as `budget` goes from here."""
        limit = self.spent + budget + 1e-9
        i = bisect_right(self.costs, limit) - 1
        if i == len(self.begins):
            return self.last, self.costs[-1], self.tiles[-1]
        n = int((limit - self.costs[i]) / self.rates[i])
        return self.begins[i] + n, self.costs[i] + n * self.rates[i], self.tiles[i] + n

    def rest_cost(self) -> float:
        return self.cost.fixed + self.costs[-1] - self.spent

    def take(self, start: float, target: float) -> Piece | None:
        """The next piece, for a worker free from `start` to `target`; None where too little would fit."""
        room = target - start - self.cost.fixed
        whole = self.spent == 0.0 and room + 1e-9 >= self.costs[-1]
        overhead = self.cost.fixed if whole else self.cost.fixed + self.cost.split
        if not whole and room < self.cost.split:
            return None
        end, spent, taken = self._reach(room if whole else room - self.cost.split)
        ends = taken == self.tiles[-1]
        if not ends and taken - self.taken < MIN_PIECE_TILES:
            return None
        piece = Piece(self.row, self.position, end, overhead + spent - self.spent, start, whole)
        self.position, self.spent, self.taken, self.done = end, spent, taken, ends
        return piece
