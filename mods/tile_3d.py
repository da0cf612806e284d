"""Sliding tile attention for video (Zhang et al. 2025, "Fast Video Generation with Sliding Tile Attention", section 3.2)."""
import torch


def sliding_tile_3d(grid, tile, window):
    """Mask over a video whose tokens are stored tile by tile, so that each tile of the window is a run of whole tiles.

    `grid`: the video in tiles, (frames, rows, columns); `tile`: tokens of a tile along each axis; `window`: tiles seen along
    each axis, centred on the query's tile and pushed inwards at the borders. Every token of a tile sees the same keys.
    Raises ValueError where the window is larger than the grid.
    """
    if any(w > n for w, n in zip(window, grid)):
        raise ValueError(f"window={tuple(window)} does not fit a grid of {tuple(grid)} tiles")
    _, rows, cols = grid
    volume = tile[0] * tile[1] * tile[2]

    def near(q_at, kv_at, size, count):
        first = torch.clamp(q_at - size // 2, 0, count - size)
        return (kv_at >= first) & (kv_at < first + size)

    def mask_mod(b, h, q, kv):
        q_tile, kv_tile = q // volume, kv // volume
        return (near(q_tile // (rows * cols), kv_tile // (rows * cols), window[0], grid[0])
                & near(q_tile // cols % rows, kv_tile // cols % rows, window[1], grid[1])
                & near(q_tile % cols, kv_tile % cols, window[2], grid[2]))

    return mask_mod
