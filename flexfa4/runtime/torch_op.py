"""`flexfa4::attention` and `flexfa4::attention_backward`: registered torch ops with fake implementations and autograd.

Their arguments are tensors, numbers and text, so torch.compile, export and a cache from another process can hold them.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Callable

import torch
from torch import Tensor

from flexfa4.engines import tiled
from flexfa4.errors import UnsupportedError
from flexfa4.ir.bound import BoundGraph
from flexfa4.plan import Plan
from flexfa4.sparsity import Spans
from flexfa4.sparsity.rebuild import FixedSpans
from flexfa4.sparsity.work_spans import WorkSpans

from . import capture, changed, engine, internals, kernels, standin, transforms
from .lists import Lists, dense_lists, dense_lists_for, fixed_lists, lists_of
from .lookups import refuse_past_ends
from .programs import Layout, Programs, decode, encode, fitted
from .spans_cache import spans_of

LIBRARY = torch.library.Library("flexfa4", "DEF")
LIBRARY.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor[] captures, Tensor[] spans, Scalar[] literals, str programs, "
    "float scale) -> (Tensor out, Tensor lse, Tensor plain)")
LIBRARY.define(
    "attention_backward(Tensor[] inputs, Tensor[] saved, Tensor d_out, Tensor? d_lse, Tensor[] captures, Tensor[] spans, "
    "Scalar[] literals, str programs, float scale, int[] wanted) -> Tensor[]")


@dataclass(frozen=True)
class Attention:
    """One call: what it computes besides the tensors. `spans` are those of the mask at the layout's tiles, on the CPU, or None
    where they are to be built, or `BlockMask.work_spans`, or a `FixedMask`'s, on the device; plan: of the kernel that runs it,
    None for the tiled engine; precise: whether it is to be so; spans_at: a BlockMask's spans at the tiles of another plan."""

    score: BoundGraph | None
    mask: BoundGraph | None
    out: BoundGraph | None
    layout: Layout | None
    spans: Spans | WorkSpans | FixedSpans | None
    scale: float
    plan: Plan | None = None
    precise: bool = False
    spans_at: Callable[[Plan], Spans | WorkSpans] | None = None


def attention(query: Tensor, key: Tensor, value: Tensor, call: Attention) -> tuple[Tensor, Tensor]:
    """(out, lse); arguments are taken as validated. Through the registered op, but where nothing looks on, straight to the
    engine: the op costs about 25 us a call."""
    bound = [b for b in (call.score, call.mask, call.out) if b is not None]
    captures = [t for b in bound for t in b.tensors]
    transforms.refuse_forward_mode((query, key, value, *captures))
    if (call.plan is not None or query.is_cpu) and _plain((query, key, value, *captures)):
        if call.plan is None:
            return _by_tiles(query, key, value, call)
        refuse_past_ends(call.score, call.mask, call.out, (*query.shape[:3], *value.shape[2:]))
        lists = lists_of_call(call.plan, call.mask, call.layout, call.spans, query, key)
        return kernels.forward(call.plan, (query, key, value), call.scale, (call.score, call.mask, call.out), lists,
                               settle=settling((query, key, value), call))
    literals = [x for b in bound for x in b.literals]
    programs = encode(call.score, call.mask, call.out, call.layout, call.precise)
    # What autograd keeps until the backward pass must not be written before it.
    spans = spans_of_gradients(call.spans)
    if isinstance(call.spans, FixedSpans):
        spans = [t.clone() for t in spans]
    if transforms.active():
        form = transforms.Call(len(captures), tuple(literals), programs, call.scale)
        return transforms.attention(query, key, value, [*captures, *spans], form)[:2]
    with changed.calling(bound):
        out, lse, _ = torch.ops.flexfa4.attention(query, key, value, captures, spans, literals, programs, call.scale)
    return out, lse


