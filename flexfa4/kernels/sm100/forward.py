"""The sm100 forward kernel: host function, launch, and which warp plays which role."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import cutlass.utils as utils
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

from ..arguments import Lists, Signature, Tensors, Values
from ..barriers import initialise
from ..packing import Packing, head_matrix, heads_together
from ..walk import Grid
from .barriers import Barriers
from .context import Context, Operand, Statistics
from .correction import Correction
from .load import Load
from .mma import TMEM_COLUMNS, Mma
from .scheduler import Scheduler
from .shapes import Shapes, over, stage_of
from .softmax import Softmax
from .store import Store

WARP, WARPGROUP = 32, 128
SWIZZLE_ALIGNMENT = 1024

class Forward:
    """Callable with `arguments.fake_arguments(signature, ...)`; compile it with `cute.compile`."""

    def __init__(self, signature: Signature):
        self.signature = signature
        self.tiles = signature.plan.tiles
        if (self.tiles.scheduler == "counter") != signature.counted:
            raise ValueError(f"a counter and {self.tiles.scheduler=}: the plan says whether launches pass one")

    @cute.jit
    def __call__(self, tensors: Tensors, scale: Float32, lists: Lists, workers: Int32, captures: tuple | None,
                 slots: tuple | None, stream):
        tiles, plan = self.tiles, self.signature.plan
        shapes = Shapes(tiles, plan.dtype)
        packing = Packing(plan.pack, heads_together(plan.pack, tensors.q.shape[1], tensors.k.shape[1]))
        load, store = cpasync.CopyBulkTensorTileG2SOp(shapes.group), cpasync.CopyBulkTensorTileS2GOp()
        q_layout, out_layout = (cute.select(layout, mode=[0, 1]) for layout in (shapes.q_rows(), shapes.out_layout()))
        q_tile, out_tile = (packing.tile(tiles.q_tile, columns) for columns in (tiles.head_dim, tiles.head_dim_v))
        q_tma = cpasync.make_tiled_tma_atom(load, packing.matrix(tensors.q), q_layout, q_tile)
        k_tma = cute.nvgpu.make_tiled_tma_atom_B(
            load, head_matrix(tensors.k), stage_of(shapes.k_layout()), shapes.qk_tile, shapes.qk_mma()
        )
        v_tma = cute.nvgpu.make_tiled_tma_atom_B(
            load, _columns_first(tensors.v), stage_of(shapes.v_layout()), shapes.pv_tile, shapes.pv_mma()
        )
        out_tma = cpasync.make_tiled_tma_atom(store, packing.matrix(tensors.out), out_layout, out_tile)
        q, k = tensors.q, tensors.k
        grid = Grid(cute.ceil_div(q.shape[2], plan.q_tile), q.shape[1] // packing.heads,
                    cute.ceil_div(k.shape[2], tiles.kv_tile), packing.heads)
        count = grid.q_tiles * grid.heads * q.shape[0]
        if cutlass.const_expr(lists.work is not None):
            count = lists.work.shape[0]
        tma = tuple(tuple(pair) for pair in (q_tma, k_tma, v_tma, out_tma))
        rows = tensors.out if cutlass.const_expr(self.signature.placed) else None
        self.kernel(tma, (rows, tensors.lse), scale, lists, grid, Int32(count), Values(captures, slots)).launch(
            grid=(workers * tiles.ctas, 1, 1), block=(tiles.threads, 1, 1), stream=stream, min_blocks_per_mp=1,
            cluster=(tiles.ctas, 1, 1) if tiles.ctas > 1 else None,
        )

    @cute.kernel
    def kernel(self, tma: tuple, results: tuple, scale: Float32, lists: Lists, grid: Grid, count: Int32, values: Values):
        tiles, shapes = self.tiles, Shapes(self.tiles, self.signature.plan.dtype)
        smem = utils.SmemAllocator()
        s_q = _allocate(smem, shapes.dtype, shapes.q_layout())
        # K and V share a ring: its last stage holds the larger.
        if cutlass.const_expr(tiles.head_dim >= tiles.head_dim_v):
            s_k = _allocate(smem, shapes.dtype, shapes.k_layout())
            s_v = over(s_k, shapes.v_layout())
        else:
            s_v = _allocate(smem, shapes.dtype, shapes.v_layout())
            s_k = over(s_v, shapes.k_layout())
        if cutlass.const_expr(tiles.out_over_q):
            s_out = over(s_q, shapes.out_layout())
        else:
            s_out = _allocate(smem, shapes.dtype, shapes.out_layout())
        statistics = Statistics(smem.allocate_tensor(Float32, cute.make_layout((tiles.q_tile, 2, tiles.q_tiles)), 16))
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) if cutlass.const_expr(tiles.ctas > 1) else None
        barriers = Barriers(tiles.barriers, smem.allocate_array(Int64, sum(row.count for row in tiles.barriers)), rank)
        tmem_address = smem.allocate_array(Int32, 1)
        next_item = smem.allocate_tensor(Int32, cute.make_layout(4), 16).iterator

        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == 0:
            for atom, _ in tma:
                cpasync.prefetch_descriptor(atom)
            with cute.arch.elect_one():
                initialise(barriers.table, barriers.pointers)
            cute.arch.mbarrier_init_fence()
        if cutlass.const_expr(rank is None):
            cute.arch.sync_threads()
        else:
            # By both CTAs together, before either touches the other's.
            if warp == tiles.threads // WARP - 4:
                cute.arch.alloc_tmem(TMEM_COLUMNS, tmem_address, is_two_cta=True)
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        # Where items lie at any key, runs of FULL tiles end before the keys do.
        whole_tiles = grid.kv_tiles if cutlass.const_expr(self.signature.placed) else tma[1][1].shape[0] // tiles.kv_tile
        lists_read = lists.work, lists.spans, grid, whole_tiles, count, self.signature.plan.split
        scheduler = Scheduler(tiles.scheduler, tiles.ctas, *lists_read, lists.counter, next_item, barriers)
        operands = [Operand(*pair, shared) for pair, shared in zip(tma, (s_q, s_k, s_v, s_out))]
        ctx = Context(
            self.signature, rank, shapes, Packing(self.signature.plan.pack, grid.packed), barriers, scheduler, *operands,
            *results, lists.parts, statistics, tmem_address, scale, values
        )
        self.play(ctx, warp)

    @cute.jit
    def play(self, ctx: Context, warp: Int32):
        """Warpgroups: softmax of each query tile, correction, and one of single warps."""
        tiles = self.tiles
        thread = cute.arch.thread_idx()[0] % WARPGROUP
        group = warp // 4
        softmax, correction, other = tiles.registers
        if group < tiles.q_tiles:
            cute.arch.setmaxregister_increase(softmax)
            Softmax(ctx, group, thread).run()
        if group == tiles.q_tiles:
            cute.arch.setmaxregister_decrease(correction)
            Correction(ctx, thread).run()
        if group > tiles.q_tiles:
            cute.arch.setmaxregister_decrease(other)
            if warp % 4 == 0:
                Mma(ctx).run()
            if warp % 4 == 1:
                Load(ctx).run()
            if warp % 4 == 2:
                Store(ctx).run()
            if cutlass.const_expr(tiles.scheduler != "static"):
                if (warp % 4 == 3) & (ctx.part == 0):
                    ctx.scheduler.run()


def _columns_first(tensor: cute.Tensor) -> cute.Tensor:
    """V: [B, H, S, D] -> [D, S, H, B]."""
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=[3, 2, 1, 0]))


def _allocate(smem: utils.SmemAllocator, dtype, layout: cute.ComposedLayout) -> cute.Tensor:
    return smem.allocate_tensor(dtype, layout.outer, byte_alignment=SWIZZLE_ALIGNMENT, swizzle=layout.inner)
