"""The softmax warpgroups, one a query tile: S from tensor memory, a row a thread; P back over S, row sums and maxima kept.

The row maximum that scores are measured from moves only when it would grow by more than `rescale_tau` (in log2): P stays below
2**tau, and O need not be rescaled. The sums are of the same exponentials, so the final division makes the result exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import tcgen05

from ..exp2 import exp2_packed
from ..carried import Fixed
from ..hooks import Hooks, RowHooks
from ..walk import PARTIAL, Walk
from .context import Context

LOAD_COLUMNS = 32  # of S in one tcgen05.ld
STORE_COLUMNS = 32  # of P in one tcgen05.st, in 16 words


@dataclass(frozen=True)
class Softmax(Fixed):
    """q_tile: which query tile of a work item; thread: the row in it."""

    ctx: Context
    q_tile: Int32
    thread: Int32

    @cute.jit
    def run(self):
        ctx, scheduler, barriers = self.ctx, self.ctx.scheduler, self.ctx.barriers
        hooks = Hooks(ctx.signature, ctx.captures, ctx.slots)
        scale = hooks.softmax_scale(ctx.scale)
        s_parity, empty_parity = Int32(0), Int32(1)
        index = scheduler.first()
        while index < scheduler.count:
            item = scheduler.item(index)
            walk = scheduler.walk(item)
            q = ctx.query_tile(item, self.q_tile) * ctx.tiles.q_tile + self.thread
            rows = hooks.tile(item.batch, item.head).rows([q])
            row_max, row_sum, first = -Float32.inf, Float32(0.0), Boolean(True)
            any_tile = walk.valid
            while walk.valid:
                barriers.s_full.wait(self.q_tile, s_parity)
                s = self.load_s()
                self.edit(s, rows, walk)
                row_max, factor = self.move_max(row_max, max_of(s), scale)
                if not first:
                    barriers.scale_empty.wait(self.q_tile, empty_parity)
                    empty_parity = empty_parity ^ 1
                    ctx.s_factor[self.thread, self.q_tile] = factor
                    barriers.scale_full.arrive(self.q_tile)
                self.write_p(s, scale, -finite(row_max) * scale)
                row_sum = row_sum * factor + sum_of(s)
                s_parity, first = s_parity ^ 1, Boolean(False)
                walk = walk.next()
            if any_tile:
                barriers.scale_empty.wait(self.q_tile, empty_parity)
                empty_parity = empty_parity ^ 1
                ctx.s_factor[self.thread, self.q_tile] = row_sum
                ctx.s_max[self.thread, self.q_tile] = row_max
                barriers.scale_full.arrive(self.q_tile)
            index = scheduler.next(index)
        barriers.tmem_free.arrive(0)

    def load_s(self) -> cute.Tensor:
        """The thread's row of S, float32 [1, kv_tile]."""
        t_s = self.ctx.shapes.s(self.q_tile)
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(LOAD_COLUMNS)), Float32)
        copy = tcgen05.make_tmem_copy(atom, t_s).get_slice(self.thread)
        r_s = cute.make_rmem_tensor(copy.partition_D(cute.make_identity_tensor(t_s.shape)).shape, Float32)
        cute.copy(copy, copy.partition_S(t_s), r_s)
        return cute.make_tensor(r_s.iterator, cute.make_layout((1, self.ctx.tiles.kv_tile)))

    @cute.jit
    def edit(self, s: cute.Tensor, rows: RowHooks, walk: Walk):
        """Score graph on every tile; mask graph where the tile is PARTIAL; keys past the end hidden."""
        width = self.ctx.tiles.kv_tile
        first = walk.tile * width
        rows.score(s, [first + j for j in range(width)], self.ctx.scale)
        if walk.kind == PARTIAL:
            rows.mask(s, [first + j for j in range(width)], None)
        keys = self.ctx.kv_len - first
        if keys < width:
            for j in cutlass.range_constexpr(width):
                s[0, j] = s[0, j] if j < keys else -Float32.inf

    @cute.jit
    def move_max(self, old: Float32, tile_max: Float32, scale: Float32):
        """(the maximum to measure from, the factor for what was measured from the old one)."""
        new = cute.arch.fmax(old, tile_max)
        moved = (old - finite(new)) * scale
        factor = cute.math.exp2(moved, fastmath=True)
        if moved >= -self.ctx.tiles.rescale_tau:
            new = old
            factor = Float32(1.0)
        return new, factor

    def write_p(self, s: cute.Tensor, scale: Float32, offset: Float32) -> None:
        """s becomes exp2(s * scale + offset); P, which is s rounded, goes to tensor memory and is announced in two parts."""
        shapes, barriers, tiles = self.ctx.shapes, self.ctx.barriers, self.ctx.tiles
        t_p = shapes.p(self.q_tile)
        atom = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(STORE_COLUMNS // 2)), Float32)
        copy = tcgen05.make_tmem_copy(atom, t_p).get_slice(self.thread)
        target = copy.partition_D(t_p)
        words = cute.make_rmem_tensor(copy.partition_S(cute.make_identity_tensor(t_p.shape)).shape, Float32)
        p = cute.make_tensor(cute.recast_ptr(words.iterator, dtype=shapes.dtype), cute.make_layout(tiles.kv_tile))
        for chunk in range(tiles.kv_tile // STORE_COLUMNS):
            for j in range(chunk * STORE_COLUMNS, (chunk + 1) * STORE_COLUMNS, 2):
                pair = cute.arch.fma_packed_f32x2((s[j], s[j + 1]), (scale, scale), (offset, offset), rnd="rn")
                s[j], s[j + 1] = self.exponentials(j // 2, *pair)
            part(p, chunk).store(part(s, chunk).load().to(shapes.dtype))
            cute.copy(copy, words[None, None, chunk], target[None, None, chunk])
            if (chunk + 1) * STORE_COLUMNS == (tiles.early_p or tiles.kv_tile):
                cute.arch.fence_view_async_tmem_store()
                barriers.p_ready.arrive(self.q_tile)
        if tiles.early_p:
            cute.arch.fence_view_async_tmem_store()
            barriers.p_full.arrive(self.q_tile)

    def exponentials(self, pair: int, x: Float32, y: Float32) -> tuple[Float32, Float32]:
        """Of every 16 exponentials, 8 pairs, `software_exp` go to the FMA units, spread evenly."""
        share, slot = self.ctx.tiles.software_exp // 2, pair % 8
        if (slot + 1) * share // 8 > slot * share // 8:
            return exp2_packed(x, y, self.ctx.tiles.exp_degree)
        return cute.math.exp2(x, fastmath=True), cute.math.exp2(y, fastmath=True)


@cute.jit
def finite(row_max: Float32) -> Float32:
    """0 for a row that has seen no key yet: its exponentials are of -inf then, and not of NaN."""
    return row_max if row_max != -Float32.inf else Float32(0.0)


def max_of(s: cute.Tensor) -> Float32:
    """Four chains, which the compiler makes three-input maxima of."""
    chains = [s[j] for j in range(4)]
    for j in range(4, cute.size(s)):
        chains[j % 4] = cute.arch.fmax(chains[j % 4], s[j])
    return cute.arch.fmax(cute.arch.fmax(chains[0], chains[1]), cute.arch.fmax(chains[2], chains[3]))


def sum_of(s: cute.Tensor) -> Float32:
    """Four chains of pairs."""
    chains = [(s[2 * j], s[2 * j + 1]) for j in range(4)]
    for j in range(4, cute.size(s) // 2):
        chains[j % 4] = _add(chains[j % 4], (s[2 * j], s[2 * j + 1]))
    low, high = _add(_add(chains[0], chains[1]), _add(chains[2], chains[3]))
    return low + high


def _add(a, b):
    return cute.arch.add_packed_f32x2(a, b, rnd="rn")


def part(fragment: cute.Tensor, chunk: int) -> cute.Tensor:
    return cute.make_tensor(fragment.iterator + chunk * STORE_COLUMNS, cute.make_layout(STORE_COLUMNS))