def _plain(tensors: tuple[Tensor, ...]) -> bool:
    """Whether no gradient is wanted and no mode or subclass of torch is to see the op."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    usual = all(type(t) in (Tensor, torch.nn.Parameter) for t in tensors)
    return usual and internals.dispatch_modes() == 0 and not transforms.active()


def refuse_to_capture(tensors: tuple[Tensor, Tensor, Tensor], bounds: tuple, choice: engine.Choice) -> None:
    """Raises UnsupportedError where a call with a FixedMask, while a CUDA graph is captured, would find its tiles on the host:
    replays would not see others. bounds: score, mask, out."""
    if not capture.active(tensors[0].device):
        return
    captures = [t for bound in bounds if bound is not None for t in bound.tensors]
    if choice.plan is None:
        why = f"the tiled engine takes this call ({choice.reason}) and reads its tiles on the host"
    elif not _plain((*tensors, *captures)):
        why = ("query, key, value or a captured tensor wants a gradient, or a mode of torch looks on, and the registered op "
               "reads its tiles on the host: capture the call under torch.no_grad()")
    else:
        return
    raise UnsupportedError(f"block_mask is a FixedMask of {bounds[1].origin.name}, and a CUDA graph is being captured: {why}")


def lists_of_call(plan: Plan, mask: BoundGraph | None, layout: Layout | None, spans: Spans | WorkSpans | FixedSpans | None,
                  query, key) -> Lists:
    """What a kernel reads besides its inputs; spans: those of a BlockMask or FixedMask, None where they are to be built."""
    if mask is None:
        return dense_lists(plan, query, key)
    if isinstance(spans, FixedSpans):
        return fixed_lists(spans, plan, query, key)
    return lists_of(built_spans(plan, mask, layout, query, key) if spans is None else spans, plan, query, key)


def settling(tensors: tuple[Tensor, Tensor, Tensor], call: Attention) -> Callable[..., standin.Settled]:
    """Finds the kernel that is there for a call, as `standin.settled` does; takes its other arguments."""
    query, key, _ = tensors

    def spans_at(plan: Plan) -> Spans | WorkSpans:
        if call.spans_at is not None:
            return call.spans_at(plan)
        return built_spans(plan, call.mask, replace(call.layout, q_tile=plan.q_tile, kv_tile=plan.tiles.kv_tile), query, key)

    fixed = isinstance(call.spans, FixedSpans)

    def lists_for(plan: Plan) -> Lists:
        if call.mask is None:
            return dense_lists_for(plan, query, key)
        return fixed_lists(call.spans, plan, query, key) if fixed else lists_of(spans_at(plan), plan, query, key, plan.split)

    def keys() -> float:
        return float(key.shape[2]) if call.mask is None or fixed else spans_at(call.plan).mean_keys

    return functools.partial(standin.settled, standin.Call(*tensors, lists_for, keys, one_tile=fixed))


def built_spans(plan: Plan, mask: BoundGraph, layout: Layout, query, key) -> Spans | WorkSpans:
    """Of a mask without a BlockMask, at the plan's tiles, which the layout names; kept while they hold."""
    return spans_of(mask, layout, query.shape[2], key.shape[2], for_work=plan.places_work, halved=plan.halves)


def spans_of_gradients(spans: Spans | WorkSpans | FixedSpans | None) -> list[Tensor]:
    """Spans as the op takes them, for its backward pass too: [] where they are to be built. Those of a kernel's work tiles, or
    whose kinds tell two query tiles apart, are for the kernel alone."""
    return [spans.row_ptr, spans.runs] if isinstance(spans, (Spans, FixedSpans)) and not spans.halved else []


def _mask(layout: Layout | None, bound: BoundGraph | None, spans: list[Tensor], q: Tensor, k: Tensor) -> tiled.Mask | None:
    """What the tiled engine needs of a mask; its spans are built where there are none."""
    if layout is None:
        return None
    if not spans:
        layout, found = fitted(layout, q.shape[0] * q.shape[1], lambda at: spans_of(bound, at, q.shape[2], k.shape[2]))
        spans = spans_of_gradients(found)
    return tiled.Mask(*spans, layout.q_tile, layout.kv_tile, layout.batches, layout.heads, bound)


def _attention(query, key, value, captures, spans, literals, programs, scale):
    decoded = decode(programs)
    score, mask, out_mod = decoded.bind(captures, literals)
    plain, lse = _by_kernel((query, key, value), scale, score, mask, decoded)
    if plain is None:
        plain, lse = tiled.forward(query, key, value, scale, score, _mask(decoded.layout, mask, spans, query, key))
    if out_mod is None:
        return plain, lse, plain.new_empty(0)
    with torch.no_grad():
        return tiled.out_hook.apply(out_mod, plain, lse), lse, plain


def _by_kernel(tensors: tuple, scale: float, score, mask, decoded: Programs):
    """(out before the output graph, lse) of a kernel, or (None, None) where none takes the call. The output graph stays out:
    gradients need what is before it."""
    query, key, _ = tensors
    arch = engine.architecture(query.device)
    choice = engine.choose(arch, *tensors, scale, (score, mask, None), decoded.precise)
    if choice.plan is None:
        if query.is_cuda:
            engine.announce(choice.reason)
        return None, None
    plan, spans = choice.plan, None
    if mask is not None:
        def spans_at(plan: Plan) -> Spans | WorkSpans:
            return built_spans(plan, mask, replace(decoded.layout, q_tile=plan.q_tile, kv_tile=plan.tiles.kv_tile), query, key)

        plan, spans = choice.settled(spans_at)
    refuse_past_ends(score, mask, None, (*query.shape[:3], *tensors[2].shape[2:]))
    call = Attention(score, mask, None, decoded.layout, spans, scale, plan, decoded.precise)
    return kernels.forward(plan, tensors, scale, (score, mask, None), lists_of_call(plan, mask, None, spans, query, key),
                           settle=settling(tensors, call))


