"""Launches of one kind of call: what stays from one to the next is worked out and converted once.

A compiled host function takes torch's tensors and Python's tuples, and converts each in every call; tvm-ffi's own it takes as
they are. So lists, counter and workspace are kept converted, by the stream they are used on. An LSE that nobody asked for goes to
one room that all launches of a stream write and nobody reads.
"""
from __future__ import annotations

import math
import weakref
from threading import get_ident
from typing import Callable, NamedTuple

import torch
from torch import Tensor

from flexfa4.plan import TMA_BYTES
from flexfa4.sparsity import Spans

from . import capture, kernels, native, store, transforms
from .programs import encode
from .recorded import Recorded
from .torch_op import Attention

_NO_VALUES = (None, None)
_KEPT_STREAMS = 64

_rooms: dict[tuple, Tensor] = {}


class Kind(NamedTuple):
    """What calls of one kind share. graphs: held so that their identities stay theirs. mask: the BlockMask, weakly. captured: of
    a mask without a BlockMask, the state of its captures that the lists are good for. direct: TMA takes the inputs' strides.
    dense: the contiguous captures, as the kernel was compiled."""

    graphs: tuple
    mask: Callable
    captured: tuple | None
    scale: float
    element_bytes: int
    prepared: "kernels.Prepared"
    slots: tuple | None
    dense: tuple[bool, ...]
    direct: bool
    out_shape: tuple[int, int, int, int]


def launch(kind: Kind, query: Tensor, key: Tensor, value: Tensor, captures: tuple) -> tuple[Tensor, Tensor]:
    """captures: as the kernel takes them."""
    if query.requires_grad or key.requires_grad or value.requires_grad:
        query, key, value = query.detach(), key.detach(), value.detach()
    if not kind.direct or (query.data_ptr() | key.data_ptr() | value.data_ptr()) % TMA_BYTES:
        query, key, value = kernels.aligned(query), kernels.aligned(key), kernels.aligned(value)
    out = kernels.new_out(query, kind.out_shape)
    lse = query.new_empty(kind.out_shape[:3], dtype=torch.float32)
    values = (captures or None, kind.slots) if captures or kind.slots else _NO_VALUES
    counter = kernels.counter_of(query.device) if kind.prepared.counted else None
    kernels.launch(kind.prepared, (query, key, value, out, lse), kind.scale, values, counter)
    return out, lse


class OnStream(NamedTuple):
    """What launches on one stream share. rest: the third argument of the kernel; unread: an LSE that is not asked for; parts,
    rows, ptr: the first arguments of the kernel that combines split rows."""

    rest: object
    unread: object
    parts: object
    rows: object
    ptr: object


def launcher(kind: Kind, tensors: tuple[Tensor, Tensor, Tensor], captures: tuple) -> Callable:
    """`launch` for q, k, v and captures like these: a function of those and whether the LSE is wanted."""
    device, dtype, prepared = tensors[0].device, tensors[0].dtype, kind.prepared
    function, combine, workers, scale, slots = prepared.function, prepared.combine, prepared.workers, kind.scale, kind.slots
    shape, lse_shape, direct, room_now = kind.out_shape, kind.out_shape[:3], kind.direct, native.rooms_on(device)
    strides, lse_strides = kernels.out_strides(shape, kind.element_bytes), native.contiguous(lse_shape)
    as_they_come = all(kernels.as_argument(t) is t for t in captures)
    constant = _converted((None, slots), function) if slots else _NO_VALUES
    packed = kernels.heads_in_a_tile(prepared.plan, *tensors[:2])
    grad_enabled, streams = torch.is_grad_enabled, {}

    def run(query: Tensor, key: Tensor, value: Tensor, captures: tuple, want_lse: bool) -> tuple[Tensor, Tensor | None]:
        if not grad_enabled():             # else nothing wants a gradient
            if query.requires_grad or key.requires_grad or value.requires_grad:
                query, key, value = query.detach(), key.detach(), value.detach()
            if captures:
                captures = _detached(captures)
        if not direct or (query.data_ptr() | key.data_ptr() | value.data_ptr()) % TMA_BYTES:
            query, key, value = kernels.aligned(query), kernels.aligned(key), kernels.aligned(value)
        stream = kernels.stream_of(device)
        # Another thread may launch on the same stream between a kernel and the combining of its parts.
        place = stream if combine is None else (stream, get_ident())
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
        values = constant
        if captures:
            values = (captures if as_they_come else tuple(map(kernels.as_argument, captures))), slots
        function((query, key, value, out, written), scale, on_stream.rest, workers, values)
        if combine is not None:
            of_out = kernels.values_of_out(prepared, (values[0], slots)) if prepared.of_out != (0, 0) else _NO_VALUES
            combine(on_stream.parts, on_stream.rows, on_stream.ptr, out, written, packed, of_out)
        return out, lse

    return run


def _detached(captures: tuple) -> tuple:
    for t in captures:
        if t.requires_grad:
            return tuple([t.detach() for t in captures])
    return captures


def _on_stream(prepared: kernels.Prepared, device: torch.device, stream: int | None, out_shape: tuple) -> OnStream:
    """stream: as `kernels.stream_of` gives it; of one that is captured nothing is shared, and a graph gets its own."""
    lists, function, parts = prepared.lists, prepared.function, None
    if stream is None:
        capture.keep(lists)
    if prepared.combine is not None:
        shape = lists.parts, prepared.plan.tiles.rows
        outs = _room("parts", (*shape, out_shape[3]), device, stream)
        parts = outs, _room("lses of parts", shape, device, stream)
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


def recorder(kind: Kind, tensors: tuple[Tensor, Tensor, Tensor], captures: tuple, call: Attention) -> Callable:
    """As `launcher`, recorded for autograd."""
    launch_it = launcher(kind, tensors, captures)
    literals = tuple([x for b in (call.score, call.mask) if b is not None for x in b.literals])
    wanted = tuple([i for i, t in enumerate(captures) if t.requires_grad])
    form = transforms.Call(len(captures), literals, encode(call.score, call.mask, None, call.layout), call.scale, wanted)
    spans = weakref.ref(call.spans) if isinstance(call.spans, Spans) else lambda: None

    def run(query: Tensor, key: Tensor, value: Tensor, captures: tuple, want_lse: bool) -> tuple[Tensor, Tensor]:
        found = spans()
        more = captures if found is None else (*captures, found.row_ptr, found.runs)
        return Recorded.apply(launch_it, form, query, key, value, *more)

    return run
