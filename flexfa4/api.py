"""`flex_attention`: torch's call, with flexfa4's engines behind it."""
from __future__ import annotations

import math
import warnings
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from flexfa4 import runtime
from flexfa4.engines.tiled.tiles import KV_TILE, query_tile
from flexfa4.errors import ShapeError, UnsupportedError
from flexfa4.ir import DType, Op
from flexfa4.ir.bound import BoundGraph
from flexfa4.plan import Plan
from flexfa4.runtime import Attention, attention, capture, engine, repeat, transforms
from flexfa4.runtime.programs import Layout, fitted
from flexfa4.runtime.torch_op import built_spans, refuse_to_capture
from flexfa4.sparsity import BlockMask, FixedMask, Spans, and_masks
from flexfa4.sparsity.work_spans import WorkSpans
from flexfa4.trace import bind

from . import debug as interpreted
from .validate import check_captures, check_flags, check_mask, check_scale, check_tensors


class AuxOutput(NamedTuple):
    """What `return_aux` asks for: lse [B, H, Sq], or None where it was not asked for."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Callable | None = None,
                   block_mask: BlockMask | FixedMask | torch_flex.BlockMask | None = None, scale: float | None = None,
                   enable_gqa: bool = False, return_lse: bool = False, kernel_options: dict[str, Any] | None = None, *,
                   return_aux: Any = None, mask_mod: Callable | None = None, out_mod: Callable | None = None,
                   precise: bool = False, debug: bool = False):
    """Attention with a score edit, a mask and an output hook; exact, differentiable, tiles that hold nothing are skipped.

    query [B, Hq, Sq, D], key [B or 1, Hkv, Skv, D], value [B or 1, Hkv, Skv, Dv]: float16, bfloat16, float32 or float64, any
    strides. With enable_gqa, Hq is a multiple of Hkv and query head h reads key head h // (Hq // Hkv).

    score_mod(score, b, h, q, kv) -> float. block_mask: a BlockMask of this library or of torch, or a FixedMask (`reserve`), whose
    tiles a CUDA graph finds anew in each replay. mask_mod(b, h, q, kv) -> bool is taken directly, and and-ed with a BlockMask
    where both are given. out_mod(out, lse, b, h, q[, d]) -> float is applied to each output element at the end. scale: default
    1 / sqrt(D).

    Returns out [B, Hq, Sq, Dv] in query's dtype; with return_lse also lse [B, Hq, Sq] (natural logarithm, float32, or float64 for
    float64 inputs); with return_aux the pair (out, AuxOutput). A row that may see no key has out 0
    (before out_mod) and lse -inf.
    kernel_options is accepted for compatibility and ignored with a warning.

    precise: GPU kernels take no hardware approximations in the mods (their errors: docs/ir.md) nor a polynomial for exponentials.

    debug: after the ordinary call, the mods are called as plain Python on 0-d tensors, once a position; out, lse and gradients
    are those of these calls: print and breakpoint() work in a mod. For small inputs.

    Raises ShapeError, TraceError, LookupOutOfRange or StaleMaskError; the first two before any work is done. The backward pass
    raises ChangedCaptureError where a captured tensor was written in place since.
    """
    if kernel_options:
        warnings.warn(f"kernel_options={kernel_options!r} is ignored: flexfa4 chooses its own tiles", stacklevel=2)
    mods = (score_mod, block_mask, mask_mod, out_mod)
    found, made = None, {}
    # By identity, since 1 is equal to True: a kind of call is known by flags that are bools.
    may_be_known = (debug is False and (precise is False or precise is True) and (enable_gqa is False or enable_gqa is True)
                    and (return_lse is False or return_lse is True) and not torch.compiler.is_dynamo_compiling()
                    and not torch.jit.is_tracing())
    if not may_be_known:
        check_flags(enable_gqa=enable_gqa, return_lse=return_lse, precise=precise, debug=debug)
    want_lse = return_lse if return_aux is None else _wants_lse(return_lse, return_aux)
    if may_be_known:
        found = repeat.again(query, key, value, mods, scale, (enable_gqa, precise), want_lse, made)
    out, lse = _first((query, key, value), mods, scale, (enable_gqa, precise), debug, made) if found is None else found
    if return_aux is not None:
        return out, AuxOutput(lse=lse if want_lse else None)
    return (out, lse) if return_lse else out


def _first(tensors: tuple, mods: tuple, scale: float | None, options: tuple[bool, bool], debug: bool,
           made: dict) -> tuple[Tensor, Tensor]:
    """A call of a kind that is not known. options: (enable_gqa, precise); made: see `repeat.again`."""
    if torch.compiler.is_dynamo_compiling():
        apart = _apart(mods[1], debug)
        if apart is not None:
            return apart(_first, tensors, mods, scale, options, debug, made)
    elif torch.jit.is_tracing():
        raise UnsupportedError("torch.jit.trace records torch's own operations, and flex_attention is none: use torch.export or "
                               "torch.compile")
    enable_gqa, precise = options
    query, key, value = tensors = _autocast(*tensors)
    check_tensors(query, key, value, enable_gqa)
    check_scale(scale)
    factor = 1.0 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    if torch.compiler.is_dynamo_compiling():
        return _traced_by_dynamo(tensors, mods, factor, precise)
    if debug:
        return _debugged(tensors, mods, factor)
    call = _prepare(tensors, mods, factor, made, precise)
    found = attention(query, key, value, call)
    if call.plan is not None:
        repeat.remember(tensors, mods, scale, options, call)
    return found


def _prepare(tensors: tuple[Tensor, Tensor, Tensor], mods: tuple, scale: float, made: dict, precise: bool = False) -> Attention:
    """made: what was traced for this call before, see `repeat.again`."""
    query, key, _ = tensors
    score_mod, block_mask, mask_mod, out_mod = mods
    float_type = DType.F64 if query.dtype is torch.float64 else DType.F32
    known = made if float_type is DType.F32 else {}
    score = None if score_mod is None else known.get("score") or bind(score_mod, "score", float_type)
    hook = None if out_mod is None else known.get("out") or bind(out_mod, "out", float_type)
    mask, block_mask = _mask(block_mask, mask_mod, query, key, made)
    for bound in (score, mask, hook):
        if bound is not None:
            check_captures(bound, query.device)
    choice = engine.choose(engine.architecture(query.device), *tensors, scale, (score, mask, hook), precise)
    plan = choice.plan
    if mask is None:
        return Attention(score, mask, hook, None, None, scale, plan, precise)
    layout = _layout(mask, query, key, plan)
    if isinstance(block_mask, FixedMask):
        refuse_to_capture(tensors, (score, mask, hook), choice)
    if block_mask is not None and _has_data(query) and not transforms.active():
        return _with_spans((score, mask, hook), block_mask, (query, key), choice, layout, (scale, precise))
    if choice.wide is not None and _has_data(query) and not transforms.active():
        plan = choice.settled(lambda plan: built_spans(plan, mask, _layout(mask, query, key, plan), query, key))[0]
        layout = _layout(mask, query, key, plan)
    return Attention(score, mask, hook, layout, None, scale, plan, precise)


def _with_spans(bounds: tuple, block_mask: BlockMask | FixedMask, tensors: tuple[Tensor, Tensor], choice: engine.Choice,
                layout: Layout, options: tuple[float, bool]) -> Attention:
    """A call with the spans of its mask. bounds: score, mask, out; tensors: query and key; layout: at the tiles of the choice's
    plan; options: (scale, precise)."""
    (score, mask, hook), plan, (scale, precise) = bounds, choice.plan, options
    if isinstance(block_mask, FixedMask):
        fixed = block_mask.kept_spans(layout.q_tile, layout.kv_tile, plan is not None and plan.halves, tensors[0].device)
        return Attention(score, mask, hook, layout, fixed, scale, plan, precise)

    def spans_at(layout: Layout, for_work: bool = False, halved: bool = False) -> Spans | WorkSpans:
        if not block_mask.has_spans(layout.q_tile, layout.kv_tile, for_work, halved):
            capture.refuse_contents(mask)
        if for_work:
            return block_mask.work_spans(layout.q_tile, layout.kv_tile, halved)
        return block_mask.kept_spans(layout.q_tile, layout.kv_tile, device="cpu")

    def of_kernel(plan: Plan) -> Spans | WorkSpans:
        return spans_at(_layout(mask, *tensors, plan), plan.places_work, plan.halves)

    if plan is None:
        query = tensors[0]
        layout, spans = fitted(layout, query.shape[0] * query.shape[1], spans_at)
        return Attention(score, mask, hook, layout, spans, scale, None, precise)
    plan, spans = choice.settled(of_kernel)
    return Attention(score, mask, hook, _layout(mask, *tensors, plan), spans, scale, plan, precise, of_kernel)


def _debugged(tensors: tuple[Tensor, Tensor, Tensor], mods: tuple, scale: float) -> tuple[Tensor, Tensor]:
    query, key, _ = tensors
    score_mod, block_mask, mask_mod, out_mod = mods
    interpreted.check_size(query, key)
    with interpreted.quiet(), torch.no_grad():
        attention(*tensors, _prepare(tensors, mods, scale, {}))
    if block_mask is not None:
        inner = _ours(block_mask).mask_mod
        mask_mod = inner if mask_mod is None else and_masks(inner, mask_mod)
    return interpreted.attention(*tensors, (score_mod, mask_mod, out_mod), scale)


def _apart(block_mask, debug: bool) -> Callable | None:
    """What runs a call outside the graph that Dynamo makes, None for calls that become part of it."""
    if debug:
        return runtime.compiled.with_debug
    if isinstance(block_mask, FixedMask):
        return runtime.compiled.with_fixed_mask
    return runtime.compiled.with_torch_mask if isinstance(block_mask, torch_flex.BlockMask) else None


def _traced_by_dynamo(tensors: tuple[Tensor, Tensor, Tensor], mods: tuple, scale: float, precise: bool) -> tuple[Tensor, Tensor]:
    query, key, _ = tensors
    score_mod, block_mask, mask_mod, out_mod = mods
    if block_mask is not None:
        block_mask = _ours(block_mask)
        check_mask(block_mask, query, key)
        mask_mod = block_mask.mask_mod if mask_mod is None else and_masks(block_mask.mask_mod, mask_mod)
    group = query.shape[1] // key.shape[1]
    tiles = [query_tile(query.shape[2], group), query_tile(query.shape[2], 1), KV_TILE]
    return runtime.compiled.call(tensors, (score_mod, mask_mod, out_mod), scale, tiles, precise)


def _mask(block_mask, mask_mod, query: Tensor, key: Tensor,
          made: dict) -> tuple[BoundGraph | None, BlockMask | FixedMask | None]:
    """The mask's graph, and the BlockMask that keeps its spans, if one does."""
    if block_mask is None and mask_mod is None:
        return None, None
    if block_mask is not None:
        block_mask = _ours(block_mask)
        if made.get("block_mask") is not block_mask:
            (block_mask.mask if isinstance(block_mask, FixedMask) else block_mask).check_fresh()
        check_mask(block_mask, query, key)
    if mask_mod is not None:
        if isinstance(block_mask, FixedMask):
            raise UnsupportedError("block_mask is a FixedMask and mask_mod is given too: its buffers hold the tiles of one "
                                   "function; make a BlockMask of and_masks of both and reserve from that")
        both = mask_mod if block_mask is None else and_masks(block_mask.mask_mod, mask_mod)
        return made.get("mask") or bind(both, "mask"), None
    return block_mask.bound, block_mask


