"""Launches of one kind of call: what stays from one to the next is worked out and converted once.

A compiled host function takes torch's tensors and Python's tuples, and converts each in every call; tvm-ffi's own it takes as
they are. So lists, counter and workspace are kept converted, by the stream they are used on. An LSE that nobody asked for goes to
one room that all launches of a stream write and nobody reads.
"""
from __future__ import annotations

import math
import time
import weakref
from threading import get_ident
from typing import Callable, NamedTuple

import torch
from torch import Tensor

from flexfa4.plan import STATISTICS, TMA_BYTES

from . import apart, capture, changed, kernels, native, store, transforms
from .programs import encode
from .recorded import Recorded
from .torch_op import Attention, spans_of_gradients

_KEPT_STREAMS = 64

_rooms: dict[tuple, Tensor] = {}


class OnStream(NamedTuple):
    """What launches on one stream share. rest: the third argument of the kernel; unread: an LSE that is not asked for; parts,
    rows, ptr: the first arguments of the kernel that combines split rows."""

    rest: object
    unread: object
    parts: object
    rows: object
    ptr: object


def launcher(prepared: kernels.Prepared, tensors: tuple[Tensor, Tensor, Tensor], captures: tuple, scale: float,
             slots: tuple) -> Callable:
    """Launches for q, k, v and captures like these: a function of those and whether the LSE is wanted, which gives (out, lse or
    None)."""
    query, key, value = tensors
    device, dtype, function, combine, workers = query.device, query.dtype, prepared.function, prepared.combine, prepared.workers
    shape, room_now = (*query.shape[:3], value.shape[3]), native.rooms_on(device)
    lse_shape, strides = shape[:3], kernels.out_strides(shape, query.element_size())
    lse_strides, direct = native.contiguous(lse_shape), all(map(_lies_as_tma_takes_it, tensors))
    as_they_come = all(kernels.as_argument(t) is t for t in captures)
    leaves = native.takes_leaves() and store.is_loaded(function)
    first_of_out = len(captures) - prepared.of_out[0]
    out_slots = _converted(slots[len(slots) - prepared.of_out[1]:] or None, function)
    slots = _converted(slots or None, function)
    packed, room_of_parts = kernels.heads_in_a_tile(prepared.plan, query, key), prepared.room
    grad_enabled, streams = torch.is_grad_enabled, {}

    def run(query: Tensor, key: Tensor, value: Tensor, captures: tuple, want_lse: bool) -> tuple[Tensor, Tensor | None]:
        if not leaves and not grad_enabled():             # where it is enabled nothing wants a gradient
            query, key, value = _detached((query, key, value))
            captures = _detached(captures)
        if not direct or (query.data_ptr() | key.data_ptr() | value.data_ptr()) % TMA_BYTES:
            query, key, value = kernels.aligned(query), kernels.aligned(key), kernels.aligned(value)
        stream = kernels.stream_of(device)
        # Another thread may launch on the same stream between a kernel and the combining of its parts.
        place = stream if not room_of_parts else (stream, get_ident())
        on_stream = streams.get(place)
        if on_stream is None:
            on_stream = _on_stream(prepared, device, stream, shape)
            if stream is not None:
                if len(streams) >= _KEPT_STREAMS:
                    streams.clear()
                streams[place] = on_stream
        room = room_now()
        out = room(shape, strides, dtype)
        lse = room(lse_shape, lse_strides, torch.float32) if want_lse or stream is None else None
        written = on_stream.unread if lse is None else lse
        if not as_they_come:
            captures = tuple(map(kernels.as_argument, captures))
        function((query, key, value, out, written), scale, on_stream.rest, workers, captures or None, slots)
        if combine is not None:
            combine(on_stream.parts, on_stream.rows, on_stream.ptr, out, written, packed, captures[first_of_out:] or None,
                    out_slots)
        return out, lse

    return run


