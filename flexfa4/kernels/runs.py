"""Device code: along the tiles of a row run by run, for warp roles whose inner loop must not carry the list; and their number.

    row = runs_from(start_walk(item, spans, grid, split), whole_tiles)
    while row.valid:
        ...  tiles row.begin .. row.stop - 1; row.hidden  ...
        row = row.next()

Run by run comes to the same tiles in the same order as `walk.Walk`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from flexfa4.emit.values import select

from .carried import Carried
from .walk import FULL, Grid, Walk, WorkItem, row_records, run_record

WARP = 32


@dataclass(frozen=True)
class Runs(Carried):
    """Where one role is in its row. valid: there are tiles begin .. stop - 1; hidden: the mask hides keys in them, or they reach
    past the last key. The rest is for `next`: end and kind of the record they are from, where the row ends, how many tiles of the
    sequence have all their keys, and which record comes next, read ahead."""

    valid: Boolean
    begin: Int32
    stop: Int32
    hidden: Boolean
    end: Int32
    partial: Boolean
    limit: Int32
    whole: Int32
    run: Int32
    last_run: Int32
    next_begin: Int32 | None = None
    next_end: Int32 | None = None
    next_kind: Int32 | None = None
    runs: cute.Tensor | None = None

    def at(self, begin: Int32, end: Int32, partial: Boolean) -> Runs:
        """The first tiles of begin .. end - 1 that are alike: a record is cut before a tile that has not all its keys."""
        end = _smaller(end, self.limit)
        whole = Boolean(begin < self.whole)
        stop = select(whole, _smaller(end, self.whole), end, Int32)
        found = replace(self, valid=Boolean(begin < end), begin=begin, stop=stop, end=end)
        return replace(found, partial=partial, hidden=partial | ~whole)

    def next(self) -> Runs:
        if self.runs is None:
            return self.at(self.stop, self.end, self.partial)
        rest = Boolean(self.stop < self.end)
        run = self.run + select(rest, Int32(0), Int32(1), Int32)
        begin = select(rest, self.stop, self.next_begin, Int32)
        end = select(rest, self.end, self.next_end, Int32)
        partial = select(rest, self.partial, Boolean(self.next_kind != FULL), Boolean)
        moved = replace(self, run=run).at(begin, end, partial)
        return replace(moved, valid=moved.valid & Boolean(run < self.last_run)).read_ahead()

    def read_ahead(self) -> Runs:
        begin, end, kind = run_record(self.runs, self.run + 1, self.last_run)
        return replace(self, next_begin=begin, next_end=end, next_kind=kind)


def runs_from(walk: Walk, whole_tiles: Int32) -> Runs:
    """Where a walk begins. whole_tiles: how many tiles of the sequence have all their keys."""
    partial = Boolean(walk.kind != FULL)
    row = Runs(
        walk.valid, walk.tile, walk.stop, partial, walk.stop, partial, walk.limit, whole_tiles, walk.run, walk.last_run,
        walk.next_begin, walk.next_stop, walk.next_kind, walk.runs,
    )  # fmt: skip
    first = row.at(walk.tile, walk.stop, partial)
    return replace(first, valid=first.valid & walk.valid)


@cute.jit
def count_tiles(item: WorkItem, spans: tuple | None, grid: Grid, split: cutlass.Constexpr) -> Int32:
    """How many tiles an item's row has, for a role that needs not know which. By a whole warp, a record a lane."""
    total = item.kv_end - item.kv_begin
    if cutlass.const_expr(spans is not None):
        first, last = row_records(item, spans)
        low, high = (item.kv_begin, item.kv_end) if cutlass.const_expr(split) else (Int32(0), grid.kv_tiles)
        total = Int32(0)
        while first < last:
            at = first + cute.arch.lane_idx()
            begin, end, _ = run_record(spans[1], at, last)
            begin, end = select(begin < low, low, begin, Int32), _smaller(end, high)
            total += select((at < last) & (begin < end), end - begin, Int32(0), Int32)
            first += WARP
        total = cute.arch.warp_redux_sync(total, "add")
    return cute.arch.make_warp_uniform(total)


def _smaller(a: Int32, b: Int32) -> Int32:
    return select(a < b, a, b, Int32)
