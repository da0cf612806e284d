"""Device code: a work item and where its walk begins, through shared memory, from the role that reads the lists to the others.

So only one warp waits for the lists in global memory, ahead of the work, and a work counter is drawn from once for a CTA.
"""
from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Boolean, Int32

from flexfa4.plan.forward import WORK_TILE_BYTES

from .carried import Fixed
from .walk import FULL, Walk, WorkItem

WORDS = WORK_TILE_BYTES // 4
# In place of a batch: there is no more work.
NO_MORE = -1


@dataclass(frozen=True)
class Slots(Fixed):
    """words: int32 [stages, WORDS] in shared memory. The writer's barrier arrival orders its words before the readers'.
    backwards: the direction of the walks."""

    words: cute.Tensor
    backwards: bool = False

    def write(self, stage: Int32, item: WorkItem, walk: Walk) -> None:
        """By one thread, before it arrives at the barrier that the readers wait for."""
        begin = [Int32(walk.valid), walk.tile, Int32(walk.kind), walk.stop, walk.limit, walk.run, walk.last_run]
        for i, word in enumerate([item.batch, item.head, item.q_tile, item.kv_begin, item.kv_end, item.part, *begin]):
            self.words[stage, i] = word

    def write_end(self, stage: Int32) -> None:
        self.words[stage, 0] = Int32(NO_MORE)

    def read(self, stage: Int32, spans: tuple | None) -> tuple[Boolean, WorkItem, Walk]:
        """(whether there is work, the item, its walk)."""
        word = [self.words[stage, i] for i in range(13)]
        item = WorkItem(*word[:6])
        valid, tile, kind, stop, limit, run, last_run = word[6:]
        busy = Boolean(item.batch != NO_MORE)
        if spans is None:
            return busy, item, Walk(Boolean(valid != 0), tile, FULL, stop, limit, run, last_run, backwards=self.backwards)
        walk = Walk(Boolean(valid != 0), tile, kind, stop, limit, run, last_run, runs=spans[1], backwards=self.backwards)
        return busy, item, walk.read_ahead()
