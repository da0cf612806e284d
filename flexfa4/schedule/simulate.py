"""A machine of P equal workers under list scheduling: whoever is free first takes the next work tile of the order.

That is what a persistent kernel with an atomic counter or cluster launch control does; a static persistent kernel is given the
assignment found here. Graham (1969): any order is within total/P + longest of the best; longest-first within 4/3.
"""
from __future__ import annotations

from dataclasses import dataclass
from heapq import heapreplace
from typing import Iterable

import numpy as np


# Work tiles of one cost a worker, from which on they are dealt out together.
_IN_A_ROW = 3


@dataclass(frozen=True, eq=False)
class Timeline:
    """Who ran what: worker int32 [n], start and end float64 [n], in the order of the work."""

    worker: np.ndarray
    start: np.ndarray
    end: np.ndarray
    workers: int

    @property
    def makespan(self) -> float:
        return float(self.end.max(initial=0.0))

    def static_lists(self) -> tuple[np.ndarray, np.ndarray]:
        """(ptr int32 [workers + 1], items int32 [n]): the positions in the order that each worker runs, first to last."""
        items = np.argsort(self.worker, kind="stable").astype(np.int32)
        ptr = np.zeros(self.workers + 1, np.int32)
        np.cumsum(np.bincount(self.worker, minlength=self.workers), out=ptr[1:])
        return ptr, items


def makespan(costs: Iterable[float], workers: int) -> float:
    """When the last work tile ends, the costs taken in the order given: about 0.2 us a work tile, or 50 us for many of one cost
    in a row."""
    costs = costs if isinstance(costs, np.ndarray) else np.fromiter(costs, np.float64)
    free, done = [0.0] * workers, 0
    ends = np.append(np.flatnonzero(costs[1:] != costs[:-1]) + 1, costs.size)
    counts = np.diff(ends, prepend=0)
    for i in np.flatnonzero((counts > _IN_A_ROW * workers) & (costs[ends - 1] > 0)) if costs.size else ():
        first = int(ends[i] - counts[i])
        _one_by_one(free, costs[done:first])
        done = first + _in_a_row(free, float(costs[first]), int(counts[i]))
    _one_by_one(free, costs[done:])
    return max(free)


def _one_by_one(free: list[float], costs: np.ndarray) -> None:
    """Lets workers, who are free at the times of a heap, take work tiles."""
    for c in costs.tolist():
        heapreplace(free, free[0] + c)


def _in_a_row(free: list[float], cost: float, count: int) -> int:
    """As `_one_by_one` with work tiles of one cost; of `count`, about as many as there are workers are left, and the number taken
    is returned. Tiles are taken in the order of their begin, so those are taken that end before some time, and no more than
    `count` end before all would have in even shares."""
    at = np.sort(free)
    among, fewer = at.size + 1, at.size
    while fewer < among:
        among = fewer
        even = (at[:among].sum() + cost * count) / among
        fewer = int(at.searchsorted(even))          # others are free only after that
    taken = np.maximum(np.floor((even - at) / cost), 0.0)
    free[:] = np.sort(at + taken * cost).tolist()
    return int(taken.sum())


def latest_end(costs: np.ndarray, workers: int) -> float:
    """No later does `makespan` end, the costs in the order given: a work tile begins when the first worker is free, which is no
    later than all would be with what was taken before it in even shares (Graham 1969)."""
    return float(((costs.cumsum() - costs) / workers + costs).max(initial=0.0))


def simulate(costs: np.ndarray, workers: int) -> Timeline:
    """As `makespan`, remembering who ran what; equal times go to the lower worker."""
    free = [(0.0, w) for w in range(workers)]
    start, who = [], []
    for c in costs.tolist():
        t, w = free[0]
        start.append(t)
        who.append(w)
        heapreplace(free, (t + c, w))
    begin = np.array(start, np.float64)
    return Timeline(np.array(who, np.int32), begin, begin + costs, workers)


def lower_bound(costs: np.ndarray, workers: int, splittable: bool = False) -> float:
    """No schedule is shorter: the work shared evenly, and the longest work tile unless it may be split."""
    if len(costs) == 0:
        return 0.0
    even = float(costs.sum()) / workers
    return even if splittable else max(even, float(costs.max()))
