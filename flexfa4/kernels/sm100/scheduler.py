"""Which work items a CTA takes, and which tiles of them: static persistent, every role by itself, from the same arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cutlass.cute as cute
from cutlass import Boolean, Int32

from ..carried import Fixed
from ..walk import Grid, Walk, WorkItem, start_walk, work_item


@dataclass(frozen=True)
class StaticScheduler(Fixed):
    """CTA c of n takes items c, c + n, c + 2 n ... of `count`; long items come first in a work list, so the CTAs end together."""

    work: cute.Tensor | None
    spans: tuple | None
    grid: Grid
    count: Int32
    split: bool

    def first_item(self) -> Int32:
        return cute.arch.block_idx()[0]

    def next_item(self, index: Int32) -> Int32:
        return index + cute.arch.grid_dim()[0]

    def item(self, index: Int32) -> WorkItem:
        return work_item(index, self.work, self.grid)

    def walk(self, item: WorkItem) -> Walk:
        """At the item's first tile."""
        return uniform(start_walk(item, self.spans, self.grid, self.split))

    def next_tile(self, walk: Walk) -> Walk:
        return uniform(walk.next())


def uniform(walk: Walk) -> Walk:
    """Tells the compiler that the lanes of a warp walk together: it branches and addresses without registers of threads, and does
    not unroll a loop whose length it could otherwise compute."""
    valid = Boolean(cute.arch.make_warp_uniform(Int32(walk.valid)) != 0)
    kind = walk.kind if isinstance(walk.kind, int) else cute.arch.make_warp_uniform(walk.kind)
    return replace(walk, valid=valid, tile=cute.arch.make_warp_uniform(walk.tile), kind=kind)