def _lies_as_tma_takes_it(t: Tensor) -> bool:
    """Whether TMA takes the strides of q, k or v."""
    step = TMA_BYTES // t.element_size()
    return t.stride(3) == 1 and not any(s % step for s in t.stride()[:3])


def _detached(tensors: tuple) -> tuple:
    for t in tensors:
        if t.requires_grad:
            return tuple([t.detach() for t in tensors])
    return tensors


def _on_stream(prepared: kernels.Prepared, device: torch.device, stream: int | None, out_shape: tuple) -> OnStream:
    """stream: as `kernels.stream_of` gives it; of one that is captured nothing is shared, and a graph gets its own."""
    lists, function, parts = prepared.lists, prepared.function, None
    if stream is None:
        capture.keep(lists)
    if prepared.room:
        shape = prepared.room, prepared.plan.tiles.rows
        outs = _room("parts", (*shape, out_shape[3]), device, stream)
        parts = outs, _room("statistics of parts", (*shape, STATISTICS), device, stream)
    rest = kernels.span_arguments(lists), lists.work, parts, kernels.counter_of(device) if prepared.counted else None
    if stream is None:
        return OnStream(rest, None, parts, lists.combine_rows, lists.combine_ptr)
    unread = _room("lse", out_shape[:3], device, stream)
    return OnStream(*[_converted(given, function) for given in (rest, unread, parts, lists.combine_rows, lists.combine_ptr)])


def _room(name: str, shape: tuple, device: torch.device, stream: int | None) -> Tensor:
    """float32 that holds anything, the same for all launches of a stream by a thread: each has finished when the next one writes
    there."""
    count = math.prod(shape)
    if stream is None:
        return torch.empty(shape, dtype=torch.float32, device=device)
    key = name, device, stream, get_ident()
    found = _rooms.get(key)
    if found is None or len(found) < count:
        if len(_rooms) >= 4 * _KEPT_STREAMS:
            _rooms.clear()
        found = _rooms[key] = torch.empty(1 << (count - 1).bit_length(), dtype=torch.float32, device=device)
    return found[:count].view(shape)


def _converted(given, function: Callable):
    """An argument of `function` as it would convert it itself."""
    return store.tvm_ffi.convert(given) if given is not None and store.is_loaded(function) else given


def recorder(launch: Callable, captures: tuple, call: Attention) -> Callable:
    """`launch`, a function that `launcher` made for these captures, recorded for autograd."""
    literals = tuple([x for b in (call.score, call.mask) if b is not None for x in b.literals])
    wanted = tuple([i for i, t in enumerate(captures) if t.requires_grad])
    programs = encode(call.score, call.mask, None, call.layout, call.precise)
    form = transforms.Call(len(captures), literals, programs, call.scale, wanted)
    spans = weakref.ref(call.spans) if spans_of_gradients(call.spans) else lambda: None
    grad_enabled, origins = torch.is_grad_enabled, changed.origins_of((call.score, call.mask))

    def run(query: Tensor, key: Tensor, value: Tensor, captures: tuple, want_lse: bool) -> tuple[Tensor, Tensor | None]:
        if not grad_enabled():
            return launch(query, key, value, captures, want_lse)
        found = spans()
        lists = tuple(spans_of_gradients(found))
        return Recorded.apply(launch, form, origins, lists, query, key, value, *captures)

    return run


def standing_in(run: Callable, better: apart.Job, device: torch.device) -> Callable:
    """`run` of a kernel that stands in for another, until that is there, or a call must have it: then None."""
    now, deterministic = time.monotonic, torch.are_deterministic_algorithms_enabled

    def run_until(query: Tensor, key: Tensor, value: Tensor, captures: tuple,
                  want_lse: bool) -> tuple[Tensor, Tensor | None] | None:
        if now() >= better.due and better.look() or deterministic() or kernels.stream_of(device) is None:
            return None
        return run(query, key, value, captures, want_lse)

    return run_until
