"""The Hopper forward kernel: host function and kernel body, which hands each warp its role."""
from __future__ import annotations

from typing import NamedTuple, Optional

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import cpasync

from ..arguments import ELEMENT, Lists, Signature, Tensors, Values
from ..barriers import Ring, Turn, barrier_pointers, initialise
from ..handover import Slots
from ..hooks import Hooks
from ..packing import Packing, head_matrix, heads_together
from ..walk import UNSPLIT, Grid, Place, WorkItem, next_index, place_of, start_walk, work_item
from .consumer import Columns, Products, Rota, attend, pass_over
from .epilogue import FIRST_GROUP_BARRIER, Sink, store_lse, store_out, store_part, store_rows
from .load import Loader, Source, load_item
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


class Forward:
    """Callable with `arguments.fake_arguments(signature, ...)`; compile it with `cute.compile`."""

    def __init__(self, signature: Signature):
        self.signature = signature
        self.tiles = signature.plan.tiles
        self.element = ELEMENT[signature.plan.dtype]

    @cute.jit
    def __call__(self, tensors: Tensors, scale: Float32, lists: Lists, workers: Int32, values: Values, stream):
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
        rows = out if cutlass.const_expr(self.signature.placed) else None
        self.kernel(maps, (rows, lse), scale, lists, grid, Int32(count), values).launch(
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
        slots = Slots(items, BACKWARDS, self.signature.placed)
        packing = Packing(self.signature.plan.pack, grid.packed)
        sources = [Source(atom, tensor, target) for (atom, tensor), target in zip(maps[:3], shared)]
        if warp < 4:
            cute.arch.setmaxregister_decrease(t.registers[1])
            if warp == 0:
                self.produce(Loader(packing, *sources, *rings, slots, t.consumers), lists, grid, count)
        else:
            cute.arch.setmaxregister_increase(t.registers[0])
            hooks = Hooks(self.signature, values)
            ends = Ends(packing, maps[3], *results, lists.parts, sources[1].tensor.shape[0], scale)
            self.consume(shapes, rings, shared, ends, hooks, slots, lists.spans)

    @cute.jit
    def produce(self, loader: Loader, lists: Lists, grid: Grid, count: Int32):
        index = cute.arch.block_idx()[0]
        kv_heads, kv_batch = loader.k.tensor.shape[2], loader.k.tensor.shape[3]
        group = grid.heads // kv_heads
        q_turn, turn = Turn.first(self.tiles.q_stages), Turn.first(self.tiles.kv_stages)
        while index < count:
            item = work_item(index, lists.work, grid)
            walk = start_walk(item, lists.spans, grid, self.signature.plan.split, BACKWARDS)
            place = place_of(item, lists.spans, self.signature.plan.q_tile, (Int32(0), loader.k.tensor.shape[0]))
            batch = item.batch if kv_batch > 1 else Int32(0)
            loader.queries(item, place, walk, q_turn)
            q_turn = q_turn.next()
            turn = load_item(loader, place, walk, item.head // group, batch, turn)
            index = next_index(index, lists.counter, count)
        loader.no_more(q_turn)

    @cute.jit
    def consume(self, shapes: Shapes, rings: list, shared: list, ends: Ends, hooks: Hooks, slots: Slots, spans):
        t = self.tiles
        thread_in_cta = cute.arch.thread_idx()[0]
        group = cute.arch.make_warp_uniform(thread_in_cta // GROUP_THREADS - 1)
        thread = thread_in_cta % GROUP_THREADS
        products = self.products(shapes, shared)
        softmax = OnlineSoftmax(hooks.softmax_scale(ends.scale, split=True), t.rescale_tau, hooks.factor() is not None)
        row, column = coordinates(thread)
        apart = tuple(offset // self.signature.plan.pack for offset in ROW_OFFSETS)
        rota = Rota(group, t.consumers if t.turns else 1, FIRST_GROUP_BARRIER + t.consumers, t.own_p)
        if group == t.consumers - 1:
            # The first warpgroup's first turn.
            rota.pass_on()
        q_turn, turn = Turn.first(t.q_stages), Turn.first(t.kv_stages)
        busy = Boolean(True)
        while busy:
            rings[0].wait(q_turn)
            lengths = ends.lse.shape[2], Int32(ends.kv_len)
            busy, item, place, walk = slots.read(q_turn.index, spans, self.signature.plan.q_tile, lengths)
            if busy:
                queries = q_turn.index * t.consumers + group
                columns = Columns(place.kv_begin + column, t.kv_tile, place.kv_end, apart, self.signature.placed,
                                  hooks.hidden())
                at = [place.q_begin * self.signature.plan.pack + group * GROUP_ROWS + row + offset for offset in ROW_OFFSETS]
                # Both rows have one head where a graph asks for it (`Plan`).
                rows = hooks.tile(item.batch, ends.packing.head(item.head, at[0])).rows([ends.packing.query(r) for r in at])
                has_work = walk.valid
                if cutlass.const_expr(self.signature.placed):
                    has_work = has_work & Boolean(self.first_query(place, group) < place.q_end)
                if has_work:
                    turn = attend(products, (rings[1], rings[2]), rota, rows, columns, softmax, walk, ends.scale, queries, turn)
                else:
                    if cutlass.const_expr(self.signature.placed):
                        turn = pass_over((rings[1], rings[2]), rota, walk, turn)
                    softmax.reset()
                    products.out.fill(0.0)
                inverses, lses = softmax.finish()
                normalised = rows_and_columns(products.out)
                scale_rows(normalised, inverses)
                out_columns = [Int32(column + o) for o in column_offsets(t.head_dim_v)]
                memory = cute.recast_ptr(shared[0][None, None, queries].iterator, shapes.out.inner, dtype=self.element)
                sink = Sink(*ends.out, cute.make_tensor(memory, shapes.out.outer), products.values, ends.packing)
                if cutlass.const_expr(self.signature.plan.split):
                    if item.part == UNSPLIT:
                        rows.out(normalised, out_columns, lses)
                        self.store(sink, ends, products.out, (item, place), at, lses, thread, group)
                    else:
                        kept = [ends.packing.exists(r, place.q_end) for r in at]
                        store_part(ends.parts, normalised, lses, kept, item.part, group * GROUP_ROWS + row, column)
                else:
                    rows.out(normalised, out_columns, lses)
                    self.store(sink, ends, products.out, (item, place), at, lses, thread, group)
                # All lanes have read the item.
                cute.arch.sync_warp()
                rings[0].release(q_turn)
                q_turn = q_turn.next()

    def first_query(self, place: Place, group: Int32) -> Int32:
        """Of a warpgroup's rows."""
        return place.q_begin + group * (GROUP_ROWS // self.signature.plan.pack)

    @cute.jit
    def store(self, sink: Sink, ends: Ends, fragment: cute.Tensor, where: tuple[WorkItem, Place], rows: list, lses: list,
              thread: Int32, group: Int32):
        """O, by TMA where no other item's rows are among a warpgroup's, and the LSE of a whole item."""
        item, place = where
        first, following = self.first_query(place, group), self.first_query(place, group + 1)
        store_lse(ends.lse, ends.packing, item, rows, lses, place.q_end, thread)
        if cutlass.const_expr(self.signature.placed):
            if (following <= place.q_end) | (place.q_end == ends.lse.shape[2]):
                store_out(sink, fragment, item, first, thread, group)
            else:
                values = rows_and_columns(fragment)
                store_rows(ends.rows, ends.packing, values, item, rows, place.q_end, coordinates(thread)[1])
        else:
            store_out(sink, fragment, item, first, thread, group)

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
            cute.make_rmem_tensor(values_slice.partition_shape_C((GROUP_ROWS, t.head_dim_v)), Float32))
