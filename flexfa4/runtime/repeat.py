"""Calls like one that was made before: what was checked, chosen and made then is found by one look-up, and the kernel launched.

A kind of call is known by the shapes, strides, types and devices of its inputs, the graphs and literals of its mods and its
BlockMask at one revision, or its FixedMask, whose `check_fresh` writes its buffers where they are not what the mask is. What a
mod closes over is looked at in every call (`bind`), and so is what may differ between calls of one kind: where captured tensors
are and how they lie, the alignment of the inputs, the stream. Only calls that a kernel takes, that no mode of torch looks on are
known; `again` gives None for all others.

A kind is found by a name of all that (`_known`), and before that among the latest of the same mods by one check of all tensors
at once (`_ready`), which asks for captures of the same shapes too. Calls that want gradients are known there alone. Where the
mods are the very objects of an earlier call, their traces are known without a search (`_hints`).
"""
from __future__ import annotations

import weakref
from typing import Callable, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flexfa4.sparsity import BlockMask, FixedMask
from flexfa4.tensors import TensorKey, all_now
from flexfa4.trace import Entry, Parts, parts_of

from . import apart, internals, kernels, native
from .engine import MOST_ITEMS
from .lookups import decided_by_positions
from .relaunch import launcher, recorder, standing_in
from .torch_op import Attention, lists_of_call, settling

_KEPT = 128
_USUAL = frozenset({Tensor, torch.nn.Parameter})
_MASKS = frozenset({BlockMask, FixedMask})
_NUMBERS = frozenset({float, int, type(None)})
# Of the kinds of the same mods, those that are looked through before a name is made.
_KEPT_READY = 4
_NO_CAPTURES = (), (), ()

_known: "dict[tuple, Kind]" = {}
_ready: "dict[tuple, list[Ready]]" = {}
_hints: "dict[tuple, Hint]" = {}

_any_autocast, _modes, _transform = internals.any_autocast, internals.dispatch_modes, internals.transform


# Of q, k, v, the captures, and whether the LSE is wanted: (out, lse); None where the call is to be looked at anew.
Run = Callable[[Tensor, Tensor, Tensor, tuple, bool], Optional[Tuple[Tensor, Optional[Tensor]]]]


class Kind(NamedTuple):
    """What calls of one kind share. mask: the BlockMask, weakly. captured: of a mask without a BlockMask, the state of its
    captures that the lists are good for. dense: the contiguous captures, as the kernel was compiled."""

    mask: Callable
    captured: tuple | None
    dense: tuple[bool, ...]
    run: Run


class Ready(NamedTuple):
    """A kind whose tensors are checked at once. fits: takes q, k, v and the captures; held: what `_short_name` names by
    identity."""

    fits: Callable[..., bool]
    kind: Kind
    held: tuple


class Hint(NamedTuple):
    """What a call with these very objects was: the traces of its mods, which say whether they still are, its BlockMask and the
    revision of that, and the kinds that it may be. plain: there are no mods and no BlockMask."""

    score: Entry | None
    mask: Entry | None
    out: Entry | None
    block_mask: Callable
    revision: int
    ready: list[Ready]
    plain: bool


def again(query: Tensor, key: Tensor, value: Tensor, mods: tuple, scale: float | None, options: tuple, want_lse: bool = True,
          made: dict | None = None) -> tuple[Tensor, Tensor | None] | None:
    """(out, lse) of a call of a known kind, None for any other. mods: (score_mod, block_mask, mask_mod, out_mod). options:
    (enable_gqa, precise). want_lse: lse may be None where it is False. made: gets, by kind, what had to be traced for this, and
    as "block_mask" a BlockMask that is known to be fresh."""
    if not (_known or _ready) or type(scale) not in _NUMBERS or forward_ad._current_level >= 0:
        return None
    score_mod, block_mask, mask_mod, out_mod = mods
    ids = id(score_mod), id(block_mask), id(mask_mod), id(out_mod), scale, options
    hint = _hints.get(ids)
    if hint is not None:
        captures = _NO_CAPTURES if hint.plain else _captures_by(hint, mods)
        if captures is not None:
            found = _first_that_fits(hint.ready, (query, key, value), captures, block_mask, want_lse)
            if found is not None:
                return found
    parts = _parts(mods, {} if made is None else made)
    if parts is None:
        return None
    short, lasting = _short_name(parts, block_mask, scale, options), _are_kept(parts, block_mask)
    ready = _ready.get(short)
    if ready:
        if lasting:
            _give_hint(ids, parts, block_mask, ready)
        captures = tuple([() if part is None else part[2] for part in parts])
        found = _first_that_fits(ready, (query, key, value), captures, block_mask, want_lse)
        if found is not None:
            return found
    if not _usual(query, key, value, scale) or _wants_gradient(query, key, value):
        return None
    kind = _by_name((query, key, value), parts, block_mask, scale, options)
    if kind is None:
        return None
    flat = tuple([t for part in parts if part is not None for t in part[2]])
    if not _lie_as(flat, query, kind.dense):
        return None
    if lasting:
        _make_ready(short, parts, (query, key, value, *flat), kind)
    return kind.run(query, key, value, flat, want_lse)


