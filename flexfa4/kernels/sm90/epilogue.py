"""The end of a work item: normalise O, apply the output graph, store O by TMA and the LSE directly."""
from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import cpasync, warp

from flexfa4.emit.values import select

from ..barriers import Ring, Turn
from ..carried import Fixed
from ..packing import Packing
from ..walk import WorkItem
from .shapes import GROUP_ROWS, GROUP_THREADS, ROW_OFFSETS, column_offsets
from .softmax import packed

# Named barriers 1.. belong to one warpgroup each; 0 is the CTA's.
FIRST_GROUP_BARRIER = 1


@dataclass(frozen=True)
class Sink(Fixed):
    """Where O goes: TMA atom, tensor of coordinates [rows, Dv, H, B], this warpgroup's shared memory [64, Dv]."""

    atom: cute.CopyAtom
    tensor: cute.Tensor
    shared: cute.Tensor
    values: cute.TiledMma
    packing: Packing


@cute.jit
def store_out(sink: Sink, fragment: cute.Tensor, item: WorkItem, first: Int32, thread: Int32, group: Int32):
    """fragment: the accumulator of O, normalised. first: the query of its first row."""
    element = sink.shared.element_type
    rounded = cute.make_rmem_tensor_like(fragment, element)
    rounded.store(fragment.load().to(element))
    matrices = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), element)
    copy = cute.make_tiled_copy_C(matrices, sink.values).get_slice(thread)
    # O takes the place of Q, which the products of the other warps of this warpgroup may still read.
    _meet(group)
    cute.copy(matrices, copy.retile(rounded), copy.partition_D(sink.shared))
    cute.arch.fence_proxy("async.shared", space="cta")
    _meet(group)
    if cute.arch.make_warp_uniform(thread // 32) == 0:
        matrix, columns = sink.tensor[None, None, item.head, item.batch], cute.size(sink.shared, mode=[1])
        tiles = sink.packing.tiles(matrix, GROUP_ROWS, columns, first)
        shared, there = cpasync.tma_partition(
            sink.atom, 0, cute.make_layout(1), cute.group_modes(sink.shared, 0, 2), cute.group_modes(tiles, 0, 2))
        cute.copy(sink.atom, shared, there[None, 0])
        cute.arch.cp_async_bulk_commit_group()


@cute.jit
def settle(ring: Ring, turn: Turn):
    """Gives a query tile back whose place O took, when TMA has read it."""
    cute.arch.cp_async_bulk_wait_group(0, read=True)
    give_back(ring, turn)


@cute.jit
def give_back(ring: Ring, turn: Turn):
    """By a warp of which all lanes have read the item."""
    cute.arch.sync_warp()
    ring.release(turn)


@cute.jit
def store_rows(out: cute.Tensor, packing: Packing, fragment: cute.Tensor, item: WorkItem, rows: list, end: Int32, thread: Int32):
    """Those of this thread's rows that exist before query `end`, of normalised O [2 rows, n columns], out of registers. out:
    [B, H, S, Dv]; rows: in the head's matrix. Of every 16 columns a thread holds two pairs, 8 apart; with its neighbour it makes
    four columns in a row of them, so that a quad writes whole sectors of 32 bytes."""
    odd, column = Boolean(thread % 2 == 1), thread % 2 * 8 + thread % 4 // 2 * 4
    groups = cute.size(fragment, mode=[1]) // 4
    for i in cutlass.range_constexpr(len(rows)):
        words = [_four(fragment, i, 4 * m, odd, out.element_type) for m in range(groups)]
        if packing.exists(rows[i], end):
            row = out[item.batch, packing.head(item.head, rows[i]), packing.query(rows[i]), None]
            for m in cutlass.range_constexpr(groups):
                # Head dims are padded to 16: columns are missing in the last group only.
                if cutlass.const_expr(m < groups - 1):
                    cute.arch.inline_ptx(_STORE.format(bytes=32 * m), read_only_args=[row.iterator + column, *words[m]])
                else:
                    left = out.shape[3] - column - 16 * m
                    cute.arch.inline_ptx(_STORE_LAST.format(bytes=32 * m, more=32 * m + 4),
                                         read_only_args=[row.iterator + column, *words[m], left])


def _four(fragment: cute.Tensor, i: int, j: int, odd: Boolean, element: type) -> tuple[Int32, Int32]:
    """Four neighbours of row i in two words. The thread holds pairs j, j + 1 and j + 2, j + 3 of it; it keeps the first of them
    where it is even in its quad, and swaps the other with its neighbour."""
    a, b = packed(fragment[i, j], fragment[i, j + 1], element), packed(fragment[i, j + 2], fragment[i, j + 3], element)
    other = cute.arch.shuffle_sync_bfly(select(odd, a, b, Int32), offset=1)
    return select(odd, other, a, Int32), select(odd, b, other, Int32)


_STORE = "st.global.v2.b32 [{{$r0}}+{bytes}], {{{{$r1}}, {{$r2}}}};"
# Of four neighbours {$r3} are columns that exist.
_STORE_LAST = """{{
.reg .pred all, two, one, three;
.reg .b16 first, third, unused;
setp.ge.s32 all, {{$r3}}, 4;
setp.eq.s32 one, {{$r3}}, 1;
setp.eq.s32 three, {{$r3}}, 3;
setp.eq.or.s32 two, {{$r3}}, 2, three;
mov.b32 {{first, unused}}, {{$r1}};
mov.b32 {{third, unused}}, {{$r2}};
@all st.global.v2.b32 [{{$r0}}+{bytes}], {{{{$r1}}, {{$r2}}}};
@two st.global.b32 [{{$r0}}+{bytes}], {{$r1}};
@one st.global.b16 [{{$r0}}+{bytes}], first;
@three st.global.b16 [{{$r0}}+{more}], third;
}}"""


@cute.jit
def store_part(parts: tuple, fragment: cute.Tensor, told: list, kept: list, part: Int32, row: Int32, column: Int32):
    """A piece of a split row, for the combine: normalised O [2 rows, n columns] of this thread and its statistics, in float32.
    kept: which of the rows exist; row: this thread's first row in the work tile; column: its first column."""
    values, statistics = parts
    offsets = column_offsets(4 * cute.size(fragment, mode=[1]))
    for i in cutlass.range_constexpr(len(told)):
        if kept[i]:
            for j in cutlass.range_constexpr(len(offsets)):
                if column + offsets[j] < values.shape[2]:
                    values[part, row + ROW_OFFSETS[i], column + offsets[j]] = fragment[i, j]
            if column == 0:
                for j in cutlass.range_constexpr(len(told[i])):
                    statistics[part, row + ROW_OFFSETS[i], j] = told[i][j]


def _meet(group: Int32) -> None:
    """All threads of a warpgroup."""
    cute.arch.barrier(barrier_id=FIRST_GROUP_BARRIER + group, number_of_threads=GROUP_THREADS)


@cute.jit
def store_lse(lse: cute.Tensor, packing: Packing, item: WorkItem, rows: list, values: list, end: Int32, thread: Int32):
    """One thread of the four that hold a row writes it, where the row exists before query `end`. rows: in the head's matrix."""
    for i in cutlass.range_constexpr(len(rows)):
        if (thread % 4 == 0) & packing.exists(rows[i], end):
            lse[item.batch, packing.head(item.head, rows[i]), packing.query(rows[i])] = Float32(values[i])