def _layout(bound: BoundGraph, query: Tensor, key: Tensor, plan: Plan | None) -> Layout:
    per_batch, per_head = bound.graph.uses(Op.B), bound.graph.uses(Op.H)
    batches, heads = query.shape[0] if per_batch else 1, query.shape[1] if per_head else 1
    if plan is not None:
        return Layout(plan.q_tile, plan.tiles.kv_tile, batches, heads)
    group = 1 if per_head else query.shape[1] // key.shape[1]
    return Layout(query_tile(query.shape[2], group), KV_TILE, batches, heads)


def _ours(mask) -> BlockMask | FixedMask:
    if isinstance(mask, (BlockMask, FixedMask)):
        return mask
    if isinstance(mask, torch_flex.BlockMask):
        return BlockMask.from_torch(mask)
    if isinstance(mask, Tensor):
        raise ShapeError("block_mask is a Tensor: expected a BlockMask of flexfa4 or torch, or a FixedMask; a mask of "
                         "positions is captured, as in mask_mod=lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]")
    raise ShapeError(f"block_mask is a {type(mask).__name__}: expected a BlockMask of flexfa4 or torch, or a FixedMask; a "
                     "function is passed as mask_mod=")


def _wants_lse(return_lse: bool, return_aux) -> bool:
    if return_aux is None:
        return return_lse
    if return_lse:
        raise ShapeError("return_lse=True and return_aux are both given: ask for the lse once, "
                         "with return_aux=AuxRequest(lse=True)")
    if getattr(return_aux, "max_scores", False):
        raise UnsupportedError("return_aux asks for max_scores, which no engine keeps: ask for lse alone")
    return bool(getattr(return_aux, "lse", False))


def _has_data(t: Tensor) -> bool:
    return type(t) in (Tensor, torch.nn.Parameter) and not t.is_meta


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast, float tensors in its dtype, as scaled_dot_product_attention has them; float64 stays."""
    first = tensors[0]
    if not isinstance(first, Tensor) or first.is_meta or not torch.is_autocast_enabled(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() and t.dtype is not torch.float64 else t
                 for t in tensors)
