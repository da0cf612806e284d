"""Which work items a CTA (or a pair of CTAs) takes, and which tiles of them. Every role finds the tiles by itself, from the same
arguments.

Static: every role counts CTAs. Otherwise the scheduler warp asks for the next item, from a counter in memory or from the hardware
(cluster launch control: it hands over a CTA that has not been launched), and tells the roles its index through shared memory. It
asks as soon as every role has begun the item before, and so holds one item back at most."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from flexfa4.emit.values import select

from ..carried import Carried, Fixed
from ..runs import Runs, count_tiles, runs_from
from ..walk import Grid, WorkItem, next_index, start_walk, work_item
from .barriers import Barriers

ANSWER_BYTES = 16  # of cluster launch control
INDEX_BYTES = 4


@dataclass(frozen=True)
class Position(Carried):
    """Where a role is in the CTA's work. index: of the item; parity: of the word that brings the next one."""

    index: Int32
    parity: Int32


@dataclass(frozen=True)
class Scheduler(Fixed):
    """Items are `count`, long ones first in a work list. kind: `Sm100Forward.scheduler`; ctas: that take an item together.
    Static: CTA (pair) c of n takes items c, c + n, c + 2 n ...; otherwise c and what comes. counter: `arguments.Lists`'. word:
    int32 [4] in shared memory. whole_tiles: KV tiles that have all their keys."""

    kind: str
    ctas: int
    work: cute.Tensor | None
    spans: tuple | None
    grid: Grid
    whole_tiles: Int32
    count: Int32
    split: bool
    counter: cute.Tensor | None
    word: cute.Pointer
    barriers: Barriers

    def first(self) -> Position:
        return Position(cute.arch.block_idx()[0] // self.ctas, Int32(0))

    def takers(self) -> Int32:
        """CTAs or pairs that were launched."""
        return cute.arch.grid_dim()[0] // self.ctas

    def busy(self, at: Position) -> Boolean:
        return Boolean(at.index < self.count)

    def next(self, at: Position) -> Position:
        """By every role, once it has begun the item."""
        if self.kind == "static":
            return replace(at, index=at.index + self.takers())
        self.barriers.work_full.wait(0, at.parity)
        index = cute.arch.make_warp_uniform(self.read())
        self.barriers.work_empty.arrive(0)
        return Position(index, at.parity ^ 1)

    def read(self) -> Int32:
        """The index in the word; one past the last for no more work."""
        if self.kind == "counter":
            return cute.make_tensor(self.word, cute.make_layout(1))[0]
        x, _, _, granted = cute.arch.clc_response(self.word)
        # The next answer is written by the asynchronous proxy.
        cute.arch.fence_proxy("async.shared", space="cta")
        return select(granted != 0, x, self.count, Int32)

    @cute.jit
    def run(self):
        """The scheduler warp."""
        at = self.first()
        while self.busy(at):
            self.barriers.work_empty.wait(0, at.parity ^ 1)
            if cutlass.const_expr(self.kind == "counter"):
                index = next_index(at.index, self.counter, self.count, self.takers())
                self.tell(index)
                at = Position(index, at.parity ^ 1)
            else:
                self.barriers.work_full.expect(0, ANSWER_BYTES)
                with cute.arch.elect_one():
                    cute.arch.issue_clc_query(self.barriers.work_full.pointer(0), self.word, multicast=False)
                at = self.next(at)
        if cutlass.const_expr(self.ctas > 1):
            # The CTA must not end before the other one has told that it has read.
            self.barriers.work_empty.wait(0, at.parity ^ 1)

    def tell(self, index: Int32) -> None:
        """The next index to the roles of this CTA, or of both."""
        if self.ctas == 1:
            with cute.arch.elect_one():
                cute.make_tensor(self.word, cute.make_layout(1))[0] = index
            self.barriers.work_full.arrive(0)
            return
        full = self.barriers.work_full.pointer(0)
        with cute.arch.elect_one():
            for rank in range(self.ctas):
                cute.arch.mbarrier_arrive_and_expect_tx(full, INDEX_BYTES, rank)
                cute.arch.store_async_dsmem(self.word, index, full, rank)

    def item(self, index: Int32) -> WorkItem:
        return work_item(index, self.work, self.grid)

    def runs(self, item: WorkItem, half: Int32 | None = None) -> Runs:
        """At the item's first tiles. half: those of one query tile, where the spans tell the two apart."""
        return uniform(runs_from(start_walk(item, self.spans, self.grid, self.split), self.whole_tiles, half))

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
