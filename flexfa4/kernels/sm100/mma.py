"""The mma warp: S = Q K^T and O += P V of both query tiles, in an order that keeps the tensor core busy while softmax works.

In each step, and for each query tile, the product with V of the tile before comes first and then the next S. S takes the place of
the P that was just read, which is safe because products of one thread complete in the order of their issue.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import tcgen05

from ..barriers import Turn
from ..carried import Fixed
from .context import Context

TMEM_COLUMNS = 512  # all: one CTA an SM. The views of `shapes` rely on the allocation to begin at column 0.
K_ELEMENTS = 16  # of the inner dimension that one tcgen05.mma takes


@dataclass(frozen=True)
class Mma(Fixed):
    ctx: Context

    @cute.jit
    def run(self):
        ctx, scheduler, barriers = self.ctx, self.ctx.scheduler, self.ctx.barriers
        cute.arch.alloc_tmem(TMEM_COLUMNS, ctx.tmem_address)
        turn, q_parity, p_parity = Turn.first(ctx.tiles.kv_stages), Int32(0), Int32(0)
        index = scheduler.first()
        while index < scheduler.count:
            walk = scheduler.walk(scheduler.item(index))
            if walk.valid:
                barriers.kv_full.wait(turn.index, turn.phase)
                for i in cutlass.range_constexpr(ctx.tiles.q_tiles):
                    barriers.q_full.wait(i, q_parity)
                    self.multiply_qk(i, turn.index)
                barriers.kv_empty.commit(turn.index)
                q_parity = q_parity ^ 1
                accumulate = Boolean(False)
                walk, turn = walk.next(), turn.next()
                while walk.valid:
                    turn = self.step(turn, p_parity, accumulate)
                    p_parity, accumulate = p_parity ^ 1, Boolean(True)
                    walk = walk.next()
                if cutlass.const_expr(not ctx.tiles.out_over_q):
                    for i in cutlass.range_constexpr(ctx.tiles.q_tiles):
                        barriers.q_empty.commit(i)
                barriers.kv_full.wait(turn.index, turn.phase)
                for i in cutlass.range_constexpr(ctx.tiles.q_tiles):
                    self.multiply_pv(i, turn.index, p_parity, accumulate)
                    barriers.o_full.commit(i)
                barriers.kv_empty.commit(turn.index)
                p_parity, turn = p_parity ^ 1, turn.next()
            index = scheduler.next(index)
        cute.arch.relinquish_tmem_alloc_permit()
        barriers.tmem_free.wait(0, 0)
        address = cute.arch.retrieve_tmem_ptr(Float32, 16, ctx.tmem_address)
        cute.arch.dealloc_tmem(address, TMEM_COLUMNS)

    def step(self, turn: Turn, p_parity: Int32, accumulate: Boolean) -> Turn:
        """P V of one tile and S of the next, query tile by query tile. Returns the turn after both stages."""
        barriers, last = self.ctx.barriers, self.ctx.tiles.q_tiles - 1
        k_turn = turn.next()
        barriers.kv_full.wait(turn.index, turn.phase)
        for i in range(last + 1):
            self.multiply_pv(i, turn.index, p_parity, accumulate)
            if i == last:
                barriers.kv_empty.commit(turn.index)
            if i == 0:
                barriers.kv_full.wait(k_turn.index, k_turn.phase)
            self.multiply_qk(i, k_turn.index)
        barriers.kv_empty.commit(k_turn.index)
        return k_turn.next()

    def multiply_qk(self, i: int, stage: Int32) -> None:
        """S of query tile i = Q K^T, K in `stage`."""
        shapes = self.ctx.shapes
        mma = shapes.qk_mma()
        q = mma.make_fragment_A(self.ctx.q.smem)[None, None, None, i]
        k = mma.make_fragment_B(self.ctx.k.smem)[None, None, None, stage]
        s = shapes.s_accumulator(i)
        for block in range(cute.size(q, mode=[2])):
            mma.set(tcgen05.Field.ACCUMULATE, block > 0)
            cute.gemm(mma, s, q[None, None, block], k[None, None, block], s)
        self.ctx.barriers.s_full.commit(i)

    def multiply_pv(self, i: int, stage: Int32, parity: Int32, accumulate: Boolean) -> None:
        """O of query tile i (+)= P V, V in `stage`: first the columns of P that p_ready announces, then those of p_full."""
        shapes, barriers = self.ctx.shapes, self.ctx.barriers
        mma = shapes.pv_mma()
        p = shapes.p_operand(i)
        v = mma.make_fragment_B(self.ctx.v.smem)[None, None, None, stage]
        o = shapes.o_accumulator(i)
        barriers.p_ready.wait(i, parity)
        for block in range(cute.size(p, mode=[2])):
            if shapes.tiles.early_p and block * K_ELEMENTS == shapes.tiles.early_p:
                barriers.p_full.wait(i, parity)
            mma.set(tcgen05.Field.ACCUMULATE, accumulate if block == 0 else True)
            cute.gemm(mma, o, p[None, None, block], v[None, None, block], o)
