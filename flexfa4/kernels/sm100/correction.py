"""The correction warpgroup: rescales O in tensor memory where a row maximum moved; at the end normalises it, runs the output
graph and leaves it in shared memory for the store warp. A row a thread, both query tiles one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import tcgen05

from flexfa4.emit.values import select

from ..carried import Fixed
from ..hooks import Hooks, RowHooks
from ..loops import in_a_row, unrolled
from ..runs import Runs
from ..walk import UNSPLIT, WorkItem
from .context import Context
from .scheduler import following

COLUMNS = 16  # of O in registers at a time


@dataclass(frozen=True)
class Correction(Fixed):
    """thread: the row in a query tile."""

    ctx: Context
    thread: Int32

    @cute.jit
    def run(self):
        ctx, scheduler, barriers = self.ctx, self.ctx.scheduler, self.ctx.barriers
        hooks, halved = Hooks(ctx.signature, ctx.values), ctx.signature.halved
        factor_parity, o_parity, out_parity, skip_parity = Int32(0), Int32(0), Int32(1), Int32(0)
        # O is there to be overwritten: the first product of an item waits for no rescaling, but for O's reader.
        if cutlass.const_expr(not halved):
            for i in cutlass.range_constexpr(ctx.tiles.q_tiles):
                barriers.p_ready.arrive(i)
        at = scheduler.first()
        while scheduler.busy(at):
            item = scheduler.item(at.index)
            if cutlass.const_expr(halved):
                runs = scheduler.runs(item)
                any_tile = runs.valid
                seen, factor_parity = self.rescale_by_halves(runs, factor_parity)
            else:
                count, passed = scheduler.tiles(item), Int32(1)
                any_tile, seen = count > 0, Int32(0)
                if any_tile:
                    self.pass_first(factor_parity)
                    factor_parity = factor_parity ^ 1
                while passed < count:
                    for i in cutlass.range_constexpr(ctx.tiles.q_tiles):
                        self.rescale(i, factor_parity)
                    factor_parity, passed = factor_parity ^ 1, following(passed)
            if cutlass.const_expr(ctx.tiles.out_over_q):
                if not any_tile:
                    # Without tiles nothing else keeps store from announcing q_empty again before load has seen it.
                    barriers.q_skipped.wait(0, skip_parity)
                    skip_parity = skip_parity ^ 1
            for i in cutlass.range(ctx.tiles.q_tiles, unroll=1):
                sees, parity = any_tile, factor_parity
                if cutlass.const_expr(halved):
                    sees, parity = Boolean(seen >> i & 1 != 0), factor_parity >> i & 1
                self.finish(i, item, hooks, (any_tile, sees), (parity, o_parity, out_parity))
            if any_tile:
                factor_parity, o_parity = factor_parity ^ (seen if cutlass.const_expr(halved) else 1), o_parity ^ 1
            out_parity = out_parity ^ 1
            at = scheduler.next(at)
        barriers.tmem_free.arrive(0)

    def pass_first(self, parity: Int32) -> None:
        """The first tile's factor is of no use: nothing is in O yet."""
        for i in range(self.ctx.tiles.q_tiles):
            self.ctx.barriers.scale_full.wait(i, parity)
            self.ctx.barriers.scale_empty.arrive(i)

    @cute.jit
    def rescale_by_halves(self, runs: Runs, parities: Int32):
        """All tiles of an item whose query tiles see different ones. parities: of scale_full, a bit each. Returns which of them
        saw any, and the parities. No factor is below the first tile's `above`: there is nothing in O yet."""
        seen, parity, other_parity = Int32(0), parities & 1, parities >> 1
        above, other_above = Float32(-1.0), Float32(-1.0)
        while runs.valid:
            halves, tile = runs.halves(), runs.begin
            one, other = halves & 1, halves >> 1
            then_above = select(one != 0, Float32(1.0), above, Float32)
            then_other = select(other != 0, Float32(1.0), other_above, Float32)
            while tile < runs.stop:
                if one != 0:
                    self.rescale(0, parity, above)
                if other != 0:
                    self.rescale(1, other_parity, other_above)
                parity, other_parity, tile = parity ^ one, other_parity ^ other, following(tile)
                above, other_above = then_above, then_other
            seen = seen | halves
            runs = self.ctx.scheduler.next_runs(runs)
        return seen, parity | other_parity << 1

    @cute.jit
    def rescale(self, i: Int32, parity: Int32, above: Float32 = 1.0):
        """O of query tile i times the factor of each row, if any row of the warp has one below `above`. That S of the next tile
        has been there, of which the factor comes, says that the product before it, into O, is done."""
        ctx, barriers = self.ctx, self.ctx.barriers
        barriers.scale_full.wait(i, parity)
        factor = ctx.statistics.factor[self.thread, i]
        barriers.scale_empty.arrive(i)
        if cute.arch.vote_any_sync(factor < above):
            load, blocks = self.o_blocks(i, tcgen05.Ld32x32bOp)
            store, _ = self.o_blocks(i, tcgen05.St32x32bOp)
            for block in cutlass.range_constexpr(len(blocks)):
                r_o = self.load_o(load, blocks[block])
                scale_in_place(r_o, factor)
                cute.copy(store, r_o, store.partition_D(blocks[block]))
            cute.arch.fence_view_async_tmem_store()
        barriers.p_ready.arrive(i)

    @cute.jit
    def finish(self, i: Int32, item: WorkItem, hooks: Hooks, seen: tuple, parities: tuple):
        """Normalised O of query tile i to shared memory, its LSE to memory; zeros and -inf for rows that saw no key. seen:
        whether the item has tiles, and this query tile sees any."""
        ctx, barriers = self.ctx, self.ctx.barriers
        in_item, any_tile = seen
        factor_parity, o_parity, out_parity = parities
        factor, lse = Float32(0.0), -Float32.inf
        if any_tile:
            barriers.scale_full.wait(i, factor_parity)
            factor = ctx.statistics.factor[self.thread, i]
            lse = ctx.statistics.lse[self.thread, i]
            barriers.scale_empty.arrive(i)
        # Of a query tile that sees none it says that its queries, in the place of the output, have been loaded.
        if in_item:
            barriers.o_full.wait(i, o_parity)
        barriers.out_empty.wait(i, out_parity)
        place = ctx.place(item)
        row = ctx.row(place, i, self.thread)
        rows, exists = ctx.row_hooks(hooks, item, row), ctx.packing.exists(row, place.q_end)
        head, query = ctx.packing.head(item.head, row), ctx.packing.query(row)
        whole = self.is_whole(item)
        if whole:
            if ctx.stored_whole(place, i):
                self.write_out(i, any_tile, factor, rows, lse)
            else:
                self.write_row(i, any_tile, factor, rows, lse, (item.batch, head, query, exists))
        if cutlass.const_expr(ctx.parts is not None):
            if not whole:
                self.write_part(i, any_tile, factor, item.part, exists)
        if cutlass.const_expr(not ctx.signature.halved):
            if any_tile:
                barriers.p_ready.arrive(i)
        cute.arch.fence_proxy("async.shared", space="cta")
        barriers.out_full.arrive(i)
        if whole & exists:
            ctx.lse[item.batch, head, query] = lse

    def is_whole(self, item: WorkItem):
        """Whether an item is its whole row, and not a piece for the combine."""
        return Boolean(True) if self.ctx.parts is None else Boolean(item.part == UNSPLIT)

    @cute.jit
    def write_part(self, i: Int32, any_tile, factor: Float32, part: Int32, exists):
        """O * factor of a piece of a row that exists, in float32 to memory."""
        values, _ = self.ctx.parts
        row = self.ctx.row_of_part(i, self.thread)
        load, blocks = self.o_blocks(i, tcgen05.Ld32x32bOp)
        for block in cutlass.range_constexpr(len(blocks)):
            r_o = self.scaled_o(load, blocks[block], any_tile, factor)
            for j in cutlass.range_constexpr(COLUMNS):
                if exists & (block * COLUMNS + j < values.shape[2]):
                    values[part, row, block * COLUMNS + j] = r_o[0, j]

    @cute.jit
    def write_out(self, i: Int32, any_tile, factor: Float32, rows: RowHooks, lse: Float32):
        """O * factor through the output graph and rounded, to shared memory."""
        ctx = self.ctx
        load, blocks = self.o_blocks(i, tcgen05.Ld32x32bOp)
        targets = cute.flat_divide(ctx.out.smem[None, None, i], (ctx.tiles.q_tile, COLUMNS))
        for block in cutlass.range_constexpr(len(blocks)):
            r_o = self.scaled_o(load, blocks[block], any_tile, factor)
            rows.out(r_o, [Int32(block * COLUMNS + j) for j in range(COLUMNS)], [lse])
            r_out = cute.make_rmem_tensor((COLUMNS,), ctx.shapes.dtype)
            r_out.store(in_a_row(r_o).load().to(ctx.shapes.dtype))
            cute.autovec_copy(r_out, targets[self.thread, None, 0, block])

    @cute.jit
    def write_row(self, i: Int32, any_tile, factor: Float32, rows: RowHooks, lse: Float32, where: tuple):
        """As `write_out`, to memory: rows of other items are in the tile, and TMA would write those too. where: (batch, head,
        query, whether it is this item's)."""
        if cutlass.const_expr(self.ctx.rows is not None):
            batch, head, query, exists = where
            out = self.ctx.rows
            load, blocks = self.o_blocks(i, tcgen05.Ld32x32bOp)
            for block in cutlass.range_constexpr(len(blocks)):
                r_o = self.scaled_o(load, blocks[block], any_tile, factor)
                rows.out(r_o, [Int32(block * COLUMNS + j) for j in range(COLUMNS)], [lse])
                for j in cutlass.range_constexpr(COLUMNS):
                    if exists & (block * COLUMNS + j < out.shape[3]):
                        out[batch, head, query, block * COLUMNS + j] = out.element_type(r_o[0, j])

    def o_blocks(self, i: Int32, operation) -> tuple:
        """(this thread's copy between registers and COLUMNS columns of O, the blocks of columns)."""
        blocks = cute.flat_divide(self.ctx.shapes.o(i), (self.ctx.tiles.q_tile, COLUMNS))
        views = [blocks[None, None, 0, block] for block in range(self.ctx.tiles.head_dim_v // COLUMNS)]
        atom = cute.make_copy_atom(operation(tcgen05.Repetition(COLUMNS)), Float32)
        return tcgen05.make_tmem_copy(atom, views[0]).get_slice(self.thread), views

    @cute.jit
    def scaled_o(self, load, block: cute.Tensor, any_tile, factor: Float32):
        """O * factor of a block of columns, [1, COLUMNS]. What lies in tensor memory is used only where a product has written
        it."""
        r_o = cute.make_rmem_tensor((1, COLUMNS), Float32)
        r_o.fill(0.0)
        if any_tile:
            loaded = self.load_o(load, block)
            scale_in_place(loaded, factor)
            in_a_row(r_o).store(in_a_row(loaded).load())
        return r_o

    def load_o(self, load, block: cute.Tensor) -> cute.Tensor:
        r_o = cute.make_rmem_tensor(load.partition_D(cute.make_identity_tensor(block.shape)).shape, Float32)
        cute.copy(load, load.partition_S(block), r_o)
        cute.arch.fence_view_async_tmem_load()
        return r_o


def scale_in_place(r_o: cute.Tensor, factor: Float32) -> None:
    flat = in_a_row(r_o)

    def scale(pair: Int32) -> None:
        j = 2 * pair
        flat[j], flat[j + 1] = cute.arch.mul_packed_f32x2((flat[j], flat[j + 1]), (factor, factor), rnd="rn")

    unrolled(0, cute.size(flat) // 2, scale)
