"""A repeated call that wants gradients: the kernel, recorded for autograd without the registered op, which costs 60 us a call.

Only where no mode or transform looks on. The backward pass is the registered op's, in every case.
"""
from __future__ import annotations

from typing import Callable

import torch
from torch import Tensor

from . import changed, transforms


class Recorded(torch.autograd.Function):
    """(out, lse) of launch(q, k, v, captures, True). form: the arguments of the op that are no tensors. origins: of the mods, as
    `changed.see` takes them. spans: the op's; in a tuple, since a tensor among the arguments costs 1 us."""

    @staticmethod
    def forward(ctx, launch: Callable, form: transforms.Call, origins: tuple, spans: tuple, query: Tensor, key: Tensor,
                value: Tensor, *captures: Tensor):
        out, lse = launch(query, key, value, captures, True)
        ctx.set_materialize_grads(False)
        captures = changed.kept(captures)
        ctx.save_for_backward(query, key, value, out, lse, *captures)
        ctx.form, ctx.spans, ctx.seen = form, spans, changed.see(origins, captures)
        return out, lse

    @staticmethod
    def backward(ctx, d_out, d_lse):
        query, key, value, out, lse, *captures = changed.saved(ctx, ctx.seen)
        form = ctx.form
        rest = [None] * len(captures)
        if d_out is None and d_lse is None:
            return None, None, None, None, None, None, None, *rest
        if d_out is None:
            d_out = torch.zeros_like(out)
        grads = transforms.backward([query, key, value], [out, lse], d_out, d_lse, [*captures, *ctx.spans], form)
        for i, grad in zip(form.wanted, grads[3:]):
            rest[i] = grad
        return None, None, None, None, *grads[:3], *rest
