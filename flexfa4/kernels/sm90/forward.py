"""The Hopper forward kernel: host function and kernel body, which hands each warp its role."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Optional

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import cpasync, warpgroup

from flexfa4.plan import Plan

from ..arguments import ELEMENT, Lists, Signature, Tensors, Values
from ..barriers import Ring, Turn, barrier_pointers, initialise
from ..carried import Fixed
from ..handover import Slots
from ..hooks import Hooks, RowHooks
from ..packing import Packing, head_matrix, heads_together
from ..walk import UNSPLIT, Grid, Place, Walk, WorkItem, next_index, place_of, start_walk, work_item
from .consumer import (Columns, Products, Rota, begin_item, border, end_of_item, first_tile, give_back_values, later_tiles,
                       pass_over)
from .epilogue import FIRST_GROUP_BARRIER, Sink, give_back, settle, store_lse, store_out, store_part, store_rows
from .load import Loader, Source, load_item, slot_of
from .shapes import GROUP_ROWS, GROUP_THREADS, ROW_OFFSETS, Shapes, column_offsets, coordinates, rows_and_columns, transposed
from .softmax import OnlineSoftmax, scale_rows

# Keys near the query come first under causal masks, and mods that decay with distance have their largest scores there: the top
# of a row is then known from its first tile.
BACKWARDS = True


class Ends(NamedTuple):
    """What a consumer needs beside its products: which rows a query tile has, (TMA atom, tensor) of the output, the output
    itself (None where TMA stores every tile), the LSE, the parts of split rows (None without splits), the number of keys, the
    scale."""

    packing: Packing
    out: tuple
    rows: Optional[cute.Tensor]
    lse: cute.Tensor
    parts: Optional[tuple]
    kv_len: Int32
    scale: Float32


def first_query(place: Place, group: Int32, plan: Plan) -> Int32:
    """Of a warpgroup's rows."""
    return place.q_begin + group * (GROUP_ROWS // plan.pack)


@dataclass(frozen=True)
class Reader(Fixed):
    """A warpgroup's way to the work items. It reads them again where they are needed: registers would hold them all the time.
    lengths: queries, keys."""

    ring: Ring
    slots: Slots
    spans: Optional[tuple]
    plan: Plan
    lengths: tuple
    group: Int32
    placed: bool
    halved: bool

    def look(self, turn: Turn) -> tuple[Boolean, Boolean]:
        """Waits for the item of a turn. Returns (there is one, this warpgroup has rows and keys in it)."""
        self.ring.wait(turn)
        busy, _, place, walk = self.slots.read(slot_of(turn), None, self.plan.q_tile, self.lengths)
        return busy, busy & walk.valid & self._has_rows(place)

    def passes(self, turn: Turn) -> Boolean | None:
        """Whether this warpgroup passes over the first tile of an item; None where none does."""
        if not self.halved:
            return None
        place = self.where(turn)[1]
        return self.slots.passes(slot_of(turn), self.group) & self._has_rows(place)

    def _has_rows(self, place: Place) -> Boolean:
        return Boolean(first_query(place, self.group, self.plan) < place.q_end) if self.placed else Boolean(True)

    def item(self, turn: Turn) -> tuple[WorkItem, Place, Walk]:
        return self.slots.read(slot_of(turn), self.spans, self.plan.q_tile, self.lengths, self.passes(turn))[1:]

    def where(self, turn: Turn) -> tuple[WorkItem, Place]:
        return self.slots.read(slot_of(turn), None, self.plan.q_tile, self.lengths)[1:3]


class Forward:
    """Callable with `arguments.fake_arguments(signature, ...)`; compile it with `cute.compile`."""

    def __init__(self, signature: Signature):
        self.signature = signature
        self.tiles = signature.plan.tiles
        self.element = ELEMENT[signature.plan.dtype]

    @cute.jit
    def __call__(self, tensors: Tensors, scale: Float32, lists: Lists, workers: Int32, captures: tuple | None,
                 slots: tuple | None, stream):
        q, k, v, out, lse = tensors
        shapes = Shapes(self.tiles, self.element)
        t = self.tiles
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        single = [cute.select(layout, mode=[0, 1]) for layout in (shapes.q, shapes.k, shapes.v)]
        packing = Packing(self.signature.plan.pack, heads_together(self.signature.plan.pack, q.shape[1], k.shape[1]))
        q_tile, out_tile = packing.tile(GROUP_ROWS, t.head_dim), packing.tile(GROUP_ROWS, t.head_dim_v)
        q_atom, q_tma = cpasync.make_tiled_tma_atom(load, packing.matrix(q), single[0], q_tile)
        k_atom, k_tma = cpasync.make_tiled_tma_atom(load, head_matrix(k), single[1], (t.kv_tile, t.head_dim))
        v_atom, v_tma = cpasync.make_tiled_tma_atom(load, head_matrix(v), single[2], (t.kv_tile, t.head_dim_v))
        out_atom, out_tma = cpasync.make_tiled_tma_atom(store, packing.matrix(out), shapes.out, out_tile)
        grid = Grid(cute.ceil_div(q.shape[2], self.signature.plan.q_tile), q.shape[1] // packing.heads,
                    cute.ceil_div(k.shape[2], t.kv_tile), packing.heads)
        count = lists.work.shape[0] if cutlass.const_expr(lists.work is not None) else grid.q_tiles * grid.heads * q.shape[0]
        maps = (q_atom, q_tma), (k_atom, k_tma), (v_atom, v_tma), (out_atom, out_tma)
        rows = out if cutlass.const_expr(self.signature.placed or not t.out_over_q) else None
        self.kernel(maps, (rows, lse), scale, lists, grid, Int32(count), Values(captures, slots)).launch(
            grid=(workers, 1, 1), block=(t.threads, 1, 1), stream=stream, min_blocks_per_mp=1)

    @cute.kernel
    def kernel(self, maps: tuple, results: tuple, scale: Float32, lists: Lists, grid: Grid, count: Int32, values: Values):
        t, shapes = self.tiles, Shapes(self.tiles, self.element)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        barriers, items, *shared = shapes.allocate()
        pointers = barrier_pointers(t.barriers, barriers)
        if warp == 0:
            for atom, _ in maps:
                cpasync.prefetch_descriptor(atom)
            with cute.arch.elect_one():
                initialise(t.barriers, pointers)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        rings = [Ring.of(pointers, name, shapes.bytes(name)) for name in ("q", "k", "v")]
        slots = Slots(items, BACKWARDS, self.signature.placed, self.signature.halved)
        packing = Packing(self.signature.plan.pack, grid.packed)
        sources = [Source(atom, tensor, target) for (atom, tensor), target in zip(maps[:3], shared)]
        if warp < 4:
            cute.arch.setmaxregister_decrease(t.registers[1])
            work = Ring.of(pointers, "work", 0)
            if warp == 0:
                self.produce(Loader(packing, *sources, *rings, slots, t.slots, t.consumers), work, lists.spans, grid)
            elif warp == 1:
                self.schedule(work, slots, lists, grid, count, Int32(sources[1].tensor.shape[0]))
        else:
            cute.arch.setmaxregister_increase(t.registers[0])
            hooks = Hooks(self.signature, values)
            ends = Ends(packing, maps[3], *results, lists.parts, sources[1].tensor.shape[0], scale)
            self.consume(shapes, rings, shared, ends, hooks, slots, lists.spans)

    @cute.jit
    def schedule(self, work: Ring, slots: Slots, lists: Lists, grid: Grid, count: Int32, kv_len: Int32):
        """Reads what the next work item is while the others work, so that nobody waits for the lists in global memory, where each
        word says where to find the next. It draws when the producer asks for more (`load_item`): early enough to hide that, and
        not earlier, because an item that waits in one CTA is not there for another one that has nothing to do."""
        plan, given = self.signature.plan, Int32(self.tiles.slots)
        index, turn = cute.arch.block_idx()[0], Turn.first(1)
        while index < count:
            item = work_item(index, lists.work, grid)
            walk = start_walk(item, lists.spans, grid, plan.split, BACKWARDS)
            place = place_of(item, lists.spans, plan.q_tile, (Int32(0), kv_len))
            with cute.arch.elect_one():
                slots.write(given, item, place, walk)
                cute.arch.mbarrier_arrive(work.full)
            turn = turn.next()
            work.wait_empty(turn)
            index = next_index(index, lists.counter, count)
        with cute.arch.elect_one():
            slots.write_end(given)
            cute.arch.mbarrier_arrive(work.full)

    @cute.jit
    def produce(self, loader: Loader, work: Ring, spans, grid: Grid):
        kv_len, kv_heads, kv_batch = loader.k.tensor.shape[0], loader.k.tensor.shape[2], loader.k.tensor.shape[3]
        group = grid.heads // kv_heads
        q_turn, turn, work_turn = Turn.first(self.tiles.q_stages), Turn.first(self.tiles.kv_stages), Turn.first(1)
        busy = Boolean(True)
        while busy:
            work.wait(work_turn)
            busy, item, place, walk = loader.slots.read(Int32(loader.given), spans, self.signature.plan.q_tile,
                                                        (Int32(0), kv_len))
            loader.announce(q_turn)
            if busy:
                batch = item.batch if kv_batch > 1 else Int32(0)
                turn = load_item(loader, work, (item, place, walk), (item.head // group, batch), q_turn, turn)
            else:
                loader.no_more(q_turn)
            q_turn, work_turn = q_turn.next(), work_turn.next()

    @cute.jit
    def consume(self, shapes: Shapes, rings: list, shared: list, ends: Ends, hooks: Hooks, slots: Slots, spans):
        """A work item's first S is issued beside the last product of the item before it, and is in flight while that item's O
        goes out: then nothing but the softmax of a first tile is left between them. That takes a second query tile; with one,
        an item begins when the one before is over."""
        t = self.tiles
        thread_in_cta = cute.arch.thread_idx()[0]
        group = cute.arch.make_warp_uniform(thread_in_cta // GROUP_THREADS - 1)
        thread = thread_in_cta % GROUP_THREADS
        products = self.products(shapes, shared)
        softmax = OnlineSoftmax(hooks.softmax_scale(ends.scale), t.rescale_tau, hooks.factor() is not None, hooks.loses,
                                lean=self.signature.placed or hooks.walks() or t.fragment_registers > 200)
        row, column = coordinates(thread)
        apart = tuple(offset // self.signature.plan.pack for offset in ROW_OFFSETS)
        rota = Rota(group, t.consumers if t.turns else 1, FIRST_GROUP_BARRIER + t.consumers, t.own_p)
        if group == t.consumers - 1:
            # The first warpgroup's first turn.
            rota.pass_on()
        kv_rings, q_turn, turn = (rings[1], rings[2]), Turn.first(t.q_stages), Turn.first(t.kv_stages)
        read = Reader(rings[0], slots, spans, self.signature.plan, (ends.lse.shape[2], Int32(ends.kv_len)), group,
                      self.signature.placed, self.signature.halved)
        busy, begins = read.look(q_turn)
        if begins:
            turn = begin_item(products, kv_rings, rota, read.passes(q_turn), q_turn.index * t.consumers + group, turn)
        while busy:
            queries, after = q_turn.index * t.consumers + group, q_turn.next()
            item, place, walk = read.item(q_turn)
            columns = Columns(place.kv_begin + column, t.kv_tile, place.kv_end, apart, self.signature.placed, hooks.hidden(),
                              group if self.signature.halved else None)
            rows = self.rows(hooks, ends.packing, item, self.first_row(place, group) + row)
            if cutlass.const_expr(t.q_stages == 1):
                give_back(rings[0], q_turn)
            if begins:
                first_tile(products, rows, columns, softmax, walk, ends.scale)
            if cutlass.const_expr(t.q_stages > 1):
                settle(rings[0], q_turn.before())
            if begins:
                if cutlass.const_expr(self.signature.halved):
                    if read.passes(q_turn):
                        give_back_values(kv_rings, turn.before())
                turn = later_tiles(products, kv_rings, rota, rows, columns, softmax, walk, ends.scale, queries, turn)
            else:
                if cutlass.const_expr(self.signature.placed):
                    turn = pass_over(kv_rings, rota, walk, turn)
                softmax.of_no_keys()
                products.out.fill(0.0)
            sink = self.sink(shapes, shared, ends, products, queries) if cutlass.const_expr(t.out_over_q) else None
            follows, next_begins = busy, begins
            if cutlass.const_expr(t.q_stages > 1):
                follows, next_begins = read.look(after)
                next_queries = after.index * t.consumers + group
                if begins & next_begins:
                    ahead = border(products, kv_rings, rota, softmax, next_queries, turn)
                    self.close(ends, hooks, products, softmax, sink, read.where(q_turn), thread, group)
                    rings[1].release(turn)
                    products.keep(ahead)
                else:
                    if begins:
                        end_of_item(products, kv_rings, rota, softmax, turn)
                    self.close(ends, hooks, products, softmax, sink, read.where(q_turn), thread, group)
                    if next_begins:
                        turn = begin_item(products, kv_rings, rota, None, next_queries, turn)
                    else:
                        products.first.fill(0.0)
            else:
                if begins:
                    end_of_item(products, kv_rings, rota, softmax, turn)
                self.close(ends, hooks, products, softmax, sink, read.where(q_turn), thread, group)
                follows, next_begins = read.look(after)
                if next_begins:
                    turn = begin_item(products, kv_rings, rota, read.passes(after), after.index * t.consumers + group, turn)
                else:
                    products.first.fill(0.0)
            busy, begins, q_turn = follows, next_begins, after
        # Shared memory stays until it has been read.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    def sink(self, shapes: Shapes, shared: list, ends: Ends, products: Products, queries: Int32) -> Sink:
        """Where O goes by TMA: over the queries it was made of."""
        memory = cute.recast_ptr(shared[0][None, None, queries].iterator, shapes.out.inner, dtype=self.element)
        return Sink(*ends.out, cute.make_tensor(memory, shapes.out.outer), products.values, ends.packing)

    @cute.jit
    def close(self, ends: Ends, hooks: Hooks, products: Products, softmax: OnlineSoftmax, sink: Sink,
              where: tuple[WorkItem, Place], thread: Int32, group: Int32):
        """O out of registers, after `OnlineSoftmax.finish`; no product is in flight at the end."""
        item, place = where
        row, column = coordinates(thread)
        normalised = rows_and_columns(products.out)
        scale_rows(normalised, softmax.factors)
        lses = [softmax.row_sum[i] for i in range(len(ROW_OFFSETS))]
        out_columns = [Int32(column + o) for o in column_offsets(self.tiles.head_dim_v)]
        first = self.first_row(place, group) + row
        at = [first + offset for offset in ROW_OFFSETS]
        if cutlass.const_expr(self.signature.plan.split):
            if item.part == UNSPLIT:
                if cutlass.const_expr(hooks.has("out")):
                    self.rows(hooks, ends.packing, item, first).out(normalised, out_columns, lses)
                self.store(sink, ends, products.out, where, at, lses, thread, group)
            else:
                warpgroup.wait_group(0)
                kept = [ends.packing.exists(r, place.q_end) for r in at]
                store_part(ends.parts, normalised, softmax.parts(), kept, item.part, group * GROUP_ROWS + row, column)
        else:
            if cutlass.const_expr(hooks.has("out")):
                self.rows(hooks, ends.packing, item, first).out(normalised, out_columns, lses)
            self.store(sink, ends, products.out, where, at, lses, thread, group)

    def rows(self, hooks: Hooks, packing: Packing, item: WorkItem, first: Int32) -> RowHooks:
        """The graphs at a thread's rows, from the first. Both have one head where a graph asks for it (`Plan`)."""
        positions = [packing.query(first + offset) for offset in ROW_OFFSETS]
        return hooks.tile(item.batch, packing.head(item.head, first)).rows(positions)

    def first_row(self, place: Place, group: Int32) -> Int32:
        """Of a warpgroup, in the head's matrix."""
        return place.q_begin * self.signature.plan.pack + group * GROUP_ROWS

    def first_query(self, place: Place, group: Int32) -> Int32:
        return first_query(place, group, self.signature.plan)

    @cute.jit
    def store(self, sink: Sink, ends: Ends, fragment: cute.Tensor, where: tuple[WorkItem, Place], rows: list, lses: list,
              thread: Int32, group: Int32):
        """O, by TMA where no other item's rows are among a warpgroup's, and the LSE of a whole item."""
        item, place = where
        first, following = self.first_query(place, group), self.first_query(place, group + 1)
        if cutlass.const_expr(not self.tiles.out_over_q):
            self.store_registers(ends, fragment, where, rows, thread)
        elif cutlass.const_expr(self.signature.placed):
            if (following <= place.q_end) | (place.q_end == ends.lse.shape[2]):
                store_out(sink, fragment, item, first, thread, group)
            else:
                self.store_registers(ends, fragment, where, rows, thread)
        else:
            store_out(sink, fragment, item, first, thread, group)
        warpgroup.wait_group(0)
        store_lse(ends.lse, ends.packing, item, rows, lses, place.q_end, thread)

    @cute.jit
    def store_registers(self, ends: Ends, fragment: cute.Tensor, where: tuple[WorkItem, Place], rows: list, thread: Int32):
        item, place = where
        # Lanes part ways here, which ptxas allows beside no product.
        warpgroup.wait_group(0)
        store_rows(ends.rows, ends.packing, rows_and_columns(fragment), item, rows, place.q_end, thread)

    def products(self, shapes: Shapes, shared: list) -> Products:
        t = self.tiles
        scores, values = shapes.scores(), shapes.values()
        scores_slice, values_slice = scores.get_slice(0), values.get_slice(0)
        q, k, v = shared
        return Products(
            scores, values,
            scores_slice.make_fragment_A(scores_slice.partition_A(q)),
            scores_slice.make_fragment_B(scores_slice.partition_B(k)),
            values_slice.make_fragment_B(values_slice.partition_B(transposed(v))),
            values_slice.make_fragment_A(values_slice.partition_shape_A((GROUP_ROWS, t.kv_tile))),
            Products.accumulator(values), Products.accumulator(scores))
