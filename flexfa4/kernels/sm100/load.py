"""The load warp: TMA of the query tiles once a work item, and of K and V tiles in the order K V K V ... through one ring.
Each CTA of a pair loads its query tiles and its half of K and V, and all of it is announced in the first CTA."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync

from ..barriers import Turn
from ..carried import Fixed
from ..walk import Place, WorkItem
from .context import Context, Operand
from .scheduler import following
from .shapes import over


@dataclass(frozen=True)
class Load(Fixed):
    ctx: Context

    @cute.jit
    def run(self):
        ctx, scheduler = self.ctx, self.ctx.scheduler
        turn, q_parity = Turn.first(ctx.tiles.kv_stages), Int32(1)
        at = scheduler.first()
        while scheduler.busy(at):
            item = scheduler.item(at.index)
            runs, place = scheduler.runs(item), ctx.place(item)
            k, v = self.k_tiles(item, place), self.v_tiles(item, place)
            # Under an output the place of the queries is emptied by every item, otherwise by those that load queries.
            if cutlass.const_expr(ctx.tiles.out_over_q):
                ctx.barriers.q_empty.wait(0, q_parity)
                q_parity = q_parity ^ 1
                if not runs.valid:
                    ctx.barriers.q_skipped.arrive(0)
            elif runs.valid:
                ctx.barriers.q_empty.wait(0, q_parity)
                q_parity = q_parity ^ 1
            if runs.valid:
                self.load_queries(item, place)
            while runs.valid:
                tile = runs.begin
                while tile < runs.stop:
                    self.load_tile(ctx.k, k, tile, turn, ctx.shapes.k_bytes)
                    turn = turn.next()
                    self.load_tile(ctx.v, v, tile, turn, ctx.shapes.v_bytes)
                    turn = turn.next()
                    tile = following(tile)
                runs = scheduler.next_runs(runs)
            at = scheduler.next(at)
        # The CTA must not end before the last commits have arrived.
        ctx.barriers.q_empty.wait(0, q_parity)
        for _ in cutlass.range_constexpr(ctx.tiles.kv_stages):
            ctx.barriers.kv_empty.wait(turn.index, turn.phase ^ 1)
            turn = turn.next()

    @cute.jit
    def load_queries(self, item: WorkItem, place: Place) -> None:
        ctx = self.ctx
        tiles, barriers = ctx.tiles, ctx.barriers
        matrix = ctx.q.tensor[None, None, item.head, item.batch]
        rows = ctx.packing.tiles(matrix, tiles.q_tile, tiles.head_dim, place.q_begin)
        target, source = cpasync.tma_partition(
            ctx.q.atom, 0, cute.make_layout(1), cute.group_modes(over(ctx.q.smem, ctx.shapes.q_rows()), 0, 2),
            cute.group_modes(rows, 0, 2))
        # A TMA instruction takes eight uniform registers: a loop has few of them.
        for i in cutlass.range(tiles.q_tiles, unroll=1):
            barriers.q_full.expect(i, ctx.shapes.q_bytes)
            cute.copy(ctx.q.atom, source[None, i], target[None, i], tma_bar_ptr=barriers.q_full.pointer(i))

    def load_tile(self, operand: Operand, views: tuple, tile: Int32, turn: Turn, size: int) -> None:
        """One K or V tile into the next stage of the ring."""
        barriers, (source, target) = self.ctx.barriers, views
        barriers.kv_empty.wait(turn.index, turn.phase ^ 1)
        barriers.kv_full.expect(turn.index, size)
        barrier = barriers.kv_full.pointer(turn.index)
        cute.copy(operand.atom, source[None, tile], target[None, turn.index], tma_bar_ptr=barrier)

    def k_tiles(self, item: WorkItem, place: Place) -> tuple:
        ctx = self.ctx
        keys = cute.domain_offset((place.kv_begin, 0), self.head(ctx.k, item))
        rows = cute.local_tile(keys, (ctx.tiles.kv_tile, ctx.tiles.head_dim), (None, 0))
        return tma_tiles(ctx.k, ctx.shapes.qk_mma().get_slice(ctx.part).partition_B(rows))

    def v_tiles(self, item: WorkItem, place: Place) -> tuple:
        ctx = self.ctx
        values = cute.domain_offset((0, place.kv_begin), self.head(ctx.v, item))
        rows = cute.local_tile(values, (ctx.tiles.head_dim_v, ctx.tiles.kv_tile), (0, None))
        return tma_tiles(ctx.v, ctx.shapes.pv_mma().get_slice(ctx.part).partition_B(rows))

    def head(self, operand: Operand, item: WorkItem) -> cute.Tensor:
        """K or V of the item's head; a batch of one serves every batch."""
        heads, batch = operand.tensor.shape[2], operand.tensor.shape[3]
        group = self.ctx.q.tensor.shape[2] // heads
        return operand.tensor[None, None, item.head // group, item.batch % batch]


def tma_tiles(operand: Operand, parts: cute.Tensor) -> tuple:
    """(tiles in memory, stages in shared memory), both indexed [None, i]."""
    target, source = cpasync.tma_partition(
        operand.atom, 0, cute.make_layout(1), cute.group_modes(operand.smem, 0, 3), cute.group_modes(parts, 0, 3)
    )
    return source, target
