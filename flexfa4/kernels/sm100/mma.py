"""The mma warp: S = Q K^T and O += P V of both query tiles, in an order that keeps the tensor core busy while softmax works.

In each step, and for each query tile, the product with V of the tile before comes first and then the next S. S takes the place of
the P that was just read, which is safe because products of one thread complete in the order of their issue.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..barriers import Turn
from ..carried import Fixed
from ..runs import Runs
from .context import Context
from .products import STEP, SharedOperand, instruction_descriptor, multiply
from .scheduler import following

# Of two query tiles that see different tiles, bits of query tile 0; those of query tile 1 are next to them: whether it saw the
# tile before, whether its O has begun, and its parity of p_ready.
_SAW, _BEGUN, _PARITY = 1, 4, 16
TMEM_COLUMNS = 512  # all: one CTA an SM. The views of `shapes` rely on the allocation to begin at column 0.


@dataclass(frozen=True)
class Mma(Fixed):
    ctx: Context

    @cute.jit
    def run(self):
        """Of a pair, the first CTA issues the products of both."""
        ctx, pair = self.ctx, self.ctx.rank is not None
        if cutlass.const_expr(not pair):
            cute.arch.alloc_tmem(TMEM_COLUMNS, ctx.tmem_address)
            self.work()
        elif ctx.rank == 0:
            self.work()
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=pair)
        ctx.barriers.tmem_free.wait(0, 0)
        address = cute.arch.retrieve_tmem_ptr(Float32, 16, ctx.tmem_address)
        cute.arch.dealloc_tmem(address, TMEM_COLUMNS, is_two_cta=pair)

    @cute.jit
    def work(self):
        ctx, scheduler, barriers = self.ctx, self.ctx.scheduler, self.ctx.barriers
        turn, q_parity, p_parity = Turn.first(ctx.tiles.kv_stages), Int32(0), Int32(0)
        at = scheduler.first()
        while scheduler.busy(at):
            count = Int32(0)
            if cutlass.const_expr(ctx.signature.halved):
                turn, q_parity, p_parity = self.by_halves(scheduler.runs(scheduler.item(at.index)), turn, q_parity, p_parity)
            else:
                count = scheduler.tiles(scheduler.item(at.index))
            if count > 0:
                barriers.kv_full.wait(turn.index, turn.phase)
                for i in cutlass.range(ctx.tiles.q_tiles, unroll=1):
                    barriers.q_full.wait(i, q_parity)
                    self.multiply_qk(i, turn.index)
                barriers.kv_empty.commit(turn.index)
                q_parity = q_parity ^ 1
                products, turn = Int32(0), turn.next()  # into O
                while products < count - 1:
                    turn = self.step(turn, p_parity, products)
                    p_parity, products = p_parity ^ 1, following(products)
                if cutlass.const_expr(not ctx.tiles.out_over_q):
                    barriers.q_empty.commit(0)
                barriers.kv_full.wait(turn.index, turn.phase)
                for i in cutlass.range(ctx.tiles.q_tiles, unroll=1):
                    self.multiply_pv(i, turn.index, p_parity, products)
                    barriers.o_full.commit(i)
                barriers.kv_empty.commit(turn.index)
                p_parity, turn = p_parity ^ 1, turn.next()
            at = scheduler.next(at)

    @cute.jit
    def step(self, turn: Turn, p_parity: Int32, products: Int32) -> Turn:
        """P V of one tile and S of the next, query tile by query tile. Returns the turn after both stages."""
        barriers, last = self.ctx.barriers, self.ctx.tiles.q_tiles - 1
        k_turn = turn.next()
        barriers.kv_full.wait(turn.index, turn.phase)
        for i in cutlass.range(last + 1, unroll=1):
            self.multiply_pv(i, turn.index, p_parity, products)
            if i == last:
                barriers.kv_empty.commit(turn.index)
            if i == 0:
                barriers.kv_full.wait(k_turn.index, k_turn.phase)
            self.multiply_qk(i, k_turn.index)
        barriers.kv_empty.commit(k_turn.index)
        return k_turn.next()

    @cute.jit
    def by_halves(self, runs: Runs, turn: Turn, q_parity: Int32, bits: Int32):
        """As in `run`, the products of an item whose query tiles see different tiles: of each K or V tile those of the query
        tiles that see it. bits: see `_SAW`. Returns the turn, the parity and the bits."""
        ctx, scheduler, barriers = self.ctx, self.ctx.scheduler, self.ctx.barriers
        if runs.valid:
            seen = runs.halves()
            barriers.kv_full.wait(turn.index, turn.phase)
            for i in cutlass.range(ctx.tiles.q_tiles, unroll=1):
                barriers.q_full.wait(i, q_parity)
                if seen >> i & 1 != 0:
                    self.multiply_qk(i, turn.index)
            barriers.kv_empty.commit(turn.index)
            q_parity, turn = q_parity ^ 1, turn.next()
            bits, tile = bits & 3 * _PARITY | seen, following(runs.begin)
            while runs.valid:
                while tile < runs.stop:
                    turn = self.step_by_halves(turn, bits, seen)
                    bits, tile = multiplied(bits) | seen, following(tile)
                runs = scheduler.next_runs(runs)
                tile, seen = runs.begin, runs.halves()
            if cutlass.const_expr(not ctx.tiles.out_over_q):
                barriers.q_empty.commit(0)
            barriers.kv_full.wait(turn.index, turn.phase)
            for i in cutlass.range(ctx.tiles.q_tiles, unroll=1):
                self.multiply_pv_if_seen(i, turn.index, bits)
                if bits >> i & _BEGUN + _SAW != 0:
                    barriers.o_full.commit(i)
            # Of a query tile that saw none after the others, which correction has begun: it has passed the phase before.
            for i in cutlass.range(ctx.tiles.q_tiles, unroll=1):
                if bits >> i & _BEGUN + _SAW == 0:
                    barriers.o_full.commit(i)
            barriers.kv_empty.commit(turn.index)
            bits, turn = multiplied(bits), turn.next()
        return turn, q_parity, bits

    @cute.jit
    def step_by_halves(self, turn: Turn, bits: Int32, seen: Int32) -> Turn:
        """As `step`. seen: which query tiles see the next tile."""
        barriers, last = self.ctx.barriers, self.ctx.tiles.q_tiles - 1
        k_turn = turn.next()
        barriers.kv_full.wait(turn.index, turn.phase)
        for i in cutlass.range(last + 1, unroll=1):
            self.multiply_pv_if_seen(i, turn.index, bits)
            if i == last:
                barriers.kv_empty.commit(turn.index)
            if i == 0:
                barriers.kv_full.wait(k_turn.index, k_turn.phase)
            if seen >> i & 1 != 0:
                self.multiply_qk(i, k_turn.index)
        barriers.kv_empty.commit(k_turn.index)
        return k_turn.next()

    @cute.jit
    def multiply_pv_if_seen(self, i: Int32, stage: Int32, bits: Int32):
        own = bits >> i
        if own & _SAW != 0:
            self.multiply_pv(i, stage, own // _PARITY & 1, own & _BEGUN)

    def multiply_qk(self, i: Int32, stage: Int32) -> None:
        """S of query tile i = Q K^T, K in `stage`."""
        shapes, mma = self.ctx.shapes, self.ctx.shapes.qk_mma()
        q = SharedOperand.of(mma.make_fragment_A(self.ctx.q.smem)[None, None, None, i])
        k = SharedOperand.of(mma.make_fragment_B(self.ctx.k.smem)[None, None, None, stage])
        instruction = instruction_descriptor(shapes.dtype, shapes.qk_tile[:2], False)
        with cute.arch.elect_one():
            first = i * self.ctx.tiles.kv_tile + shapes.columns["s0"].first
            multiply(first, q, k, range(len(k.steps)), instruction, 0, self.ctx.tiles.ctas)
            self.ctx.barriers.s_full.commit_by_one(i)

    def multiply_pv(self, i: Int32, stage: Int32, parity: Int32, accumulate: Int32) -> None:
        """O of query tile i (+)= P V, V in `stage`: first the columns of P that p_ready announces, then those of p_full."""
        shapes, barriers, tiles = self.ctx.shapes, self.ctx.barriers, self.ctx.tiles
        v = SharedOperand.of(shapes.pv_mma().make_fragment_B(self.ctx.v.smem)[None, None, None, stage])
        p = i * tiles.kv_tile + shapes.columns["p0"].first
        o = i * tiles.head_dim_v + shapes.columns["o0"].first
        instruction = instruction_descriptor(shapes.dtype, shapes.pv_tile[:2], True)
        early, steps = (tiles.early_p or tiles.kv_tile) // STEP, len(v.steps)
        barriers.p_ready.wait(i, parity)
        with cute.arch.elect_one():
            multiply(o, p, v, range(early), instruction, accumulate, tiles.ctas)
        if tiles.early_p:
            barriers.p_full.wait(i, parity)
            with cute.arch.elect_one():
                multiply(o, p, v, range(early, steps), instruction, 1, tiles.ctas)


def multiplied(bits: Int32) -> Int32:
    """The bits of both query tiles after the products with V of those that saw the tile, for which the next tile is to be set."""
    saw = bits & 3 * _SAW
    return bits & ~(3 * _SAW) ^ saw * _PARITY | saw * _BEGUN
