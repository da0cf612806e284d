"""The softmax warpgroups, one a query tile: S from tensor memory, a row a thread; P back over S; factor and LSE at the end.

The row maximum that scores are measured from moves only when it would grow by more than `rescale_tau` (in log2): P stays below
2**tau, and O need not be rescaled. The sums are of the same exponentials, so the final division makes the result exact.

What a score graph adds to the score and multiplies it by is not computed in it: additions come with the scale, before the maximum
(`additions.py`), and what is the same for a row into its LSE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import tcgen05

from flexfa4.ir import Op
from flexfa4.plan.hoist import element_operations

from ..exp2 import exp2_packed
from ..carried import Carried, Fixed
from ..hooks import Hooks, RowHooks
from ..rounding import LEAST
from ..runs import Runs
from ..slices import Area
from ..spread import ROOM, Spread
from ..units import BOUNDED
from ..walk import UNSPLIT, Place, WorkItem
from .additions import Additions, LineTable
from .context import Context
from .exponents import Exponents
from .scheduler import following

WARP = 32
LOAD_COLUMNS = 32  # of S in one tcgen05.ld
STORE_COLUMNS = 32  # of P in one tcgen05.st, in 16 words
# Operations of a graph for each element that 128 copies are made of; an instruction has 16 bytes.
MOST_UNROLLED = 7
# Named barriers, one a query tile; 0 is __syncthreads'.
FIRST_BARRIER = 1
BOTH_HALVES = 0b11


@dataclass(frozen=True)
class State(Carried):
    """What a thread carries from tile to tile. s_parity, empty_parity: of the next s_full and scale_empty; row_max: what scores
    are measured from (`Exponents`); row_sum: of the exponentials so far. turn_parity: of the next exp_turn, where the plan has
    it."""

    s_parity: Int32
    empty_parity: Int32
    row_max: Float32
    row_sum: Float32
    turn_parity: Int32 | None = None

    def restarted(self) -> State:
        """At a new row."""
        return replace(self, row_max=Float32(LEAST), row_sum=Float32(0.0))


@dataclass(frozen=True)
class Edits(Fixed):
    """How the graphs run. scored: the score graph has more than additions and factors; far: its numbers may be far from 0;
    in_units: they come in units of the exponent. in_registers: it runs, and additions are made, on a row of S in registers on
    tiles without hidden keys: not where it is so long that 128 copies of it fill the instruction cache. columns: of S at a time
    where graphs run in a loop: fewer where they need more registers for each. spread: of the score and the mask graph, whether
    values of distances go through the place of the statistics."""

    scored: bool
    far: bool
    in_units: bool
    in_registers: bool
    columns: int
    spread: tuple[bool, bool]

    @staticmethod
    def of(hooks: Hooks) -> Edits:
        score = element_operations(hooks.split.inner) if hooks.split else 0
        mask = element_operations(hooks.emitters["mask"].graph.root) if hooks.has("mask") else 0
        scored = hooks.split is not None and hooks.split.inner.op is not Op.SCORE
        far = scored and hooks.split.inner.op not in BOUNDED
        spread = bool(hooks.spread.get("score")), bool(hooks.spread.get("mask"))
        columns = 32 if score + mask <= MOST_UNROLLED else 16
        unrolled = score <= MOST_UNROLLED and not spread[0] and not hooks.reads.get("score")
        return Edits(scored, far, hooks.units is not None, unrolled, columns, spread)


@dataclass(frozen=True)
class Row(Fixed):
    """What a thread needs of its row. scale: of the scores inside exp2; place: of the work item; table: where the score graph has
    one."""

    hooks: RowHooks
    scale: Float32
    place: Place
    edits: Edits
    table: LineTable | None


@dataclass(frozen=True)
class Softmax(Fixed):
    """q_tile: which query tile of a work item; thread: the row in it."""

    ctx: Context
    q_tile: Int32
    thread: Int32

    @cute.jit
    def run(self):
        ctx, scheduler, barriers = self.ctx, self.ctx.scheduler, self.ctx.barriers
        hooks = Hooks(ctx.signature, ctx.values, own_rows=True)
        edits, table = Edits.of(hooks), self.table(hooks)
        state = State(Int32(0), Int32(1), Float32(0.0), Float32(0.0), self.first_turn())
        at = scheduler.first()
        while scheduler.busy(at):
            item = scheduler.item(at.index)
            runs = scheduler.runs(item, self.q_tile if ctx.signature.halved else None)
            place = ctx.place(item)
            rows = ctx.row_hooks(hooks, item, ctx.row(place, self.q_tile, self.thread))
            row = Row(rows, rows.exponent_scale(ctx.scale), place, edits, table)
            any_tile = Boolean(False) if cutlass.const_expr(ctx.signature.halved) else runs.valid
            state = state.restarted()
            while runs.valid:
                tile = runs.begin
                if cutlass.const_expr(ctx.signature.halved):
                    any_tile = any_tile | Boolean(tile < runs.stop)
                shared = self.shared(runs)
                while tile < runs.stop:
                    state = self.tile(row, tile, runs.hidden, shared, state)
                    tile = following(tile)
                runs = scheduler.next_runs(runs)
            if any_tile:
                ctx.barriers.scale_empty.wait(self.q_tile, state.empty_parity)
                added = Additions.of(row.hooks, place.kv_begin, ctx.tiles.kv_tile, table)
                factor, lse = self.exponents(row, added).end(state.row_max, state.row_sum, added.of_row)
                ctx.statistics.lse[self.thread, self.q_tile] = lse
                state = self.hand_over(state, factor)
            if cutlass.const_expr(ctx.parts is not None):
                if item.part != UNSPLIT:
                    self.tell_part(row, item, state)
            at = scheduler.next(at)
        barriers.tmem_free.arrive(0)

    @cute.jit
    def tell_part(self, row: Row, item: WorkItem, state: State):
        """Statistics of a piece of a row that exists, to memory."""
        ctx, place = self.ctx, row.place
        if ctx.packing.exists(ctx.row(place, self.q_tile, self.thread), place.q_end):
            added = Additions.of(row.hooks, place.kv_begin, ctx.tiles.kv_tile, row.table)
            told = self.exponents(row, added).part(state.row_max, state.row_sum, added.of_row)
            at = ctx.row_of_part(self.q_tile, self.thread)
            for i in cutlass.range_constexpr(len(told)):
                ctx.parts[1][item.part, at, i] = told[i]

    def table(self, hooks: Hooks) -> LineTable | None:
        """Where the score graph's lines are to be tabled."""
        if hooks.split is None or hooks.split.line is None:
            return None
        tiles, words = self.ctx.tiles, self.ctx.statistics.of_tile(self.q_tile)
        queries = tiles.q_tile // self.ctx.packing.pack
        return LineTable(hooks.split, words, (queries, tiles.kv_tile), self.thread, self.ctx.packing.query(self.thread),
                         FIRST_BARRIER + self.q_tile)

    @cute.jit
    def tile(self, row: Row, tile: Int32, hidden: Boolean, shared: Boolean | bool, state: State) -> State:
        """One KV tile: the graphs where it needs them, then the softmax. hidden: some keys are; shared: both query tiles see
        it."""
        ctx, barriers = self.ctx, self.ctx.barriers
        first = row.place.kv_begin + tile * ctx.tiles.kv_tile
        added = Additions.of(row.hooks, first, ctx.tiles.kv_tile, row.table)
        if cutlass.const_expr(row.table is None):
            barriers.s_full.wait(self.q_tile, state.s_parity)
        # Not right before the factor is written: exponentials would be moved up to before the wait, more than registers hold.
        # By halves every S but an item's first follows a product that correction has let go on after it read the factor; and the
        # first does where queries are loaded after the output before them is stored. A table is written before there is an S.
        by_halves, edits = ctx.signature.halved and ctx.tiles.out_over_q, row.edits
        if cutlass.const_expr(not by_halves or row.table is not None or any(edits.spread)):
            barriers.scale_empty.wait(self.q_tile, state.empty_parity)
        if cutlass.const_expr(row.table is not None):
            row.table.fill(row.hooks, ctx.query(row.place, self.q_tile), first)
            barriers.s_full.wait(self.q_tile, state.s_parity)
            row.table.synchronise()
        state = replace(state, s_parity=state.s_parity ^ 1)
        edited = edits.scored or added.by_column
        if cutlass.const_expr(edited and edits.in_registers):
            # Two copies of the step: with one, scores that come from two places are moved, and registers are spilled.
            if hidden:
                self.edit_in_place(row, first, added, True)
                state = self.softmax(self.load_s(), row, added, shared, state)
            else:
                s = self.load_s()
                self.edit(s, row, first, added, 0)
                state = self.softmax(s, row, added, shared, state)
        else:
            if hidden:
                self.edit_in_place(row, first, added, True)
            elif cutlass.const_expr(edited):
                self.edit_in_place(row, first, added, False)
            state = self.softmax(self.load_s(), row, added, shared, state)
        return state

    def edit(self, s: cute.Tensor, row: Row, first: Int32, added: Additions, offset, gathered: Sequence = (),
             spread: Spread | None = None) -> None:
        """The score graph and additions by column on a piece of a tile. first: its first key; offset: columns before it;
        gathered: `RowHooks.gathered` of it; spread: for values of distances."""
        columns = cute.size(s)
        area = Area((0,), tuple(range(columns)))
        unit = row.scale if row.edits.in_units else None
        row.hooks.score(s, columns_from(first, columns), self.ctx.scale, area, gathered,
                        added.kept(offset), unit, spread)
        if added.by_column:
            added.add(s, Float32(1.0) if row.edits.in_units else row.scale, offset)

    @cute.jit
    def edit_in_place(self, row: Row, tile_first: Int32, added: Additions, hidden: cutlass.Constexpr):
        """Runs the graphs on S in tensor memory, a few columns at a time in a loop: little code and few registers, for tiles that
        are rare or graphs that are long. hidden: keys that the mask hides, or that do not exist, get what becomes -inf."""
        width, count = self.ctx.tiles.kv_tile, row.edits.columns
        for chunk in cutlass.range(width // count, unroll=1):
            offset = chunk * count
            first = tile_first + offset
            gathered = row.hooks.gathered(first, self.spread(row, count))
            gathered += row.hooks.slices("score", first, Area((0,), tuple(range(count))))
            if cutlass.const_expr(len(gathered) > 0):
                # With the loads in common, the compiler would do both, and choose.
                if all_inside(gathered):
                    self.edit_chunk(row, first, added, offset, hidden, gathered)
                else:
                    self.edit_chunk(row, first, added, offset, hidden)
            else:
                self.edit_chunk(row, first, added, offset, hidden)
        if cutlass.const_expr(row.edits.spread[0] or hidden and row.edits.spread[1]):
            self.synchronise()
        cute.arch.fence_view_async_tmem_store()

    def edit_chunk(self, row: Row, first: Int32, added: Additions, offset: Int32, hidden: bool, gathered: Sequence = ()) -> None:
        """`edit_in_place` of the columns from `offset` on. gathered: `RowHooks.gathered`, inside."""
        t_s, count = self.ctx.shapes.s(self.q_tile), row.edits.columns
        load, store = (self.copy(t_s, op, count) for op in (tcgen05.Ld32x32bOp, tcgen05.St32x32bOp))
        part = first_columns(t_s, offset, count)
        r_s = load_columns(load, part)
        s = cute.make_tensor(r_s.iterator, cute.make_layout((1, count)))
        self.edit(s, row, first, added, offset, gathered, self.spread(row, count) if row.edits.spread[0] else None)
        if hidden:
            value = -math.inf if self.are_scaled(row, added) else row.hooks.hidden()
            row.hooks.mask_run(s, first, row.place.kv_end - first, self.spread(row, count), value)
        cute.copy(store, r_s, store.partition_D(part))

    def spread(self, row: Row, count: int) -> Spread:
        """Through the place of this warp's LSE, which is written at the end of a row; values of distances through a quarter of
        all that the query tile's warps have, factors of other warps among them, which no warp writes before all have read."""
        if row.table is not None and row.table.over_lse:
            return Spread(None, count)
        if any(row.edits.spread):
            place, room = self.ctx.statistics.of_tile(self.q_tile).iterator + self.warp() * ROOM, ROOM
        else:
            first = cute.arch.make_warp_uniform(self.thread // WARP * WARP)
            place, room = self.ctx.statistics.lse[None, self.q_tile].iterator + first, WARP
        words = cute.recast_ptr(place, dtype=Int32).align(16)
        return Spread(cute.make_tensor(words, cute.make_layout(room)), count)

    def synchronise(self) -> None:
        """The warps of the query tile."""
        cute.arch.barrier(barrier_id=FIRST_BARRIER + self.q_tile, number_of_threads=self.ctx.tiles.q_tile)

    @cute.jit
    def softmax(self, s: cute.Tensor, row: Row, added: Additions, shared: Boolean | bool, state: State) -> State:
        """Exponentials of a row of scores to P, its statistics to the correction warpgroup."""
        if cutlass.const_expr(row.table is not None):
            row.table.synchronise()
        exponents = self.exponents(row, added)
        row_max, factor = self.move_max(state.row_max, exponents.maximum(s), exponents)
        state = self.hand_over(replace(state, row_max=row_max), factor)
        self.take_turn(state.turn_parity, shared)
        total = self.write_p(s, exponents, exponents.offset(row_max), shared)
        state = self.turned(state, shared)
        return replace(state, row_sum=state.row_sum * factor + total)

    def are_scaled(self, row: Row, added: Additions) -> bool:
        """Whether the graphs leave scores in units of the exponent."""
        return added.by_column or row.edits.in_units

    def exponents(self, row: Row, added: Additions) -> Exponents:
        if self.are_scaled(row, added):
            return Exponents(None, False, False)
        return Exponents(row.scale, row.hooks.factor() is not None, row.edits.far)

    def first_turn(self) -> Int32 | None:
        """The parity of a softmax warp's first turn: query tile 0 begins, with the phase before the first."""
        return self.q_tile ^ 1 if self.ctx.tiles.out_of_step else None

    def shared(self, runs: Runs) -> Boolean | bool:
        """Whether both query tiles see the tiles of a run, so that turns are taken in them."""
        if not (self.ctx.tiles.out_of_step and self.ctx.signature.halved):
            return True
        return Boolean(runs.halves() == BOTH_HALVES)

    def turned(self, state: State, shared: Boolean | bool) -> State:
        """After a tile."""
        if state.turn_parity is None:
            return state
        flip = 1 if shared is True else Int32(shared)
        return replace(state, turn_parity=state.turn_parity ^ flip)

    @cute.jit
    def take_turn(self, parity: Int32 | None, shared: Boolean | bool):
        """Waits until the warp of the other query tile that shares the special function unit has done its exponentials."""
        if cutlass.const_expr(self.ctx.tiles.out_of_step > 0):
            if shared:
                self.ctx.barriers.exp_turn.wait(self.q_tile * 4 + self.warp(), parity)

    @cute.jit
    def pass_turn(self, shared: Boolean | bool):
        if cutlass.const_expr(self.ctx.tiles.out_of_step > 0):
            if shared:
                self.ctx.barriers.exp_turn.arrive((1 - self.q_tile) * 4 + self.warp())

    def warp(self) -> Int32:
        """Of the query tile's four."""
        return cute.arch.make_warp_uniform(self.thread // WARP)

    def hand_over(self, state: State, factor: Float32) -> State:
        """Tells the correction warpgroup the factor for O; its place is empty."""
        ctx, barriers = self.ctx, self.ctx.barriers
        ctx.statistics.factor[self.thread, self.q_tile] = factor
        barriers.scale_full.arrive(self.q_tile)
        return replace(state, empty_parity=state.empty_parity ^ 1)

    def copy(self, tensor: cute.Tensor, operation, columns: int):
        """This thread's copy between registers and `columns` columns of tensor memory."""
        atom = cute.make_copy_atom(operation(tcgen05.Repetition(columns)), Float32)
        return tcgen05.make_tmem_copy(atom, first_columns(tensor, 0, columns)).get_slice(self.thread)

    def load_s(self) -> cute.Tensor:
        """The thread's row of S, float32 [1, kv_tile]."""
        t_s = self.ctx.shapes.s(self.q_tile)
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(LOAD_COLUMNS)), Float32)
        r_s = load_columns(tcgen05.make_tmem_copy(atom, t_s).get_slice(self.thread), t_s)
        return cute.make_tensor(r_s.iterator, cute.make_layout((1, self.ctx.tiles.kv_tile)))

    @cute.jit
    def move_max(self, old: Float32, tile_max: Float32, exponents: Exponents):
        """(the maximum to measure from, the factor for what was measured from the old one)."""
        new = cute.arch.fmax(old, tile_max)
        moved = (old - new) * exponents.size
        factor = cute.math.exp2(moved, fastmath=True)
        if moved >= -self.ctx.tiles.rescale_tau:
            new = old
            factor = Float32(1.0)
        return new, factor

    def write_p(self, s: cute.Tensor, exponents: Exponents, offset: Float32, shared: Boolean | bool) -> Float32:
        """s becomes its exponentials; P, which is s rounded, goes to tensor memory and is announced in
        two parts. Returns the sum of s: of the first part while the exponentials of the second are under way."""
        barriers, tiles = self.ctx.barriers, self.ctx.tiles
        early = tiles.early_p or tiles.kv_tile
        self.write_columns(s, exponents, offset, 0, early, shared)
        barriers.p_ready.arrive(self.q_tile)
        sums = Sums().add(s, 0, early)
        if tiles.early_p:
            self.write_columns(s, exponents, offset, early, tiles.kv_tile, shared)
            barriers.p_full.arrive(self.q_tile)
            sums = sums.add(s, early, tiles.kv_tile)
        return sums.total()

    def write_columns(self, s: cute.Tensor, exponents: Exponents, offset: Float32, begin: int, end: int,
                      shared: Boolean | bool) -> None:
        """Columns begin .. end - 1 of P."""
        shapes = self.ctx.shapes
        t_p = shapes.p(self.q_tile)
        atom = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(STORE_COLUMNS // 2)), Float32)
        copy = tcgen05.make_tmem_copy(atom, t_p).get_slice(self.thread)
        target = copy.partition_D(t_p)
        words = cute.make_rmem_tensor(copy.partition_S(cute.make_identity_tensor(t_p.shape)).shape, Float32)
        p = cute.make_tensor(cute.recast_ptr(words.iterator, dtype=shapes.dtype), cute.make_layout(cute.size(s)))
        for first in range(begin, end, STORE_COLUMNS):
            for j in range(first, first + STORE_COLUMNS, 2):
                s[j], s[j + 1] = self.exponentials(j // 2, *exponents.of((s[j], s[j + 1]), offset))
                if j + 2 == self.ctx.tiles.out_of_step:
                    self.pass_turn(shared)
            part(p, first).store(part(s, first).load().to(shapes.dtype))
            chunk = first // STORE_COLUMNS
            cute.copy(copy, words[None, None, chunk], target[None, None, chunk])
        cute.arch.fence_view_async_tmem_store()

    def exponentials(self, pair: int, x: Float32, y: Float32) -> tuple[Float32, Float32]:
        """Of every 16 exponentials, 8 pairs, `software_exp` go to the FMA units, spread evenly."""
        share, slot = self.ctx.tiles.software_exp // 2, pair % 8
        if (slot + 1) * share // 8 > slot * share // 8:
            return exp2_packed(x, y, self.ctx.tiles.exp_degree)
        return cute.math.exp2(x, fastmath=True), cute.math.exp2(y, fastmath=True)


def all_inside(gathered: Sequence) -> Boolean:
    """Whether those of every thread of the warp are."""
    inside = Boolean(True)
    for g in gathered:
        inside = inside & g.inside
    return cute.arch.vote_all_sync(inside)


def columns_from(first: Int32, count: int) -> list[Int32]:
    return [first + j for j in range(count)]


def first_columns(tensor: cute.Tensor, offset, count: int) -> cute.Tensor:
    """Columns offset .. offset + count - 1 of a view of tensor memory."""
    rows = cute.size(tensor, mode=[0])
    layout = cute.composition(tensor.layout, cute.make_layout((rows, count)))
    return cute.make_tensor(tensor.iterator + offset, layout)


def load_columns(copy, part: cute.Tensor) -> cute.Tensor:
    fragment = cute.make_rmem_tensor(copy.partition_D(cute.make_identity_tensor(part.shape)).shape, Float32)
    cute.copy(copy, copy.partition_S(part), fragment)
    cute.arch.fence_view_async_tmem_load()
    return fragment


class Sums:
    """A sum in four chains of pairs."""

    def __init__(self):
        self.chains = []

    def add(self, s: cute.Tensor, begin: int, end: int) -> Sums:
        """Columns begin .. end - 1, an even number."""
        for j in range(begin, end, 2):
            pair, chain = (s[j], s[j + 1]), j // 2 % 4
            if len(self.chains) < 4:
                self.chains.append(pair)
            else:
                self.chains[chain] = _add(self.chains[chain], pair)
        return self

    def total(self) -> Float32:
        low, high = _add(_add(*self.chains[:2]), _add(*self.chains[2:]))
        return low + high


def _add(a, b):
    return cute.arch.add_packed_f32x2(a, b, rnd="rn")


def part(fragment: cute.Tensor, first: int) -> cute.Tensor:
    return cute.make_tensor(fragment.iterator + first, cute.make_layout(STORE_COLUMNS))
