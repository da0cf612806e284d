"""The attention ops under torch.func (grad, vjp, vmap, jacrev) and under forward-mode AD.

The formula that torch.library registers for an op does not compose with these transforms, an autograd.Function with
`setup_context` and `vmap` does: https://docs.pytorch.org/docs/stable/notes/extending.func.html. So where a transform is
active the op is called through the Functions below, which add nothing to it.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flexfa4.errors import UnsupportedError
from flexfa4.ir import Op

from . import changed, internals
from .programs import decode


@dataclass(frozen=True)
class Call:
    """The arguments of the op that are no tensors, and how many of the tensors after q, k and v are captures (then: spans).
    wanted: the captures whose gradient is asked for, in the backward pass."""

    captures: int
    literals: tuple
    programs: str
    scale: float
    wanted: tuple[int, ...] = ()


def active() -> bool:
    """Whether a transform of torch.func is running."""
    return internals.transform() is not None


def refuse_forward_mode(tensors) -> None:
    """Raises UnsupportedError where a tensor carries a tangent of forward-mode AD."""
    for t in tensors:
        if forward_ad.unpack_dual(t).tangent is not None:
            raise _no_forward_mode()


def _no_forward_mode() -> UnsupportedError:
    return UnsupportedError("flex_attention has no forward-mode derivative (torch.func.jvp, jacfwd, hessian, "
                            "torch.autograd.forward_ad): use reverse mode (backward, torch.func.grad, vjp, jacrev), or "
                            "flexfa4.reference.attention at small sizes")


def attention(query: Tensor, key: Tensor, value: Tensor, more: list, call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """`flexfa4::attention` inside a transform; more: the captures, then the spans."""
    return Forward.apply(call, query, key, value, *changed.kept(more))


def backward(inputs: list, saved: list, d_out: Tensor, d_lse: Tensor | None, more: list, call: Call) -> tuple[Tensor, ...]:
    """`flexfa4::attention_backward`, inside a transform or not; more: the captures, then the spans."""
    if active():
        return Backward.apply(call, *inputs, *saved, d_out, d_lse, *more)
    return _backward_op(call, *inputs, *saved, d_out, d_lse, *more)


def _backward_op(call: Call, query, key, value, plain, lse, d_out, d_lse, *more) -> tuple[Tensor, ...]:
    return tuple(torch.ops.flexfa4.attention_backward(
        [query, key, value], [plain, lse], d_out, d_lse, list(more[:call.captures]), list(more[call.captures:]),
        list(call.literals), call.programs, call.scale, list(call.wanted)))


class Forward(torch.autograd.Function):
    """(out, lse, out before the output graph)."""

    @staticmethod
    def forward(call: Call, query, key, value, *more):
        return torch.ops.flexfa4.attention(query, key, value, list(more[:call.captures]), list(more[call.captures:]),
                                           list(call.literals), call.programs, call.scale)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        call, query, key, value, *more = inputs
        out, lse, plain = output
        hooked = decode(call.programs).graphs[2] is not None
        ctx.mark_non_differentiable(plain)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, plain if hooked else out, lse, *more)
        wanted = tuple(i for i, t in enumerate(more[:call.captures]) if t.requires_grad)
        ctx.call = replace(call, wanted=wanted)

    @staticmethod
    def backward(ctx, d_out, d_lse, d_plain):
        query, key, value, plain, lse, *more = ctx.saved_tensors
        if d_out is None and d_lse is None:
            return None, None, None, None, *[None] * len(more)
        if d_out is None:
            d_out = torch.zeros_like(plain)
        grads = backward([query, key, value], [plain, lse], d_out, d_lse, more, ctx.call)
        by_capture = dict(zip(ctx.call.wanted, grads[3:]))
        return None, *grads[:3], *(by_capture.get(i) for i in range(len(more)))

    @staticmethod
    def jvp(ctx, *tangents):
        raise _no_forward_mode()

    @staticmethod
    def vmap(info, in_dims, call: Call, query, key, value, *more):
        if not _foldable(call, in_dims[4:]):
            return _one_by_one(Forward, info.batch_size, in_dims, (call, query, key, value, *more))
        n = info.batch_size
        q, k, v = (_front(t, d, n) for t, d in zip((query, key, value), in_dims[1:4]))
        out, lse, plain = Forward.apply(call, _fold(q), _fold(_per_entry(k, q)), _fold(_per_entry(v, q)), *more)
        split = [t.unflatten(0, (n, q.shape[1])) if t.dim() > 1 else t for t in (out, lse, plain)]
        return tuple(split), (0, 0, 0 if plain.dim() > 1 else None)


class Backward(torch.autograd.Function):
    """The gradients of q, k, v and the wanted captures."""

    @staticmethod
    def forward(call: Call, *tensors):
        return _backward_op(call, *tensors)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, *grads):
        refuse_second()

    @staticmethod
    def jvp(ctx, *tangents):
        raise _no_forward_mode()

    @staticmethod
    def vmap(info, in_dims, call: Call, *tensors):
        query, key = tensors[:2]
        n, dims = info.batch_size, in_dims[1:]
        q, k = _front(query, dims[0], n), _front(key, dims[1], n)
        if call.wanted or q.shape[1] != k.shape[1] or not _foldable(call, dims[7:]):
            return _one_by_one(Backward, n, in_dims, (call, *tensors))
        first = [None if t is None else _fold(_front(t, d, n)) for t, d in zip(tensors[:7], dims)]
        grads = Backward.apply(call, *first, *tensors[7:])
        return tuple(g.unflatten(0, (n, q.shape[1])) for g in grads), (0,) * len(grads)


def refuse_second() -> None:
    raise UnsupportedError("flex_attention has no second derivative: its backward pass cannot be differentiated. Use "
                           "flexfa4.reference.attention for double backward at small sizes, or drop create_graph=True")


def refuse_batched_gradients(*_) -> None:
    """What torch's older vmap reaches, which knows no rules but its own."""
    raise UnsupportedError("flex_attention takes one output gradient at a time: instead of is_grads_batched=True (or "
                           "vectorize=True of torch.autograd.functional), use torch.vmap over torch.func.vjp, or "
                           "torch.func.jacrev")


def _foldable(call: Call, dims) -> bool:
    """Whether the mapped axis may become part of the batch: nothing captured is mapped, and no graph looks at the batch."""
    graphs = [g for g in decode(call.programs).graphs if g is not None]
    return all(d is None for d in dims) and not any(g.uses(Op.B) for g in graphs)


def _front(t: Tensor, dim: int | None, n: int) -> Tensor:
    """The mapped axis first; repeated where the tensor has none."""
    return t.expand(n, *t.shape) if dim is None else t.movedim(dim, 0)


def _per_entry(t: Tensor, query: Tensor) -> Tensor:
    """Keys or values of batch 1, once a batch entry of query."""
    return t.expand(-1, query.shape[1], -1, -1, -1)


def _fold(t: Tensor) -> Tensor:
    return t.flatten(0, 1)


def _one_by_one(function, n: int, in_dims, arguments):
    """The general rule: a call for each entry of the mapped axis."""
    rows = [function.apply(*(a if d is None else a.select(d, i) for a, d in zip(arguments, in_dims))) for i in range(n)]
    return tuple(map(torch.stack, zip(*rows))), (0,) * len(rows[0])
