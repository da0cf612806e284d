"""Calls like one that was made before: what was checked, chosen and made then is found by one look-up, and the kernel launched.

A kind of call is known by the shapes, strides, types and devices of its inputs, the graphs and literals of its mods and its
BlockMask at one revision. What a mod closes over is looked at in every call (`bind`), and so is what may differ between calls of
one kind: where captured tensors are and how they lie, the alignment of the inputs, the stream. Only calls that a kernel takes,
that want no gradient and that no mode of torch looks on are known; `again` gives None for all others.
"""
from __future__ import annotations

import math
import weakref
from typing import Callable, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flexfa4.ir.bound import BoundGraph
from flexfa4.plan import TMA_BYTES
from flexfa4.sparsity import BlockMask
from flexfa4.tensors import TensorKey
from flexfa4.trace import bind

from . import kernels
from .torch_op import Attention, lists_of_call

_KEPT = 128
_USUAL = frozenset({Tensor, torch.nn.Parameter})
_NUMBERS = frozenset({float, int, type(None)})
_NO_VALUES = (None, None)

_known: "dict[tuple, Kind]" = {}

_any_autocast = torch._C._is_any_autocast_enabled
_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack


class Kind(NamedTuple):
    """What calls of one kind share. graphs: held so that their identities stay theirs. mask: the BlockMask, weakly. captured: of
    a mask without a BlockMask, the state of its captures that the lists are good for. direct: TMA takes the inputs' strides.
    whole: out is laid out as query is. dense: the contiguous captures, as the kernel was compiled."""

    graphs: tuple
    mask: Callable
    captured: tuple | None
    scale: float
    prepared: "kernels.Prepared"
    slots: tuple | None
    dense: tuple[bool, ...]
    direct: bool
    whole: bool
    out_shape: tuple[int, int, int, int]


def again(query: Tensor, key: Tensor, value: Tensor, mods: tuple, scale: float | None, gqa: bool) -> tuple[Tensor, Tensor] | None:
    """(out, lse) of a call of a known kind, None for any other. mods: (score_mod, block_mask, mask_mod, out_mod)."""
    if not _known or not _unwatched(query, key, value, scale):
        return None
    bounds = _bounds(mods)
    if bounds is None:
        return None
    named = _name(query, key, value, bounds, mods[1], scale, gqa)
    kind = _known.get(named)
    if kind is None or kind.mask() is not mods[1]:
        return None
    mask = bounds[1]
    if kind.captured is not None and kind.captured != tuple(map(TensorKey, mask.tensors)):
        return None
    captures = _captures(bounds, query, kind.dense)
    return None if captures is None else _launch(kind, query, key, value, captures)


def remember(tensors: tuple[Tensor, Tensor, Tensor], mods: tuple, scale: float | None, gqa: bool, call: Attention) -> None:
    """Makes the kind of a call known that a kernel has just taken."""
    query, key, value = tensors
    block_mask, mask_mod = mods[1:3]
    if not _unwatched(query, key, value, scale):
        return
    if block_mask is not None and not (type(block_mask) is BlockMask and mask_mod is None):
        return
    bounds, plan = (call.score, call.mask, call.out), call.plan
    lists = lists_of_call(plan, call.mask, call.layout, call.spans, query, key)
    dense = tuple([t.stride(-1) == 1 if t.dim() else True for b in bounds if b is not None for t in b.tensors])
    if _captures(bounds, query, dense) is None:
        return
    named = _name(query, key, value, bounds, block_mask, scale, gqa)
    mask = call.mask
    captured = tuple(map(TensorKey, mask.tensors)) if mask is not None and block_mask is None and mask.tensors else None
    slots = tuple([x for b in bounds if b is not None for x in kernels.slots_of(b)])
    step = TMA_BYTES // query.element_size()
    direct = all(t.stride(3) == 1 and not any(s % step for s in t.stride()[:3]) for t in tensors)
    out_shape = (*query.shape[:3], value.shape[3])
    crew = kernels.crew_of(plan, query.device, kernels.work_items(plan, query, key, lists))
    kind = Kind(tuple(b.graph for b in bounds if b is not None), _weakly(block_mask, named), captured,
                1.0 / math.sqrt(query.shape[3]) if scale is None else float(scale),
                kernels.prepare(plan, lists, crew.workers, crew.counter is not None, dense), slots or None, dense, direct,
                query.shape == out_shape and query.stride() == torch.empty(out_shape, device="meta").stride(), out_shape)
    if len(_known) >= _KEPT:
        _known.pop(next(iter(_known), None), None)
    _known[named] = kind


