"""Random block-sparse attention (Zaheer et al. 2020, "Big Bird", section 2 and appendix D, block form)."""
import torch


def random_tile_map(heads, q_len, kv_len, tile, share, seed=0):
    """Bool tensor [heads, q tiles, kv tiles]: each tile is kept with probability `share`; every row keeps its diagonal tile."""
    q_tiles, kv_tiles = -(-q_len // tile), -(-kv_len // tile)
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(heads, q_tiles, kv_tiles, generator=generator) < share
    rows = torch.arange(q_tiles)
    kept[:, rows, rows.clamp(max=kv_tiles - 1)] = True
    return kept


def random_blocks(tile_map, tile):
    """Mask that lets head h see the tiles marked in `tile_map`, a bool tensor [heads, q tiles, kv tiles] of tile x tile
    positions each."""

    def mask_mod(b, h, q, kv):
        return tile_map[h, q // tile, kv // tile]

    return mask_mod
