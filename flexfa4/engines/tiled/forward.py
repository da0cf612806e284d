"""Forward: online softmax over the blocks of each query tile (FlashAttention-2, algorithm 1, with wide key blocks)."""
from __future__ import annotations

import torch

from flexfa4.ir.bound import BoundGraph

from .hiding import hide
from .problem import LN_2, LOG2_E, Chunk, Mask, Problem, QueryTile
from .scratch import Scratch


@torch.no_grad()
def forward(q, k, v, scale: float, score: BoundGraph | None = None, mask: Mask | None = None):
    """q [B, Hq, Sq, D], k [Bk, Hkv, Skv, D], v [Bk, Hkv, Skv, Dv], one floating dtype, any strides; Bk is 1 or B.

    Returns out [B, Hq, Sq, Dv] in q's dtype and the natural-log lse [B, Hq, Sq] (float32; float64 for float64 inputs). Rows that
    see no key get 0 and -inf. Raises LookupOutOfRange where the score graph reads past a capture on a pair that the mask shows.
    """
    p = Problem(q, k, v, scale, score, mask)
    out = torch.zeros(*p.q.shape[:4], p.v_dim, dtype=q.dtype, device=p.device)
    sums, tops = (torch.zeros(p.q.shape[:4], dtype=p.dtype, device=p.device) for _ in range(2))
    scratch = Scratch(p.dtype, p.device)
    chunks = [(chunk, p.keys(p.k, chunk), p.keys(p.v, chunk)) for chunk in p.chunks()]
    for tile in p.query_tiles():
        for chunk, keys, values in chunks:
            if not p.blocks(chunk, tile):
                continue
            row = _small_row if p.small else row_of
            row_max, row_sum, acc = row(p, chunk, tile, (keys, values), scratch)
            shape, at = p.tile_shape(chunk, tile, p.v_dim), p.rows_of(chunk, tile)
            out[at] = acc.div_(row_sum).view(shape)
            sums[at] = row_sum.view(shape[:4])
            if row_max is not None:
                tops[at] = row_max.view(shape[:4])
    lse = sums.log2().mul_(p.unit).add_(tops).mul_(LN_2 / p.unit)
    out.masked_fill_((sums == 0).unsqueeze(-1), 0.0)                # 0 / 0 where the blocks of a row hid every key
    return out.flatten(1, 2), lse.flatten(1, 2)


def row_of(p: Problem, chunk: Chunk, tile: QueryTile, keys_values, scratch: Scratch):
    """One query tile against its blocks: (row_max, row_sum, output before normalisation), each [pairs, heads * rows, ...]. Scores
    are in log2 unless there is a score graph."""
    keys, values = keys_values
    # A row that has seen no key keeps the least number for its maximum: -inf minus it is -inf and never NaN.
    floor = torch.finfo(p.dtype).min
    queries = p.queries(p.q, chunk, tile).mul(p.folded)
    leaves = p.leaves(chunk, tile) if p.score is not None else {}
    row_max = row_sum = acc = None
    for block in p.blocks(chunk, tile):
        scores = scratch.product("scores", queries, p.take(keys, block).transpose(1, 2))
        lanes = scores.view(p.tile_shape(chunk, tile, block.width))
        hidden = p.hidden(chunk, tile, block)
        if p.score is not None:
            lanes = p.edited(lanes, leaves, block, hidden)
            scores = lanes.view(scores.shape)
        hide(lanes, hidden)
        top = scores.amax(-1, keepdim=True).clamp_(min=floor)
        if row_max is not None:
            torch.maximum(top, row_max, out=top)
        weights = scores.sub_(top)
        if p.score is not None:
            weights.mul_(LOG2_E)
        weights.exp2_()
        if acc is None:
            acc, row_sum = torch.bmm(weights, p.take(values, block)), weights.sum(-1, keepdim=True)
        else:
            shrink = row_max.sub_(top).div_(p.unit).exp2_()
            row_sum = row_sum.mul_(shrink).add_(weights.sum(-1, keepdim=True))
            acc = acc.mul_(shrink).baddbmm_(weights, p.take(values, block))
        _add_unruly(p, acc, chunk, tile, block, hidden)
        row_max = top
    return row_max, row_sum, acc


def _add_unruly(p: Problem, acc, chunk: Chunk, tile: QueryTile, block, hidden) -> None:
    """inf and NaN among the values that the rows see."""
    if p.marks is not None:
        p.marks.add(acc, p.seen(chunk, tile, block, hidden), lambda t: p.take(p.keys(t, chunk), block))


def _small_row(p: Problem, chunk: Chunk, tile: QueryTile, keys_values, scratch: Scratch):
    """`row_of` where Problem.small holds: exponentials of the scores as they are; None stands for a maximum of 0."""
    keys, values = keys_values
    queries = p.queries(p.q, chunk, tile).mul(p.folded)
    row_sum = acc = None
    for block in p.blocks(chunk, tile):
        scores = scratch.product("scores", queries, p.take(keys, block).transpose(1, 2))
        hidden = p.hidden(chunk, tile, block)
        hide(scores.view(p.tile_shape(chunk, tile, block.width)), hidden, finite=True)
        weights, block_values = scores.exp2_(), p.take(values, block)
        if acc is None:
            acc, row_sum = torch.bmm(weights, block_values), weights.sum(-1, keepdim=True)
        else:
            row_sum.add_(weights.sum(-1, keepdim=True))
            acc.baddbmm_(weights, block_values)
        _add_unruly(p, acc, chunk, tile, block, hidden)
    return None, row_sum, acc
