"""The store warp: TMA of finished output tiles from shared memory. TMA leaves out rows past the end of the sequence."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync

from ..carried import Fixed
from ..walk import UNSPLIT
from .context import Context


@dataclass(frozen=True)
class Store(Fixed):
    ctx: Context

    @cute.jit
    def run(self):
        ctx, scheduler, barriers = self.ctx, self.ctx.scheduler, self.ctx.barriers
        tiles, parity = ctx.tiles, Int32(0)
        at = scheduler.first()
        while scheduler.busy(at):
            item = scheduler.item(at.index)
            place, matrix = ctx.place(item), ctx.out.tensor[None, None, item.head, item.batch]
            rows = ctx.packing.tiles(matrix, tiles.q_tile, tiles.head_dim_v, place.q_begin)
            source, target = cpasync.tma_partition(
                ctx.out.atom, 0, cute.make_layout(1), cute.group_modes(ctx.out.smem, 0, 2), cute.group_modes(rows, 0, 2)
            )
            for i in cutlass.range(tiles.q_tiles, unroll=1):
                barriers.out_full.wait(i, parity)
                if ctx.stored_whole(place, i):
                    if cutlass.const_expr(ctx.parts is None) or item.part == UNSPLIT:
                        cute.copy(ctx.out.atom, source[None, i], target[None, i])
                cute.arch.cp_async_bulk_commit_group()
            for i in cutlass.range_constexpr(tiles.q_tiles):
                # Under queries that are loaded after both reads, the first tile is not free before the second.
                if cutlass.const_expr(i == 0 or not tiles.out_over_q):
                    cute.arch.cp_async_bulk_wait_group(0 if tiles.out_over_q else tiles.q_tiles - 1 - i, read=True)
                barriers.out_empty.arrive(i)
                if cutlass.const_expr(tiles.out_over_q):
                    barriers.q_empty.arrive(0)
            parity = parity ^ 1
            at = scheduler.next(at)
