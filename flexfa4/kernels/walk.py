"""Device code: from a work index to a work item, and along the KV tiles of its row. Every warp role walks by itself.

    item = work_item(index, work, grid)
    walk = start_walk(item, spans, grid, split=False)
    while walk.valid:
        ...  walk.tile, walk.kind  ...
        walk = walk.next()

Both are values that a staged loop can carry.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from flexfa4.emit.values import select
from flexfa4.schedule.work import FULL, PARTIAL, UNSPLIT

from .carried import Carried

__all__ = ["FULL", "PARTIAL", "UNSPLIT", "Grid", "Walk", "WorkItem", "next_index", "row_records", "run_record",
           "start_walk", "work_item"]


@dataclass(frozen=True)
class Grid(Carried):
    """How many tiles there are: query tiles of a row of work items, heads as work items count them (KV heads where a query tile
    packs the heads of one), and KV tiles."""

    q_tiles: Int32
    heads: Int32
    kv_tiles: Int32


@dataclass(frozen=True)
class WorkItem(Carried):
    """`flexfa4.schedule.WorkTile` in registers."""

    batch: Int32
    head: Int32
    q_tile: Int32
    kv_begin: Int32
    kv_end: Int32
    part: Int32


def work_item(index: Int32, work: cute.Tensor | None, grid: Grid) -> WorkItem:
    """Item `index` of the list. Without a list: whole rows, the last query tiles first (they have the most keys under causal
    masks), all of one head before the next, so that CTAs that run together share K and V in the L2 cache."""
    if work is not None:
        return WorkItem(*(work[index, column] for column in range(6)))
    row = index // grid.q_tiles
    q_tile = grid.q_tiles - 1 - (index - row * grid.q_tiles)
    batch = row // grid.heads
    return WorkItem(batch, row - batch * grid.heads, q_tile, Int32(0), grid.kv_tiles, Int32(UNSPLIT))


@cute.jit
def next_index(index: Int32, counter: cute.Tensor | None, count: Int32) -> Int32:
    """The next work index of this CTA, drawn by one warp. Without a counter every CTA takes every grid-th; with one (int32 [1],
    0 before the launch) whoever is free first takes the next. A CTA draws until it gets an index past the end: the draw that
    must be the last one sets the counter back to 0 for the next launch."""
    step = cute.arch.grid_dim()[0]
    if cutlass.const_expr(counter is None):
        index += step
    else:
        drawn = Int32(0)
        if cute.arch.lane_idx() == 0:
            drawn = cute.arch.atomic_add(counter.iterator.llvm_ptr, Int32(1))
        index = step + cute.arch.shuffle_sync(drawn, 0)
        if (index == count + step - 1) & (cute.arch.lane_idx() == 0):
            counter[0] = Int32(0)
    return index


@dataclass(frozen=True)
class Walk(Carried):
    """Where one role is in its row. valid: there is a tile; tile: its index; kind: FULL or PARTIAL (a Python int where no mask
    was given). The rest is the walk's own: the run it is in, and the one after, read ahead so that its latency is hidden."""

    valid: Boolean
    tile: Int32
    kind: Int32 | int
    stop: Int32
    limit: Int32
    run: Int32
    last_run: Int32
    next_begin: Int32 | None = None
    next_stop: Int32 | None = None
    next_kind: Int32 | None = None
    runs: cute.Tensor | None = None

    def next(self) -> "Walk":
        """One tile on, without branches."""
        tile = self.tile + 1
        if self.runs is None:
            return replace(self, tile=tile, valid=Boolean(tile < self.limit))
        moved = Boolean(tile >= self.stop)
        run = self.run + select(moved, Int32(1), Int32(0), Int32)
        tile = select(moved, self.next_begin, tile, Int32)
        stop = select(moved, self.next_stop, self.stop, Int32)
        kind = select(moved, self.next_kind, self.kind, Int32)
        valid = Boolean(run < self.last_run) & Boolean(tile < self.limit)
        return replace(self, valid=valid, tile=tile, kind=kind, stop=stop, run=run).read_ahead()

    def read_ahead(self) -> "Walk":
        """With the run after this one."""
        begin, stop, kind = run_record(self.runs, self.run + 1, self.last_run)
        return replace(self, next_begin=begin, next_stop=stop, next_kind=kind)


def start_walk(item: WorkItem, spans: tuple | None, grid: Grid, split: bool) -> Walk:
    """The walk at the first tile of an item. spans: `arguments.fake_arguments`' (None: every tile is FULL). split: whether items
    may begin inside their row; otherwise their range is that of the row."""
    if spans is None:
        none = Int32(0)
        return Walk(Boolean(item.kv_begin < item.kv_end), item.kv_begin, FULL, item.kv_end, item.kv_end, none, none)
    runs = spans[1]
    first, last = row_records(item, spans)
    limit = item.kv_end if split else grid.kv_tiles
    begin, stop, kind = run_record(runs, first, last)
    if split:
        first, begin, stop, kind = _skip(runs, first, last, item.kv_begin)
        begin = select(begin < item.kv_begin, item.kv_begin, begin, Int32)
    valid = Boolean(first < last) & Boolean(begin < limit)
    return Walk(valid, begin, kind, stop, limit, first, last, runs=runs).read_ahead()


def row_records(item: WorkItem, spans: tuple) -> tuple[Int32, Int32]:
    """(first, one past the last) record of an item's row in the list of runs."""
    row_ptr, _, batch_stride, head_stride = spans
    row = item.batch * batch_stride + item.head * head_stride + item.q_tile
    return row_ptr[row], row_ptr[row + 1]


def run_record(runs: cute.Tensor, run: Int32, last_run: Int32) -> tuple[Int32, Int32, Int32]:
    """A run's (begin, end, kind); of one past the last, some record that exists and is not used."""
    at = select(run < last_run, run, last_run - 1, Int32)
    at = select(at < 0, Int32(0), at, Int32)
    return runs[at, 0], runs[at, 1], runs[at, 2]


@cute.jit
def _skip(runs: cute.Tensor, first: Int32, last: Int32, kv_begin: Int32):
    """The first run that reaches past kv_begin."""
    begin, stop, kind = run_record(runs, first, last)
    while (first < last) & (stop <= kv_begin):
        first += 1
        begin, stop, kind = run_record(runs, first, last)
    return first, begin, stop, kind
