"""To and from torch's own BlockMask."""
from __future__ import annotations

from typing import Callable

import torch
from torch.nn.attention import flex_attention as torch_flex

from .spans import Kind, Spans


def to_torch(spans: Spans, mask_mod: Callable, B: int, H: int) -> torch_flex.BlockMask:
    """torch's BlockMask with the same tiles, for its own flex_attention; on the spans' device.

    Its lists are dense in tiles (int32 [B, H, q tiles, kv tiles]), whatever the spans need.
    """
    states = spans.states().expand(B, H, -1, -1).to(spans.device)
    lists = []
    for kind in (Kind.PARTIAL, Kind.FULL):
        chosen = states == kind
        lists += [chosen.sum(-1, dtype=torch.int32), _sorted_first(chosen)]
    return torch_flex.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=(spans.q_tile, spans.kv_tile), mask_mod=mask_mod,
                                               seq_lengths=(spans.q_len, spans.kv_len))


def _sorted_first(chosen: torch.Tensor) -> torch.Tensor:
    """Indices along the last axis, the chosen ones first and each group ascending; int32."""
    return chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)


def tiles_of(mask: torch_flex.BlockMask) -> tuple[torch.Tensor, torch.Tensor]:
    """(partial, full): bool [B, H, q tiles, kv tiles], the tiles in which torch's mask asks its mask_mod, and those
    it takes whole."""
    partial = _listed(mask.kv_num_blocks, mask.kv_indices)
    if mask.full_kv_num_blocks is None:
        return partial, torch.zeros_like(partial)
    return partial, _listed(mask.full_kv_num_blocks, mask.full_kv_indices)


def _listed(count: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The first `count` entries of each row of `index`, as a table of bools."""
    listed = torch.arange(index.shape[-1], device=index.device) < count[..., None]
    return torch.zeros(index.shape, dtype=torch.bool, device=index.device).scatter_(-1, index.long(), listed)


def function_of(mask: torch_flex.BlockMask) -> tuple[Callable, tuple[torch.Tensor, torch.Tensor]]:
    """(mask_mod, tables): a function of positions that means what torch does with `mask`, and the tables of tiles it
    reads: full tiles are taken whole, partial ones where the original mask_mod allows, all others not at all."""
    partial, full = tiles_of(mask)
    q_tile, kv_tile = mask.BLOCK_SIZE
    inner = mask.mask_mod
    b_of = (lambda b: b) if partial.shape[0] > 1 else (lambda b: 0)
    h_of = (lambda h: h) if partial.shape[1] > 1 else (lambda h: 0)
    if inner is torch_flex.noop_mask:
        kept = partial | full

        def mask_mod(b, h, q, kv):
            return kept[b_of(b), h_of(h), q // q_tile, kv // kv_tile]
    else:
        def mask_mod(b, h, q, kv):
            at = b_of(b), h_of(h), q // q_tile, kv // kv_tile
            return full[at] | (partial[at] & inner(b, h, q, kv))

    return mask_mod, (partial, full)
