"""Block-sparse prefill: choose the tiles worth computing from pooled queries and keys (Jiang et al. 2024, "MInference 1.0",
section 3.2, block-sparse heads; the share-of-mass rule is that of Lai et al. 2025, "FlexPrefill", section 3.3).

Use the result as a mask that is data, alone or with a mask_mod:
`flexfa4.block_mask_from_tiles(pooled_tiles(q, k), q_len, kv_len, tile=64, mask_mod=causal_mask)`.
"""
import torch


def pooled_tiles(query, key, tile=64, keep=0.95, causal=True, scale=None):
    """Bool tensor [B, H, q tiles, kv tiles]: for each row of tiles, the fewest that hold a share `keep` of the pooled
    attention mass, plus the first tile and those on the diagonal.

    query: [B, H, Sq, D]; key: [B, Hkv, Skv, D], H a multiple of Hkv; any float dtype. Tiles are `tile` x `tile` positions.
    With `causal`, queries are the last positions of the keys and tiles wholly in the future are never kept. Costs
    Sq * Skv / tile**2 products.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep={keep}: the share of the mass to keep must be in (0, 1]")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q_mean, k_mean = _tile_means(query, tile), _tile_means(key, tile)
    k_mean = k_mean.repeat_interleave(q_mean.shape[1] // k_mean.shape[1], dim=1)
    score = q_mean @ k_mean.transpose(-1, -2) * scale
    q_tiles, kv_tiles = score.shape[-2:]
    first_query = torch.arange(q_tiles, device=query.device)[:, None] * tile
    last_query = (first_query + tile - 1).clamp(max=query.shape[2] - 1)
    ahead = key.shape[2] - query.shape[2]                    # positions before the first query
    columns = torch.arange(kv_tiles, device=query.device)
    allowed = (columns <= (last_query + ahead) // tile) if causal else torch.ones_like(columns > first_query)
    diagonal = (columns >= (first_query + ahead) // tile) & (columns <= (last_query + ahead) // tile)
    mass = torch.softmax(score.masked_fill(~allowed, float("-inf")), dim=-1)
    ranked, place = mass.sort(dim=-1, descending=True)
    before = ranked.cumsum(-1) - ranked                      # mass of the tiles ranked ahead: a tile is needed below `keep`
    chosen = torch.zeros_like(allowed.expand(mass.shape)).scatter(-1, place, before < keep)
    return (chosen | (columns == 0) | diagonal) & allowed


def _tile_means(x, tile):
    """Mean of each run of `tile` positions, the last one over the positions that exist: [B, H, S, D] -> [B, H, tiles, D]."""
    batch, heads, length, dim = x.shape
    tiles = -(-length // tile)
    padded = torch.nn.functional.pad(x.float(), (0, 0, 0, tiles * tile - length))
    counts = torch.full((tiles, 1), float(tile), device=x.device)
    counts[-1] = length - (tiles - 1) * tile
    return padded.view(batch, heads, tiles, tile, dim).sum(dim=3) / counts
