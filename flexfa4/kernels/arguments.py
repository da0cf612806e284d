"""What a forward kernel is called with, in one description that compilation (fake tensors) and launch (real ones) both follow.

A compiled forward takes (Tensors, scale, Lists, workers, captures, slots, stream); Tensors and Lists are tuples at launch.
scale: float32, what q.k is multiplied by. workers: int32, CTAs to launch. captures, slots: those of `Values`, apart, since slots
stay from launch to launch and are converted once. stream: with tvm-ffi the current one, not passed.
"""
from __future__ import annotations

from typing import NamedTuple, Optional

import cutlass.cute as cute
from cutlass import BFloat16, Float16, Float32, Int32
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_fake_tensor

from flexfa4.emit.emitter import slot_types
from flexfa4.emit.values import MEMORY_TYPE
from flexfa4.ir import DType
from flexfa4.plan import STATISTICS, TMA_BYTES, Signature

ELEMENT = {DType.F16: Float16, DType.BF16: BFloat16}


class Tensors(NamedTuple):
    """q [B, Hq, Sq, D], k [B or 1, Hkv, Skv, D], v [B or 1, Hkv, Skv, Dv], out [B, Hq, Sq, Dv]: last stride 1, the other strides
    and the base multiples of 16 bytes. lse: float32 [B, Hq, Sq], contiguous, natural logarithm."""

    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    out: cute.Tensor
    lse: cute.Tensor


class Lists(NamedTuple):
    """spans: (row_ptr int32[rows + 1], runs int32[n, 3] with n >= 1, batch stride, head stride, tiles), the strides in rows, 0
    where shared; tiles: None, or int32[rows, 4], where each row lies (`flexfa4.sparsity.work_spans`). None: no mask. work:
    int32[n, 6], a `flexfa4.schedule.WorkTile` each, in launch order; None: every row whole, in natural order. parts:
    (float32[n, rows, Dv], float32[n, rows, STATISTICS]), normalised partial outputs and, of each row, (top, rest, row_sum,
    added): the sum of exponentials, 0 without keys, each measured from top + rest in log2; and what was left out of them, in
    log2, the same in all parts of a row; None: no splits. counter: int32[1], 0 before and after the launch, from which CTAs
    draw their work; None: CTA i takes every workers-th item."""

    spans: Optional[tuple] = None
    work: Optional[cute.Tensor] = None
    parts: Optional[tuple] = None
    counter: Optional[cute.Tensor] = None


class Values(NamedTuple):
    """Captured tensors and runtime scalars of the score, mask and out graph, in that order; None for none at all (an empty
    tuple is no argument type of the DSL)."""

    captures: Optional[tuple] = None
    slots: Optional[tuple] = None


def slots_of(signature: Signature) -> tuple:
    """The staged type of each runtime scalar, in the flat order."""
    return tuple(t for g in signature.graphs if g is not None for t in slot_types(g, signature.plan.assume))


def fake_arguments(signature: Signature, env_stream: bool) -> tuple:
    """Arguments for `cute.compile`: every length, stride and scalar is dynamic. env_stream: take the stream from the
    environment of tvm-ffi instead of an argument."""
    element = ELEMENT[signature.plan.dtype]
    batch, kv_batch, heads, kv_heads, q_len, kv_len, dim, dim_v = (cute.sym_int() for _ in range(8))
    q = fake_rows(element, (batch, heads, q_len, dim))
    k = fake_rows(element, (kv_batch, kv_heads, kv_len, dim))
    v = fake_rows(element, (kv_batch, kv_heads, kv_len, dim_v))
    out = fake_rows(element, (batch, heads, q_len, dim_v))
    lse = make_fake_compact_tensor(Float32, (batch, heads, q_len), stride_order=(2, 1, 0))
    spans = work = parts = None
    if signature.masked:
        spans = (fake_list(1), fake_list(3), Int32(0), Int32(0), fake_list(4) if signature.placed else None)
    if signature.ordered:
        work = fake_list(6)
    if signature.plan.split:
        parts = fake_parts(signature, dim_v)
    counter = fake_list(1) if signature.counted else None
    stream = make_fake_stream(use_tvm_ffi_env_stream=env_stream)
    return (Tensors(q, k, v, out, lse), Float32(0), Lists(spans, work, parts, counter), Int32(0), *fake_values(signature), stream)


def fake_parts(signature: Signature, dim_v) -> tuple[cute.Tensor, cute.Tensor]:
    shape = cute.sym_int(), signature.plan.tiles.rows
    return tuple(make_fake_compact_tensor(Float32, (*shape, n), stride_order=(2, 1, 0)) for n in (dim_v, STATISTICS))


def fake_values(signature: Signature) -> Values:
    described = [c for g in signature.graphs if g is not None for c in g.captures]
    dense = signature.contiguous or (False,) * len(described)
    captures = tuple(_fake_capture(c, last_is_dense) for c, last_is_dense in zip(described, dense))
    slots = tuple(kind(0) for kind in slots_of(signature))
    return Values(captures or None, slots or None)


def fake_rows(element, shape: tuple) -> cute.Tensor:
    """A tensor that TMA can read or write: see `Tensors`."""
    step = TMA_BYTES * 8 // element.width
    strides = tuple(cute.sym_int64(divisibility=step) for _ in shape[:-1])
    return make_fake_tensor(element, shape, stride=(*strides, 1), assumed_align=TMA_BYTES)


def fake_list(columns: int) -> cute.Tensor:
    """int32 [n] or [n, columns], contiguous."""
    if columns == 1:
        return make_fake_compact_tensor(Int32, (cute.sym_int(),))
    return make_fake_compact_tensor(Int32, (cute.sym_int(), columns), stride_order=(1, 0))


def _fake_capture(capture, last_is_dense: bool) -> cute.Tensor:
    rank = max(1, capture.rank)
    extents = tuple(cute.sym_int() for _ in range(rank))
    strides = [cute.sym_int64() for _ in range(rank)]
    if last_is_dense:
        strides[-1] = 1
    return make_fake_tensor(MEMORY_TYPE[capture.dtype], extents, stride=tuple(strides))
