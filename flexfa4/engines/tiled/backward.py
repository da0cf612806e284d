"""Backward: scores are recomputed tile by tile from q, k and the saved lse (FlashAttention-2, algorithm 2).

With P = exp(S' - lse), for large lse exp(S' - row_max) / row_sum, dP = dO V^T and delta = rowsum(dO * O) - dLSE: dV += P^T dO,
dS' = P * (dP - delta), dS = dS' * (dS'/dS), dQ += dS K, dK += dS^T Q.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from flexfa4.facts.derivative import adjoints
from flexfa4.interpret import program
from flexfa4.ir import Node, Op
from flexfa4.ir.bound import BoundGraph

from .captures import CaptureGradients
from .forward import row_of
from .hiding import clear, hide
from .problem import LN_2, LOG2_E, Chunk, Mask, Problem, QueryTile
from .scratch import Scratch
from .unruly import holds_unruly, largest_product, readable, tamed

# Takes the place of the lse of a row that saw no key: exp(S - 1e30) is 0 for any score.
UNSEEN = 1e30
# An lse beyond this says P to 2^-14 at best in float32, and nothing of it at 1e10, where masks by numbers leave it.
FAR = 2.0**10


@dataclass(frozen=True)
class Gradients:
    """d loss / d (q, k, v), in their shapes and dtypes, and of each wanted capture of the score graph by its index."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    captures: dict[int, torch.Tensor]


@torch.no_grad()
def backward(q, k, v, saved, incoming, scale: float, score: BoundGraph | None = None, mask: Mask | None = None,
             wanted: frozenset[int] = frozenset()) -> Gradients:
    """Gradients of one `forward` call.

    saved: its (out, lse). incoming: (d loss / d out, d loss / d lse), the latter None where lse was not used; it is ignored on
    rows that saw no key. wanted: indices of the score graph's captures whose gradient is asked for.
    """
    p = Problem(q, k, v, scale, score, mask)
    work = _Backward(p, saved, incoming, wanted)
    chunks = list(p.chunks())
    for tile in p.query_tiles():
        for chunk in chunks:
            if p.blocks(chunk, tile):
                work.row(chunk, tile)
    dk = work.dk if score is not None else work.dk.mul_(LN_2)       # the queries carried log2(e)
    captures = work.captures.results() if work.captures is not None else {}
    return Gradients(work.dq.flatten(1, 2).to(q.dtype), *(_keys_first(t, like) for t, like in ((dk, k), (work.dv, v))), captures)