def _attention_backward(inputs, saved, d_out, d_lse, captures, spans, literals, programs, scale, wanted):
    decoded = decode(programs)
    score, mask, out_mod = decoded.bind(captures, literals)
    plain, lse = saved
    found: dict[int, Tensor] = {}
    with torch.no_grad():
        if out_mod is not None:
            first = decoded.first_capture("out")
            mine = frozenset(i - first for i in wanted if i >= first)
            d_out, by_hook, grads = tiled.out_hook.gradients(out_mod, plain, lse, d_out, mine)
            d_lse = by_hook if d_lse is None else d_lse + by_hook
            found.update((i + first, g) for i, g in grads.items())
        count = len(score.tensors) if score is not None else 0
        asked = frozenset(i for i in wanted if i < count)
        tiles = _mask(decoded.layout, mask, spans, *inputs[:2])
        grads = tiled.backward(*inputs, (plain, lse), (d_out, d_lse), scale, score, tiles, asked)
        found.update(grads.captures)
        # A mask is piecewise constant in its captures: their gradient is 0.
        rest = (found[i] if i in found else torch.zeros_like(captures[i]) for i in wanted)
        return [grads.q, grads.k, grads.v, *rest]


def _attention_fake(query, key, value, captures, spans, literals, programs, scale):
    shape = (*query.shape[:3], value.shape[3])
    out = query.new_empty(shape)
    lse = query.new_empty(shape[:3], dtype=torch.float64 if query.dtype is torch.float64 else torch.float32)
    has_hook = decode(programs).graphs[2] is not None
    return out, lse, query.new_empty(shape if has_hook else (0,))


def _attention_backward_fake(inputs, saved, d_out, d_lse, captures, spans, literals, programs, scale, wanted):
    return [t.new_empty(t.shape) for t in (*inputs, *(captures[i] for i in wanted))]


def _save(ctx, inputs, output):
    query, key, value, captures, spans, literals, programs, scale = inputs
    out, lse, plain = output
    hooked = decode(programs).graphs[2] is not None
    ctx.mark_non_differentiable(plain)
    ctx.set_materialize_grads(False)
    captures = changed.kept(captures)
    ctx.save_for_backward(query, key, value, plain if hooked else out, lse, *captures, *spans)
    ctx.counts = len(captures), len(spans)
    ctx.seen = changed.see(changed.origins_now(), captures)
    ctx.rest = literals, programs, scale
    ctx.wanted = [i for i, t in enumerate(captures) if t.requires_grad]


def _differentiate(ctx, d_out, d_lse, d_plain):
    query, key, value, plain, lse, *more = changed.saved(ctx, ctx.seen)
    literals, programs, scale = ctx.rest
    captures, spans = ctx.counts
    # The structure of the inputs as register_autograd sees it: a list of numbers is one leaf, an empty list is a list.
    lists = [None] * captures, [None] * spans, None if literals else []
    if d_out is None and d_lse is None:
        return (None, None, None, *lists, None, None)
    if d_out is None:
        d_out = torch.zeros_like(plain)
    form = transforms.Call(captures, tuple(literals), programs, scale, tuple(ctx.wanted))
    grads = transforms.backward([query, key, value], [plain, lse], d_out, d_lse, more, form)
    by_capture = dict(zip(ctx.wanted, grads[3:]))
    return (*grads[:3], [by_capture.get(i) for i in range(captures)], *lists[1:], None, None)


def _outside_autocast(implementation):
    """Engines choose their own precision: autocast, still on below the op, would run their products in half."""
    @functools.wraps(implementation)
    def run(first, *rest):
        device = (first if isinstance(first, Tensor) else first[0]).device.type
        if not torch.is_autocast_enabled(device):
            return implementation(first, *rest)
        with torch.autocast(device, enabled=False):
            return implementation(first, *rest)
    return run


@_outside_autocast
def _by_tiles(query: Tensor, key: Tensor, value: Tensor, call: Attention) -> tuple[Tensor, Tensor]:
    mask = _mask(call.layout, call.mask, spans_of_gradients(call.spans), query, key)
    out, lse = tiled.forward(query, key, value, call.scale, call.score, mask)
    return (out if call.out is None else tiled.out_hook.apply(call.out, out, lse)), lse


LIBRARY.impl("attention", _outside_autocast(_attention), "CompositeExplicitAutograd")
LIBRARY.impl("attention_backward", _outside_autocast(_attention_backward), "CompositeExplicitAutograd")
LIBRARY.impl("attention_backward", transforms.refuse_batched_gradients, "Batched")
torch.library.register_fake("flexfa4::attention", _attention_fake, lib=LIBRARY)
torch.library.register_fake("flexfa4::attention_backward", _attention_backward_fake, lib=LIBRARY)
torch.library.register_autograd("flexfa4::attention", _differentiate, setup_context=_save, lib=LIBRARY)
torch.library.register_autograd("flexfa4::attention_backward", lambda ctx, *grads: transforms.refuse_second(),
                                setup_context=lambda ctx, inputs, output: None, lib=LIBRARY)
