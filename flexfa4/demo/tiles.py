"""What a mask saves, and whether its tiles are right."""

from __future__ import annotations

import torch

from ..sparsity import Kind, Spans


def saved(spans: Spans) -> float:
    """Share of the tiles that is never touched."""
    counts = spans.counts()
    return counts[Kind.EMPTY] / sum(counts.values())


def wrong(spans: Spans, dense: torch.Tensor) -> int:
    """Tiles whose kind is not that of the token mask `dense`, bool [B, H, Sq, Skv]: 0 for an exact classification."""
    q_rest, kv_rest = -dense.shape[2] % spans.q_tile, -dense.shape[3] % spans.kv_tile
    shape = (*dense.shape[:2], spans.q_tiles, spans.q_tile, spans.kv_tiles, spans.kv_tile)

    def per_tile(elements: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(elements.int(), (0, kv_rest, 0, q_rest)).reshape(shape).sum((3, 5))

    kept, real = per_tile(dense), per_tile(torch.ones_like(dense))
    exact = torch.full(kept.shape, int(Kind.PARTIAL))
    exact[kept == 0], exact[kept == real] = int(Kind.EMPTY), int(Kind.FULL)
    return int((exact != spans.states()).sum())
