"""Device code: a work item and where its walk begins, through shared memory, from the role that reads the lists to the others.

So only one warp waits for the lists in global memory, ahead of the work, and a work counter is drawn from once for a CTA.
"""
from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Boolean, Int32

from flexfa4.emit.values import select
from flexfa4.plan.forward import WORK_TILE_BYTES

from .carried import Fixed
from .walk import EMPTY, FULL, Place, Walk, WorkItem, kind_of, place_of

WORDS = WORK_TILE_BYTES // 4
# In place of a batch: there is no more work.
NO_MORE = -1
# Words of a slot: an item, its walk, its place, which halves pass over the first tile, and the walk after that.
ITEM, WALK, PLACE, PASSES, AFTER = 0, 4, 11, 15, 16


@dataclass(frozen=True)
class Slots(Fixed):
    """words: int32 [slots, WORDS] in shared memory. The writer's barrier arrival orders its words before the readers'.
    backwards: the direction of the walks. placed: items lie where their spans say, not on a grid. halved: kinds tell halves
    apart (`flexfa4.sparsity.halves`), and one that sees nothing of the first tile passes over it, if another follows."""

    words: cute.Tensor
    backwards: bool = False
    placed: bool = False
    halved: bool = False

    def write(self, slot: Int32, item: WorkItem, place: Place, walk: Walk) -> None:
        """By one thread, before it arrives at the barrier that the readers wait for."""
        words = [item.batch, item.head, item.q_tile, item.part]
        words += _words(walk)
        words += [place.q_begin, place.q_end, place.kv_begin, place.kv_end] if self.placed else [Int32(0)] * 4
        if self.halved:
            after = walk.next()
            nothing = [after.valid & (kind_of(walk.kind, half) == EMPTY) for half in (0, 1)]
            upper, lower = (select(is_so, Int32(1 << half), Int32(0), Int32) for half, is_so in enumerate(nothing))
            words += [upper | lower, *_words(after)]
        for i, word in enumerate(words):
            self.words[slot, i] = word

    def write_end(self, slot: Int32) -> None:
        self.words[slot, 0] = Int32(NO_MORE)

    def copy(self, slot: Int32, to: Int32) -> None:
        """By a whole warp."""
        lane = cute.arch.lane_idx()
        self.words[to, lane] = self.words[slot, lane]
        cute.arch.sync_warp()

    def passes(self, slot: Int32, half: Int32) -> Boolean:
        """Whether a half passes over the first tile."""
        return Boolean(self.words[slot, PASSES] >> half & 1 != 0)

    def read(self, slot: Int32, spans: tuple | None, rows: int, lengths: tuple,
             passes: Boolean | None = None) -> tuple[Boolean, WorkItem, Place, Walk]:
        """(whether there is work, the item without its range of KV tiles, its place, its walk). rows, lengths: as `place_of`
        takes them. passes: the walk is that after the first tile; None: it is not."""
        first = WALK if passes is None else select(passes, Int32(AFTER), Int32(WALK), Int32)
        batch, head, q_tile, part, *place = (self.words[slot, i] for i in (*range(ITEM, WALK), *range(PLACE, PASSES)))
        valid, tile, kind, stop, limit, run, last_run = (self.words[slot, first + i] for i in range(PLACE - WALK))
        item = WorkItem(batch, head, q_tile, Int32(0), Int32(0), part)
        where = Place(*place) if self.placed else place_of(item, None, rows, lengths)
        busy = Boolean(batch != NO_MORE)
        if spans is None:
            flat = Walk(Boolean(valid != 0), tile, FULL, stop, limit, run, last_run, backwards=self.backwards)
            return busy, item, where, flat
        walk = Walk(Boolean(valid != 0), tile, kind, stop, limit, run, last_run, runs=spans[1],
                    backwards=self.backwards)
        return busy, item, where, walk


def _words(walk: Walk) -> list[Int32]:
    return [Int32(walk.valid), walk.tile, Int32(walk.kind), walk.stop, walk.limit, walk.run, walk.last_run]