def _unwatched(query: Tensor, key: Tensor, value: Tensor, scale) -> bool:
    """Whether these are usual arguments, and no gradient is wanted and no mode of torch looks on."""
    if type(query) not in _USUAL or type(key) not in _USUAL or type(value) not in _USUAL or type(scale) not in _NUMBERS:
        return False
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return False
    return not _any_autocast() and _modes() == 0 and _transform() is None and forward_ad._current_level < 0


def _bounds(mods: tuple) -> tuple[BoundGraph | None, BoundGraph | None, BoundGraph | None] | None:
    score_mod, block_mask, mask_mod, out_mod = mods
    if block_mask is None:
        mask = None if mask_mod is None else bind(mask_mod, "mask")
    elif mask_mod is None and type(block_mask) is BlockMask:
        block_mask.check_fresh()
        mask = block_mask.bound
    else:
        return None
    return (None if score_mod is None else bind(score_mod, "score"), mask, None if out_mod is None else bind(out_mod, "out"))


def _name(query: Tensor, key: Tensor, value: Tensor, bounds: tuple, block_mask: BlockMask | None, scale,
          gqa: bool) -> tuple | None:
    """The name of a kind; None for tensors that have no strides."""
    score, mask, out = bounds
    try:
        return (query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride(), query.dtype, key.dtype,
                value.dtype, query.get_device(), key.get_device(), value.get_device(), scale, gqa, id(block_mask),
                block_mask.revision if block_mask is not None else 0,
                None if score is None else (id(score.graph), score.literals),
                None if mask is None else (id(mask.graph), mask.literals),
                None if out is None else (id(out.graph), out.literals))
    except RuntimeError:
        return None


def _weakly(block_mask: BlockMask | None, named: tuple) -> Callable:
    """A reference to a BlockMask that keeps it not alive, nor the kind once it is gone."""
    return weakref.ref(block_mask, lambda _: _known.pop(named, None)) if block_mask is not None else _none


def _none() -> None:
    return None


def _captures(bounds: tuple, query: Tensor, dense: tuple[bool, ...]) -> tuple | None:
    """The captured tensors as the kernel takes them; None where one is elsewhere, is empty, wants a gradient or does not lie as
    `dense` says."""
    found = []
    for bound in bounds:
        if bound is None:
            continue
        for t in bound.tensors:
            if t.requires_grad:
                if torch.is_grad_enabled():
                    return None
                t = t.detach()
            if t.get_device() != query.get_device() or type(t) not in _USUAL or t.numel() == 0:
                return None
            t = kernels.as_argument(t)
            if (t.stride(-1) == 1) is not dense[len(found)]:
                return None
            found.append(t)
    return tuple(found)


def _launch(kind: Kind, query: Tensor, key: Tensor, value: Tensor, captures: tuple) -> tuple[Tensor, Tensor]:
    if query.requires_grad or key.requires_grad or value.requires_grad:
        query, key, value = query.detach(), key.detach(), value.detach()
    if not kind.direct or (query.data_ptr() | key.data_ptr() | value.data_ptr()) % TMA_BYTES:
        query, key, value = kernels.aligned(query), kernels.aligned(key), kernels.aligned(value)
    out = torch.empty_like(query) if kind.whole else kernels.new_out(query, kind.out_shape)
    lse = query.new_empty(kind.out_shape[:3], dtype=torch.float32)
    values = (captures or None, kind.slots) if captures or kind.slots else _NO_VALUES
    counter = kernels.counter_of(query.device) if kind.prepared.counted else None
    kernels.launch(kind.prepared, (query, key, value, out, lse), kind.scale, values, counter)
    return out, lse