def _captures_by(hint: Hint, mods: tuple) -> tuple[tuple, tuple, tuple] | None:
    """The captures of score, mask and out mod, None where they are not what they were. An identity may be that of another object
    by now: the traces know."""
    score_mod, block_mask, mask_mod, out_mod = mods
    if hint.block_mask() is not block_mask:
        return None
    score = mask = out = ()
    if score_mod is not None:
        score = hint.score.captures_of(score_mod)
    if block_mask is not None:
        block_mask.check_fresh()
        mask = block_mask.bound.tensors if block_mask.revision == hint.revision else None
    elif mask_mod is not None:
        mask = hint.mask.captures_of(mask_mod)
    if out_mod is not None:
        out = hint.out.captures_of(out_mod)
    return None if score is None or mask is None or out is None else (score, mask, out)


def _first_that_fits(ready: list[Ready], tensors: tuple, captures: tuple[tuple, tuple, tuple],
                     block_mask: BlockMask | FixedMask | None,
                     want_lse: bool) -> tuple[Tensor, Tensor | None] | None:
    """captures: of score, mask and out mod."""
    score, mask, out = captures
    flat = score + mask + out
    for fits, kind, _ in ready:
        if fits(*tensors, *flat):
            mask_of, captured, _, run = kind
            if mask_of() is block_mask and (captured is None or all_now(captured, mask)):
                found = run(*tensors, flat, want_lse)
                if found is not None:
                    return found
    return None


def _are_kept(parts: tuple, block_mask: BlockMask | FixedMask | None) -> bool:
    """Whether the traces of the mods are those of later calls too."""
    score, mask, out = (part is None or part[3] is not None for part in parts)
    return score and out and (mask or block_mask is not None)


def _give_hint(ids: tuple, parts: tuple, block_mask: BlockMask | FixedMask | None, ready: list[Ready]) -> None:
    if len(_hints) >= _KEPT:
        _hints.pop(next(iter(_hints), None), None)
    score, mask, out = (None if part is None else part[3] for part in parts)
    _hints[ids] = Hint(score, mask, out, ready[0].kind.mask, block_mask.revision if block_mask is not None else 0, ready,
                       parts == (None, None, None))


def _by_name(tensors: tuple, parts: tuple, block_mask: BlockMask | None, scale, options: tuple) -> Kind | None:
    """The known kind of these inputs and mods, if its lists are good for the mask's captures as they are."""
    kind = _known.get(_name(*tensors, parts, block_mask, scale, options))
    if kind is None or kind.mask() is not block_mask or not (kind.captured is None or all_now(kind.captured, parts[1][2])):
        return None
    return kind


def _make_ready(short: tuple, parts: tuple, tensors: tuple, kind: Kind) -> None:
    """tensors: q, k, v and the captures."""
    fits = native.check_of(tensors)
    if fits is not None:
        if len(_ready) >= _KEPT:
            _ready.pop(next(iter(_ready), None), None)
        held = tuple([part[:2] for part in parts if part is not None])
        found = _ready.setdefault(short, [])
        found.insert(0, Ready(fits, kind, held))
        del found[_KEPT_READY:]


def _short_name(parts: tuple, block_mask: BlockMask | FixedMask | None, scale, options: tuple) -> tuple:
    """Of the mods; what it names by identity is held by those who are found under it."""
    score, mask, out = parts
    name = type(scale), scale, options
    if block_mask is not None:
        name += id(block_mask), block_mask.revision
    if score is not None:
        name += ("score", id(score[0]), id(score[1]))
    if mask is not None:
        name += ("mask", id(mask[0]), id(mask[1]))
    return name if out is None else name + ("out", id(out[0]), id(out[1]))


def remember(tensors: tuple[Tensor, Tensor, Tensor], mods: tuple, scale: float | None, options: tuple, call: Attention) -> None:
    """Makes the kind of a call known that a kernel has just taken."""
    block_mask, mask_mod = mods[1:3]
    if not _usual(*tensors, scale):
        return
    if block_mask is not None and not (type(block_mask) in _MASKS and mask_mod is None):
        return
    bounds = call.score, call.mask, call.out
    parts = tuple([None if b is None else b.parts for b in bounds])
    captures = tuple([t for part in parts if part is not None for t in part[2]])
    recorded = _wants_gradient(*tensors, *captures)
    if recorded and (call.out is not None or type(block_mask) is FixedMask):
        return                         # of an output graph the backward pass needs what came before it
    dense = tuple([t.stride(-1) == 1 if t.dim() else True for t in captures])
    with torch.no_grad():
        if not _lie_as(captures, tensors[0], dense):
            return
    named = _name(*tensors, parts, block_mask, scale, options)
    kind, better = _kind(tensors, call, dense, _weakly(block_mask, named), block_mask is None)
    if recorded:
        kind = kind._replace(run=recorder(kind.run, captures, call))
    if better is not None:
        kind = kind._replace(run=standing_in(kind.run, better, tensors[0].device))
    if recorded:
        _make_ready(_short_name(parts, block_mask, scale, options), parts, (*tensors, *captures), kind)
        return
    if len(_known) >= _KEPT:
        _known.pop(next(iter(_known), None), None)
    _known[named] = kind