def _keys_first(grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return grad.mT.to(like.dtype, memory_format=torch.contiguous_format).contiguous()


class _Backward:
    """The accumulators of one backward pass, and its work on one query tile."""

    def __init__(self, p: Problem, saved, incoming, wanted: frozenset[int]):
        out, lse = saved
        d_out, d_lse = incoming
        self.p = p
        self.d_out, self.out = p.grouped(d_out), p.grouped(out)
        self.lse = p.grouped(lse.to(p.dtype)).mul(p.unit / LN_2).masked_fill_(p.grouped(lse) == -math.inf, UNSEEN)
        self.far = not readable(lse) or bool((lse.abs().masked_fill(lse == -math.inf, 0) > FAR).any())
        self.d_lse = None if d_lse is None else p.grouped(d_lse.masked_fill(lse == -math.inf, 0))
        self.dq = torch.zeros(p.q.shape, dtype=p.dtype, device=p.device)
        # Keys last: Q^T dS has its long side along memory, dS^T Q would not, and is a quarter slower.
        self.dk, self.dv = torch.zeros_like(p.k.mT).contiguous(), torch.zeros_like(p.v.mT).contiguous()
        self.scratch = Scratch(p.dtype, p.device)
        # Of hidden lanes the products with dS are 0 * (k or q), and dS itself is 0 * (dO V^T - delta). Small scores are of finite
        # q and k.
        doubtful = p.hides and not p.small
        self.finite_k, self.finite_q = (tamed(t) if doubtful and holds_unruly(t) else t for t in (p.k, p.q))
        self.clears = p.hides and _may_overflow(self.d_out, p.v)
        self.captures, self.roots, self.slope = None, (), None
        if p.score is not None:
            found = adjoints(p.score.graph)
            self.slope = found.score
            self.captures = CaptureGradients(p.score, found.loads, wanted, p.dtype)
            self.roots = (p.score.graph.root, found.score, *self.captures.roots)

    def row(self, chunk: Chunk, tile: QueryTile) -> None:
        """Adds what the rows of a query tile contribute to every gradient."""
        p = self.p
        keys, values = p.keys(p.k, chunk), p.keys(p.v, chunk)
        d_keys, d_values = p.keys(self.dk, chunk), p.keys(self.dv, chunk)
        queries = p.queries(p.q, chunk, tile).mul(p.folded)
        finite_keys = keys if self.finite_k is p.k else p.keys(self.finite_k, chunk)
        finite_queries = queries if self.finite_q is p.q else p.queries(self.finite_q, chunk, tile).mul(p.folded)
        d_out = p.queries(self.d_out, chunk, tile)
        delta = d_out.mul(p.queries(self.out, chunk, tile)).sum(-1, keepdim=True)
        if self.d_lse is not None:
            delta.sub_(p.queries(self.d_lse, chunk, tile).unsqueeze(-1))
        base, row_sum = p.queries(self.lse, chunk, tile).unsqueeze(-1), None
        if self.far:
            base, row_sum, _ = row_of(p, chunk, tile, (keys, values), self.scratch)
            row_sum.masked_fill_(row_sum == 0, 1)
        leaves = p.leaves(chunk, tile) if self.roots else {}
        d_queries = None
        for block in p.blocks(chunk, tile):
            block_keys = p.take(keys, block)
            scores = self.scratch.product("scores", queries, block_keys.transpose(1, 2))
            hidden = p.hidden(chunk, tile, block)
            shape = p.tile_shape(chunk, tile, block.width)
            env = {**leaves, Op.KV: p.positions(block), Op.SCORE: scores.view(shape)} if self.roots else {}
            edited, slope, *rest = program(self.roots)(env, p.score.tensors, p.score.literals) if self.roots else (scores, None)
            weights = self._weights(edited, base, scores, shape, hidden)
            if row_sum is not None:
                weights.div_(row_sum)
            p.add(d_values, block, self.scratch.product("key side", d_out.mT, weights))
            grads = self.scratch.product("gradients", d_out, p.take(values, block).transpose(1, 2))
            grads.sub_(delta).mul_(weights)
            if self.clears:
                clear(grads.view(shape), hidden)
            if self.roots:
                grads = self._through(grads, shape, slope, rest, hidden)
            p.add(d_keys, block, self.scratch.product("key side", finite_queries.mT, grads))
            if finite_keys is not keys:
                block_keys = p.take(finite_keys, block)
            if d_queries is None:
                d_queries = self.scratch.product("query side", grads, block_keys)
            else:
                d_queries.baddbmm_(grads, block_keys)
        place = self.dq[p.rows_of(chunk, tile)]
        place.copy_(d_queries.mul_(p.scale).view(place.shape))

    def _weights(self, edited, base, scores, shape, hidden) -> torch.Tensor:
        """exp(edited - base) of one tile, [pairs, rows, keys], 0 on hidden lanes."""
        if self.roots:
            edited = edited.to(scores.device).expand(shape).reshape(scores.shape)
            scores = torch.sub(edited, base).to(scores.dtype).mul_(LOG2_E)
        else:
            scores = scores.sub_(base)
        hide(scores.view(shape), hidden, finite=self.p.small)
        return scores.exp2_()

    def _through(self, grads, shape, slope, rest, hidden) -> torch.Tensor:
        """dS from dS', through the score graph; adds to the captures' gradients on the way. A hidden lane holds 0 before."""
        def clean(lanes: torch.Tensor) -> torch.Tensor:
            clear(lanes, hidden)                      # an adjoint may be inf or NaN where the mask hides the lane: 0 * inf
            return lanes

        lanes = clean(grads.view(shape))
        if self.captures.loads:
            self.captures.add(lanes, rest, clean)
        if _is_one(self.slope):
            return grads
        return clean(lanes.mul_(slope)).view(grads.shape)


def _may_overflow(d_out: torch.Tensor, values: torch.Tensor) -> bool:
    """True if dO . V may leave float32, or is not known to be finite."""
    return not (readable(d_out) and largest_product(d_out, values, values.dtype) < 1e30)


def _is_one(n: Node) -> bool:
    return n.op is Op.CONST and n.attr == 1
