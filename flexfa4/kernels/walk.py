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
from flexfa4.schedule.work import EMPTY, FULL, INSIDE, PARTIAL, UNSPLIT

from .carried import Carried

__all__ = ["EMPTY", "FULL", "INSIDE", "PARTIAL", "UNSPLIT", "Grid", "Place", "Walk", "WorkItem", "kind_of", "next_index",
           "place_of", "row_records", "run_record", "start_walk", "work_item"]


@dataclass(frozen=True)
class Grid(Carried):
    """How many tiles there are: query tiles of a row of work items, heads as work items count them (fewer where `packed` heads
    share a query tile), and KV tiles."""

    q_tiles: Int32
    heads: Int32
    kv_tiles: Int32
    packed: Int32


@dataclass(frozen=True)
class WorkItem(Carried):
    """`flexfa4.schedule.WorkTile` in registers."""

    batch: Int32
    head: Int32
    q_tile: Int32
    kv_begin: Int32
    kv_end: Int32
    part: Int32


@dataclass(frozen=True)
class Place(Carried):
    """Where a work item lies in the score matrix, in positions: its rows are queries from q_begin on, of which those before q_end
    are its own; its kv tile t holds keys from kv_begin + t * kv_tile on, of which those before kv_end exist for it."""

    q_begin: Int32
    q_end: Int32
    kv_begin: Int32
    kv_end: Int32


def place_of(item: WorkItem, spans: tuple | None, rows: int, lengths: tuple[Int32, Int32]) -> Place:
    """Where the spans put an item, or the grid of `rows` query rows a tile. lengths: queries, keys."""
    if spans is None or spans[4] is None:
        return Place(item.q_tile * rows, lengths[0], Int32(0), lengths[1])
    return Place(*(spans[4][_span_row(item, spans), column] for column in range(4)))


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
def next_index(index: Int32, counter: cute.Tensor | None, count: Int32, takers: Int32 | None = None) -> Int32:
    """The next work index of this CTA, drawn by one warp. Without a counter every CTA takes every grid-th; with one (int32 [1],
    0 before the launch) whoever is free first takes the next. A CTA draws until it gets an index past the end: the draw that
    must be the last one sets the counter back to 0 for the next launch. takers: how many draw, by default every CTA."""
    step = cute.arch.grid_dim()[0] if cutlass.const_expr(takers is None) else takers
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
    """Where one role is in its row. valid: there is a tile; tile: its index; kind: FULL, PARTIAL or INSIDE (a Python int where no
    mask was given). The rest is the walk's own: the run it is in. Bounds are exclusive in the walk's direction. backwards: from
    the last tile to the first."""

    valid: Boolean
    tile: Int32
    kind: Int32 | int
    stop: Int32
    limit: Int32
    run: Int32
    last_run: Int32
    runs: cute.Tensor | None = None
    backwards: bool = False

    def next(self) -> "Walk":
        """One tile on, without branches. With runs it reads the record of that tile's run, so call it beside a product: a record
        read a tile ahead takes three registers throughout the softmax, which kernels with score graphs do not have."""
        tile = self.tile - 1 if self.backwards else self.tile + 1
        if self.runs is None:
            return replace(self, tile=tile, valid=self.before(tile, self.limit))
        moved = Boolean(tile == self.stop)
        run = self.run + select(moved, Int32(-1 if self.backwards else 1), Int32(0), Int32)
        begin, stop, kind = run_record(self.runs, run, self.last_run, self.backwards)
        tile = select(moved, begin, tile, Int32)
        valid = self.before(run, self.last_run) & self.before(tile, self.limit)
        return replace(self, valid=valid, tile=tile, kind=kind, stop=stop, run=run)

    def before(self, a: Int32, b: Int32) -> Boolean:
        """Whether the walk meets `a` before `b`."""
        return Boolean(a > b) if self.backwards else Boolean(a < b)


def kind_of(kind: Int32, half: Int32 | int) -> Int32:
    """Of one half, of a kind that tells two apart (`flexfa4.sparsity.halves`)."""
    return kind >> 2 * half & 3


def start_walk(item: WorkItem, spans: tuple | None, grid: Grid, split: bool, backwards: bool = False) -> Walk:
    """The walk at the first tile of an item. spans: `arguments.fake_arguments`' (None: every tile is FULL). split: whether items
    may begin inside their row; otherwise their range is that of the row."""
    low, high = (item.kv_begin, item.kv_end) if split or spans is None else (Int32(0), grid.kv_tiles)
    near, limit = (high - 1, low - 1) if backwards else (low, high)
    if spans is None:
        none = Int32(0)
        return Walk(Boolean(low < high), near, FULL, limit, limit, none, none, backwards=backwards)
    runs = spans[1]
    first, last = row_records(item, spans)
    run, last_run = (last - 1, first - 1) if backwards else (first, last)
    begin, stop, kind = run_record(runs, run, last_run, backwards)
    if split:
        run, begin, stop, kind = _skip(runs, run, last_run, near, backwards)
        clipped = begin > near if backwards else begin < near
        begin = select(clipped, near, begin, Int32)
    walk = Walk(Boolean(True), begin, kind, stop, limit, run, last_run, runs=runs, backwards=backwards)
    return replace(walk, valid=walk.before(run, last_run) & walk.before(begin, limit))


def _span_row(item: WorkItem, spans: tuple) -> Int32:
    return item.batch * spans[2] + item.head * spans[3] + item.q_tile


def row_records(item: WorkItem, spans: tuple) -> tuple[Int32, Int32]:
    """(first, one past the last) record of an item's row in the list of runs."""
    row = _span_row(item, spans)
    return spans[0][row], spans[0][row + 1]


def run_record(runs: cute.Tensor, run: Int32, last_run: Int32, backwards: bool = False) -> tuple[Int32, Int32, Int32]:
    """A run's first tile, exclusive end and kind, in the walk's direction; of one past the last, some record that exists and is
    not used."""
    at = select(run > last_run if backwards else run < last_run, run, Int32(0) if backwards else last_run - 1, Int32)
    at = select(at < 0, Int32(0), at, Int32)
    begin, end, kind = runs[at, 0], runs[at, 1], runs[at, 2]
    return (end - 1, begin - 1, kind) if backwards else (begin, end, kind)


@cute.jit
def _skip(runs: cute.Tensor, run: Int32, last_run: Int32, near: Int32, backwards: bool):
    """The first run that reaches the tile `near`, or one after it."""
    begin, stop, kind = run_record(runs, run, last_run, backwards)
    if cutlass.const_expr(backwards):
        while (run > last_run) & (stop >= near):
            run -= 1
            begin, stop, kind = run_record(runs, run, last_run, backwards)
    else:
        while (run < last_run) & (stop <= near):
            run += 1
            begin, stop, kind = run_record(runs, run, last_run, backwards)
    return run, begin, stop, kind
