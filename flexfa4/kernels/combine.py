"""Combines the parts of query tiles that were split over KV: any architecture.

Part p of a row is its softmax over some of the keys, O_p, whose exponentials were measured from m_p and have the sum l_p. With
m the largest m_p the row's output is the sum of w_p O_p over that of w_p = l_p exp2(m_p - m), on which the out graph runs. The
parts' LSE would not do: of scores by -1e10 it says nothing of l_p. One warp a row; a lane holds every 32nd column. Of rows that
do not exist the parts hold nothing.
"""
from __future__ import annotations

import math

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from flexfa4.emit.values import select

from .arguments import ELEMENT, Signature, Values, fake_list, fake_parts, fake_rows, fake_values
from .hooks import Hooks
from .packing import Packing
from .rounding import lse_of

WARPS = 4
# Parts whose loads are under way together; one at a time waits for memory twice a part. Of 17 parts on an H200 8 take 2 us less
# than 4, and 6 less than 1.
AT_ONCE = 8


def fake_combine_arguments(signature: Signature) -> tuple:
    """(parts, rows int32[m, 4] of (batch, head, first query, queries), ptr int32[m + 1], out, lse, packed, captures, slots,
    stream): row i is parts ptr[i] .. ptr[i + 1]; parts, out and lse as in `arguments.Lists` and `arguments.Tensors`; packed:
    int32, heads in a query tile; captures, slots: of the out graph. signature: of a plan without other graphs."""
    batch, heads, q_len, dim_v = (cute.sym_int() for _ in range(4))
    parts = fake_parts(signature, dim_v)
    out = fake_rows(ELEMENT[signature.plan.dtype], (batch, heads, q_len, dim_v))
    lse = make_fake_compact_tensor(Float32, (batch, heads, q_len), stride_order=(2, 1, 0))
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return parts, fake_list(4), fake_list(1), out, lse, Int32(0), *fake_values(signature), stream


class Combine:
    """Callable with `fake_combine_arguments`; compile it with `cute.compile`."""

    def __init__(self, signature: Signature):
        self.signature, self.rows, self.pack = signature, signature.plan.tiles.rows, signature.plan.pack
        self.columns = -(-signature.plan.tiles.head_dim_v // 32)

    @cute.jit
    def __call__(self, parts: tuple, rows: cute.Tensor, ptr: cute.Tensor, out: cute.Tensor, lse: cute.Tensor, packed: Int32,
                 captures: tuple | None, slots: tuple | None, stream):
        self.kernel(parts, rows, ptr, out, lse, packed, Values(captures, slots)).launch(
            grid=(rows.shape[0], self.rows // WARPS, 1), block=(32 * WARPS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, parts: tuple, rows: cute.Tensor, ptr: cute.Tensor, out: cute.Tensor, lse: cute.Tensor, packed: Int32,
               values: Values):
        outs, statistics = parts
        tile, block, _ = cute.arch.block_idx()
        lane = cute.arch.lane_idx()
        row = block * WARPS + cute.arch.make_warp_uniform(cute.arch.warp_idx())
        packing, at = Packing(self.pack, packed), rows[tile, 2] * self.pack + row
        batch, head, q = rows[tile, 0], packing.head(rows[tile, 1], at), packing.query(at)
        first, last = ptr[tile], ptr[tile + 1]
        if packing.exists(at, rows[tile, 2] + rows[tile, 3]):
            top, rest = Float32(-math.inf), Float32(0.0)
            for part in cutlass.range(first, last, unroll=AT_ONCE):
                there, more = top_of(statistics, part, row)
                above = (there > top) | (there == top) & (more > rest)
                top, rest = select(above, there, top, Float32), select(above, more, rest, Float32)
            # A row that no part has a key for: every factor is exp2(-inf), nothing else.
            base = select(top == -math.inf, Float32(0.0), top, Float32)
            total = Float32(0.0)
            sums = cute.make_rmem_tensor((1, self.columns), Float32)
            sums.fill(0.0)
            for part in cutlass.range(first, last, unroll=AT_ONCE):
                there, more = top_of(statistics, part, row)
                below = (there - base) + (more - rest)
                weight = statistics[part, row, 2] * cute.math.exp2(below, fastmath=True)
                total += weight
                for i in cutlass.range_constexpr(self.columns):
                    if lane + 32 * i < out.shape[3]:
                        sums[0, i] = sums[0, i] + weight * outs[part, row, lane + 32 * i]
            empty = Boolean(total == 0.0)
            inverse = select(empty, Float32(0.0), cute.arch.rcp_approx(total), Float32)
            for i in cutlass.range_constexpr(self.columns):
                sums[0, i] = sums[0, i] * inverse
            whole = lse_of((base, rest), total, statistics[first, row, 3])
            whole = select(empty, Float32(-math.inf), whole, Float32)
            hooks = Hooks(self.signature, values).tile(batch, head).rows([q])
            hooks.out(sums, [Int32(lane + 32 * i) for i in range(self.columns)], [whole])
            for i in cutlass.range_constexpr(self.columns):
                if lane + 32 * i < out.shape[3]:
                    out[batch, head, q, lane + 32 * i] = out.element_type(sums[0, i])
            if lane == 0:
                lse[batch, head, q] = whole


def top_of(statistics: cute.Tensor, part: Int32, row: Int32) -> tuple[Float32, Float32]:
    """What a part's exponentials were measured from, as (top, rest): -inf without keys."""
    empty = statistics[part, row, 2] == 0.0
    return select(empty, Float32(-math.inf), statistics[part, row, 0], Float32), statistics[part, row, 1]
