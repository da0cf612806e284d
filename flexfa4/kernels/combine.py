"""Combines the parts of query tiles that were split over KV: any architecture.

Part p of a row is its softmax over some of the keys, O_p, whose exponentials were measured from m_p and have the sum l_p. With
m the largest m_p the row's output is the sum of w_p O_p over that of w_p = l_p exp2(m_p - m), on which the out graph runs. The
parts' LSE would not do: of scores by -1e10 it says nothing of l_p. One warp a row; a lane weighs every 32nd part and holds every
32nd column. Of rows that do not exist the parts hold nothing.
"""
from __future__ import annotations

import math

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from flexfa4.emit.values import select

from .along import LANES
from .arguments import ELEMENT, Signature, Values, fake_list, fake_parts, fake_rows, fake_values
from .hooks import Hooks
from .packing import Packing
from .rounding import lse_of

WARPS = 4
# Parts whose outputs are being loaded together: of 17 on an H200 8 take 2 us less than 4, and 6 less than 1.
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
        self.columns = -(-signature.plan.tiles.head_dim_v // LANES)

    @cute.jit
    def __call__(self, parts: tuple, rows: cute.Tensor, ptr: cute.Tensor, out: cute.Tensor, lse: cute.Tensor, packed: Int32,
                 captures: tuple | None, slots: tuple | None, stream):
        self.kernel(parts, rows, ptr, out, lse, packed, Values(captures, slots)).launch(
            grid=(rows.shape[0], self.rows // WARPS, 1), block=(LANES * WARPS, 1, 1), stream=stream, use_pdl=True)

    @cute.kernel
    def kernel(self, parts: tuple, rows: cute.Tensor, ptr: cute.Tensor, out: cute.Tensor, lse: cute.Tensor, packed: Int32,
               values: Values):
        # Programmatic dependent launch (CUDA Programming Guide, of that name): the parts may still be being written.
        cute.arch.griddepcontrol_wait()
        outs, statistics = parts
        tile, block, _ = cute.arch.block_idx()
        lane = cute.arch.lane_idx()
        row = block * WARPS + cute.arch.make_warp_uniform(cute.arch.warp_idx())
        packing, at = Packing(self.pack, packed), rows[tile, 2] * self.pack + row
        batch, head, q = rows[tile, 0], packing.head(rows[tile, 1], at), packing.query(at)
        first, last = ptr[tile], ptr[tile + 1]
        if packing.exists(at, rows[tile, 2] + rows[tile, 3]):
            added = statistics[first, row, 3]
            top = Float32(-math.inf), Float32(0.0)
            for some in cutlass.range(first, last, LANES):
                there, _ = told(statistics, some + lane, last, row)
                top = higher(top, there)
            for step in cutlass.range_constexpr(LANES.bit_length() - 1):
                top = higher(top, tuple([cute.arch.shuffle_sync_bfly(x, offset=1 << step) for x in top]))
            # A row that no part has a key for: every factor is exp2(-inf), nothing else.
            base = select(top[0] == -math.inf, Float32(0.0), top[0], Float32)
            total = Float32(0.0)
            sums = cute.make_rmem_tensor((1, self.columns), Float32)
            sums.fill(0.0)
            for some in cutlass.range(first, last, LANES):
                (there, more), part_sum = told(statistics, some + lane, last, row)
                mine = part_sum * cute.math.exp2((there - base) + (more - top[1]), fastmath=True)
                total += mine
                for i in cutlass.range(cutlass.min(last - some, LANES), unroll=AT_ONCE):
                    weight = cute.arch.shuffle_sync(mine, offset=i)
                    for j in cutlass.range_constexpr(self.columns):
                        if lane + LANES * j < out.shape[3]:
                            sums[0, j] = sums[0, j] + weight * outs[some + i, row, lane + LANES * j]
            for step in cutlass.range_constexpr(LANES.bit_length() - 1):
                total += cute.arch.shuffle_sync_bfly(total, offset=1 << step)
            empty = Boolean(total == 0.0)
            inverse = select(empty, Float32(0.0), cute.arch.rcp_approx(total), Float32)
            for i in cutlass.range_constexpr(self.columns):
                sums[0, i] = sums[0, i] * inverse
            whole = lse_of((base, top[1]), total, added)
            whole = select(empty, Float32(-math.inf), whole, Float32)
            hooks = Hooks(self.signature, values).tile(batch, head).rows([q])
            hooks.out(sums, [Int32(lane + LANES * i) for i in range(self.columns)], [whole])
            for i in cutlass.range_constexpr(self.columns):
                if lane + LANES * i < out.shape[3]:
                    out[batch, head, q, lane + LANES * i] = out.element_type(sums[0, i])
            if lane == 0:
                lse[batch, head, q] = whole


def told(statistics: cute.Tensor, part: Int32, last: Int32, row: Int32) -> tuple[tuple[Float32, Float32], Float32]:
    """What the exponentials of a lane's part were measured from, as (top, rest), -inf without keys, and their sum. A lane without
    a part has no keys."""
    at = cutlass.min(part, last - 1)
    part_sum = select(part < last, statistics[at, row, 2], Float32(0.0), Float32)
    top = select(part_sum == 0.0, Float32(-math.inf), statistics[at, row, 0], Float32)
    return (top, statistics[at, row, 1]), part_sum


def higher(one: tuple[Float32, Float32], other: tuple[Float32, Float32]) -> tuple[Float32, Float32]:
    """The greater of two sums (top, rest); one where other is NaN."""
    above = (other[0] > one[0]) | (other[0] == one[0]) & (other[1] > one[1])
    return select(above, other[0], one[0], Float32), select(above, other[1], one[1], Float32)