def _kind(tensors: tuple[Tensor, Tensor, Tensor], call: Attention, dense: tuple[bool, ...], mask: Callable,
          alone: bool) -> tuple[Kind, apart.Job | None]:
    """The kind, and what compiles its own kernel where it runs with another. alone: whether a mask has no BlockMask."""
    query, key, _ = tensors
    bounds = [b for b in (call.score, call.mask, call.out) if b is not None]
    lists = lists_of_call(call.plan, call.mask, call.layout, call.spans, query, key)
    plan, lists, better = settling(tensors, call)(call.plan, lists, kernels.is_counted(call.plan), dense)
    captured = tuple(map(TensorKey, call.mask.tensors)) if alone and call.mask is not None and call.mask.tensors else None
    slots = tuple([x for b in bounds for x in kernels.slots_of(b)])
    workers, counted = kernels.workers_for(plan, query.device, kernels.work_items(plan, query, key, lists))
    prepared = kernels.prepare(plan, lists, workers, counted, dense)
    captures = tuple([t for b in bounds for t in b.tensors])
    return Kind(mask, captured, dense, launcher(prepared, tensors, captures, call.scale, slots)), better


def _usual(query: Tensor, key: Tensor, value: Tensor, scale) -> bool:
    """Whether these are usual arguments, whose memory holds what they are, and no mode of torch looks on."""
    if type(query) not in _USUAL or type(key) not in _USUAL or type(value) not in _USUAL or type(scale) not in _NUMBERS:
        return False
    if query.is_neg() or key.is_neg() or value.is_neg():
        return False
    return not _any_autocast() and _modes() == 0 and _transform() is None and forward_ad._current_level < 0


def _wants_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any([t.requires_grad for t in tensors])


def _parts(mods: tuple, made: dict) -> tuple[Parts | None, Parts | None, Parts | None] | None:
    """Of score, mask and out mod; None for masks of which no kind is kept. made: see `again`."""
    score_mod, block_mask, mask_mod, out_mod = mods
    if block_mask is None:
        mask = None if mask_mod is None else parts_of(mask_mod, "mask", made)
    elif mask_mod is None and type(block_mask) in _MASKS:
        block_mask.check_fresh()
        made["block_mask"] = block_mask
        mask = *block_mask.bound.parts, None
    else:
        return None
    score = None if score_mod is None else parts_of(score_mod, "score", made)
    return score, mask, None if out_mod is None else parts_of(out_mod, "out", made)


def _name(query: Tensor, key: Tensor, value: Tensor, parts: tuple, block_mask: BlockMask | FixedMask | None, scale,
          options: tuple) -> tuple | None:
    """The name of a kind; None for tensors that have no strides. By the structure of graphs, which a mod that is traced in each
    call has in common with its last one."""
    mods = tuple([None if part is None else (part[0], tuple(map(repr, part[1])), _shapes(part)) for part in parts])
    try:
        return (query.shape, key.shape, value.shape, query.stride(), key.stride(), value.stride(), query.dtype, key.dtype,
                value.dtype, query.get_device(), key.get_device(), value.get_device(), scale, options, id(block_mask),
                block_mask.revision if block_mask is not None else 0, mods)
    except RuntimeError:
        return None


def _shapes(part: Parts) -> tuple | None:
    """Of the captures, where they decide whether a position is past the end of one."""
    return tuple([t.shape for t in part[2]]) if part[0].kind != "mask" and decided_by_positions(part[0]) else None


def _weakly(block_mask: BlockMask | FixedMask | None, named: tuple) -> Callable:
    """A reference to a BlockMask that keeps it not alive, nor the kind once it is gone."""
    if block_mask is None:
        return _none

    def forget(ref) -> None:
        _known.pop(named, None)
        for name in [name for name, found in list(_ready.items()) if any(ready.kind.mask is ref for ready in found)]:
            _ready.pop(name, []).clear()         # a hint has the list too

    return weakref.ref(block_mask, forget)


def _none() -> None:
    return None


def _lie_as(captures: tuple, query: Tensor, dense: tuple[bool, ...]) -> bool:
    """Whether captured tensors are such as the kernel takes: none is elsewhere, empty, larger than 32 bits count, a lazy
    negative, or wants a gradient, and the last dimension of each is contiguous where `dense` says so, and only there."""
    for t, last_is_dense in zip(captures, dense):
        if t.is_neg() or t.requires_grad and torch.is_grad_enabled():
            return False
        if t.get_device() != query.get_device() or type(t) not in _USUAL or t.numel() == 0:
            return False
        if max(t.shape, default=0) >= MOST_ITEMS:
            return False
        if (t.dim() == 0 or t.stride(-1) == 1) is not last_is_dense:
            return False
    return True
