"""Which work items a CTA takes, and which tiles of them: static persistent, every role by itself, from the same arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cutlass.cute as cute
from cutlass import Boolean, Int32

from ..carried import Fixed
from ..runs import Runs, count_tiles, runs_from
from ..walk import Grid, WorkItem, start_walk, work_item


@dataclass(frozen=True)
class StaticScheduler(Fixed):
    """CTA c of n takes items c, c + n, c + 2 n ... of `count`; long items come first in a work list, so the CTAs end together.
    whole_tiles: KV tiles that have all their keys."""

    work: cute.Tensor | None
    spans: tuple | None
    grid: Grid
    whole_tiles: Int32
    count: Int32
    split: bool

    def first_item(self) -> Int32:
        return cute.arch.block_idx()[0]

    def next_item(self, index: Int32) -> Int32:
        return index + cute.arch.grid_dim()[0]

    def item(self, index: Int32) -> WorkItem:
        return work_item(index, self.work, self.grid)

    def runs(self, item: WorkItem) -> Runs:
        """At the item's first tiles."""
        return uniform(runs_from(start_walk(item, self.spans, self.grid, self.split), self.whole_tiles))

    def next_runs(self, runs: Runs) -> Runs:
        return uniform(runs.next())

    def tiles(self, item: WorkItem) -> Int32:
        """How many there are, for roles that only take turns."""
        return count_tiles(item, self.spans, self.grid, self.split)


def uniform(runs: Runs) -> Runs:
    """Tells the compiler that the lanes of a warp walk together: it branches and addresses without registers of threads."""
    one = cute.arch.make_warp_uniform
    flags = {name: Boolean(one(Int32(getattr(runs, name))) != 0) for name in ("valid", "hidden")}
    return replace(runs, begin=one(runs.begin), stop=one(runs.stop), **flags)


def following(tile: Int32) -> Int32:
    """The next tile or count of an inner loop; the compiler does not see its length, and does not unroll it."""
    return cute.arch.make_warp_uniform(tile + 1)
