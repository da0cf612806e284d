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
from .walk import EMPTY, FULL, Grid, Walk, WorkItem, row_records, run_record

WARP = 32


@dataclass(frozen=True)
class Runs(Carried):
    """Where one role is in its row. valid: there are tiles begin .. stop - 1; hidden: the mask hides keys in them, or they reach
    past the last key. half: of kinds that tell the halves of a row apart (`flexfa4.sparsity.halves`), whose these are: tiles that
    hold nothing for it are passed over (begin is stop); None: all tiles. The rest is for `next`: end and kind of the record they
    are from, where the row ends, how many tiles of the sequence have all their keys, and which record comes next, read ahead."""

    valid: Boolean
    begin: Int32
    stop: Int32
    hidden: Boolean
    end: Int32
    kind: Int32 | int
    limit: Int32
    whole: Int32
    run: Int32
    last_run: Int32
    next_begin: Int32 | None = None
    next_end: Int32 | None = None
    next_kind: Int32 | None = None
    runs: cute.Tensor | None = None
    half: Int32 | None = None

    def at(self, begin: Int32, end: Int32, kind: Int32 | int) -> Runs:
        """The first tiles of begin .. end - 1 that are alike: a record is cut before a tile that has not all its keys."""
        end = _smaller(end, self.limit)
        whole = Boolean(begin < self.whole)
        stop = select(whole, _smaller(end, self.whole), end, Int32)
        found = replace(self, valid=Boolean(begin < end), begin=begin, stop=stop, end=end, kind=kind)
        if self.half is None:
            return replace(found, hidden=Boolean(kind != FULL) | ~whole)
        own = kind >> 2 * self.half & 3
        return replace(found, begin=select(own == EMPTY, stop, begin, Int32), hidden=Boolean(own != FULL) | ~whole)

    def next(self) -> Runs:
        if self.runs is None:
            return self.at(self.stop, self.end, self.kind)
        rest = Boolean(self.stop < self.end)
        run = self.run + select(rest, Int32(0), Int32(1), Int32)
        begin = select(rest, self.stop, self.next_begin, Int32)
        end = select(rest, self.end, self.next_end, Int32)
        kind = select(rest, self.kind, self.next_kind, Int32)
        moved = replace(self, run=run).at(begin, end, kind)
        return replace(moved, valid=moved.valid & Boolean(run < self.last_run)).read_ahead()

    def read_ahead(self) -> Runs:
        begin, end, kind = run_record(self.runs, self.run + 1, self.last_run)
        return replace(self, next_begin=begin, next_end=end, next_kind=kind)

    def halves(self) -> Int32:
        """Which halves see something of these tiles, a bit each."""
        first, second = (select(self.kind >> 2 * i & 3 == EMPTY, Int32(0), Int32(1 << i), Int32) for i in range(2))
        return cute.arch.make_warp_uniform(first | second)


def runs_from(walk: Walk, whole_tiles: Int32, half: Int32 | None = None) -> Runs:
    """Where a walk begins. whole_tiles: how many tiles of the sequence have all their keys; half: of `Runs`."""
    row = Runs(
        walk.valid, walk.tile, walk.stop, walk.valid, walk.stop, walk.kind, walk.limit, whole_tiles, walk.run, walk.last_run,
        runs=walk.runs, half=half,
    )  # fmt: skip
    row = row if walk.runs is None else row.read_ahead()
    first = row.at(walk.tile, walk.stop, walk.kind)
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
