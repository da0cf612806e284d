"""Dense attention in float64 that calls the user's mods as they are: the meaning every engine is compared with.

It knows nothing of tracing or of tiles. A mod is called once, under vmap, on 0-d tensors, as torch's own flex_attention does.
Memory is B*H*Sq*Skv*8 bytes times a few; meant for tests, demos and benchmarks at small sizes.
"""
from __future__ import annotations

import inspect
import math
from typing import Callable

import torch
from torch.overrides import TorchFunctionMode


class _IndexByTensor(TorchFunctionMode):
    """t[i] with a 0-d tensor i becomes a gather; plain indexing would call .item(), which vmap cannot do."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            table, index = args
            index = index if isinstance(index, tuple) else (index,)
            whole = all(isinstance(i, (int, torch.Tensor)) and not isinstance(i, bool) for i in index)
            if whole and any(isinstance(i, torch.Tensor) for i in index):
                index = [i if isinstance(i, torch.Tensor) else torch.tensor(i, device=table.device) for i in index]
                return torch.ops.aten.index(table, index)
        return func(*args, **(kwargs or {}))


def call_mod(mod: Callable, lead: tuple[torch.Tensor, ...], indices: tuple[torch.Tensor, ...], trail: int = 0) -> torch.Tensor:
    """`mod(*scalars)` for every combination of the index vectors.

    lead: tensors of the full shape [len(i) for i in indices] whose elements come first in the argument list.
    trail: how many of `lead`'s tensors lack the last axis (an LSE has no column axis).
    """
    count = len(indices)

    def scalar(*args):
        return torch.as_tensor(mod(*args), device=indices[0].device)

    fn = scalar
    for axis in reversed(range(count)):
        lead_dims = tuple(0 if axis == 0 or x.dim() > 0 else None for x in lead)
        if axis == count - 1 and trail:
            lead_dims = tuple(0 if i < len(lead) - trail else None for i in range(len(lead)))
        index_dims = tuple(0 if i == axis else None for i in range(count))
        fn = torch.vmap(fn, in_dims=lead_dims + index_dims)
    with _IndexByTensor():
        return fn(*lead, *indices)


def dense_mask(mask_mod: Callable, shape: tuple[int, int, int, int], device=None) -> torch.Tensor:
    """The bool token mask [B, H, Sq, Skv] of a mask_mod."""
    return call_mod(mask_mod, (), tuple(torch.arange(n, device=device) for n in shape))


def attention(query, key, value, score_mod=None, mask_mod=None, scale=None, out_mod=None, enable_gqa=False):
    """Dense attention in float64; differentiable in everything that requires grad.

    query [B, Hq, Sq, D], key [B or 1, Hkv, Skv, D], value [B or 1, Hkv, Skv, Dv]; Hq a multiple of Hkv, query head h reads
    head h // (Hq // Hkv). Returns out [B, Hq, Sq, Dv] and lse [B, Hq, Sq], float64; natural log. A row that may see no key has
    out 0 and lse -inf. enable_gqa: accepted as flex_attention's is; heads are grouped in any case.
    `out_mod(out, lse, b, h, q[, d])` is applied to every element of out at the end; lse stays as it was.
    """
    batch, heads, q_len, dim = query.shape
    group = heads // key.shape[1]
    q = query.double()
    k, v = (t.double().repeat_interleave(group, 1).expand(batch, -1, -1, -1) for t in (key, value))
    device = query.device
    indices = tuple(torch.arange(n, device=device) for n in (batch, heads, q_len, key.shape[2]))
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(dim) if scale is None else scale)
    if score_mod is not None:
        scores = call_mod(score_mod, (scores,), indices).double()
    if mask_mod is not None:
        scores = scores.masked_fill(~call_mod(mask_mod, (), indices), -math.inf)
    out, lse = softmax(scores, v)
    if out_mod is not None:
        out = _apply_out_mod(out_mod, out, lse, indices)
    return out, lse


def softmax(scores, v):
    """(out, lse) of float64 scores [..., Sq, Skv] and values [..., Skv, Dv]; -inf is a key that does not exist. A row without
    keys has out 0 and lse -inf."""
    if scores.shape[-1] == 0:
        return (scores @ v), torch.full(scores.shape[:-1], -math.inf, dtype=scores.dtype, device=scores.device)
    gone = scores == -math.inf
    top = scores.detach().amax(-1, keepdim=True)
    dead = top == -math.inf
    top = top.masked_fill(dead, 0)
    # masked lanes go through exp as 0 first, so that no gradient of theirs is inf * 0
    weights = torch.exp(scores.masked_fill(gone, 0) - top.masked_fill(dead, 0)).masked_fill(gone, 0)
    total = weights.sum(-1, keepdim=True).masked_fill(dead, 1)
    lse = (torch.log(total) + top).masked_fill(dead, -math.inf).squeeze(-1)
    return (weights / total) @ v, lse


def _apply_out_mod(out_mod, out, lse, indices):
    wants_column = len(inspect.signature(out_mod).parameters) == 6
    columns = torch.arange(out.shape[-1], device=out.device)
    grid = (*indices[:3], columns)
    mod = out_mod if wants_column else (lambda o, lse, b, h, q, d: out_mod(o, lse, b, h, q))
    return call_mod(mod, (out, lse), grid, trail=1)
