"""The output hook: a graph of one normalised output element, its row's lse and its position, applied after attention."""
from __future__ import annotations

from typing import Iterator

import torch

from flexfa4.facts.derivative import adjoints
from flexfa4.interpret import program
from flexfa4.ir import Op
from flexfa4.ir.bound import BoundGraph

from .captures import CaptureGradients
from .lookups import evaluate_visible, proven_safe

# Output elements handled at a time, so that temporaries stay small whatever the length.
_CHUNK_ELEMENTS = 1 << 20


def apply(hook: BoundGraph, out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """hook(out, lse, b, h, q, d) on every element of out [B, H, S, Dv], in lse's dtype; lse [B, H, S].

    The result has out's dtype.

    Raises LookupOutOfRange where the hook reads past a capture.
    """
    result = torch.empty_like(out)
    safe = proven_safe(hook, dict(zip((Op.B, Op.H, Op.Q, Op.D), out.shape)))
    for rows, env in _pieces(out, lse):
        if safe:
            (piece,) = program((hook.graph.root,))(env, hook.tensors, hook.literals)
        else:
            piece = evaluate_visible(hook, env, out[:, :, rows].shape, ())
        result[:, :, rows].copy_(piece)
    return result


def gradients(hook: BoundGraph, out: torch.Tensor, lse: torch.Tensor, d_result: torch.Tensor, wanted: frozenset[int]):
    """(d out, d lse, gradients of the wanted captures by index) from d loss / d result; d out has d_result's dtype."""
    found = adjoints(hook.graph)
    captures = CaptureGradients(hook, found.loads, wanted, lse.dtype)
    roots = (found.out, found.lse, *captures.roots)
    d_out, d_lse = torch.empty_like(d_result), torch.empty_like(lse)
    for rows, env in _pieces(out, lse):
        incoming = d_result[:, :, rows].to(lse.dtype)
        by_out, by_lse, *rest = program(roots)(env, hook.tensors, hook.literals)
        # A row without keys has lse -inf and passes no gradient on; its adjoint may be inf or NaN.
        dead = env[Op.LSE] == -torch.inf
        d_out[:, :, rows].copy_((incoming * by_out).masked_fill(dead, 0))
        d_lse[:, :, rows].copy_((incoming * by_lse).sum(-1).masked_fill(dead.squeeze(-1), 0))
        captures.add(incoming, rest, lambda lanes: lanes)
    return d_out, d_lse, captures.results()


def _pieces(out: torch.Tensor, lse: torch.Tensor) -> Iterator[tuple[slice, dict]]:
    """Row ranges of out, each with the leaves that broadcast over [B, H, rows, Dv]."""
    batch, heads, length, columns = out.shape
    index = [torch.arange(n, device=out.device) for n in out.shape]
    step = max(1, _CHUNK_ELEMENTS // max(1, batch * heads * columns))
    for first in range(0, length, step):
        rows = slice(first, min(first + step, length))
        yield rows, {
            Op.B: index[0].view(-1, 1, 1, 1), Op.H: index[1].view(-1, 1, 1), Op.Q: index[2][rows].view(-1, 1), Op.D: index[3],
            Op.OUT: out[:, :, rows].to(lse.dtype), Op.LSE: lse[:, :, rows].unsqueeze(-1),
        }
