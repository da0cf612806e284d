"""Masks given as data: a table that says which tiles are kept, per batch and head, at any granularity."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from flexfa4.errors import ShapeError
from flexfa4.ir.bound import BoundGraph

from .spans import Kind, Tiling


@dataclass(frozen=True, eq=False)
class TileData:
    """`kept`: bool [B or 1, H or 1, q tiles, kv tiles], on any device; `tile`: (q, kv) positions of one tile."""

    kept: torch.Tensor
    tile: tuple[int, int]

    def mask_mod(self):
        """The same mask as a function of positions."""
        kept, (q_tile, kv_tile) = self.kept, self.tile
        per_batch, per_head = kept.shape[0] > 1, kept.shape[1] > 1
        if per_batch and per_head:
            return lambda b, h, q, kv: kept[b, h, q // q_tile, kv // kv_tile]
        if per_batch:
            return lambda b, h, q, kv: kept[b, 0, q // q_tile, kv // kv_tile]
        if per_head:
            return lambda b, h, q, kv: kept[0, h, q // q_tile, kv // kv_tile]
        return lambda b, h, q, kv: kept[0, 0, q // q_tile, kv // kv_tile]

    def copy_in(self, bound: BoundGraph, host: BoundGraph) -> np.ndarray:
        """`kept` as `host` has it: `bound`, which is of `mask_mod`, with its captures on the CPU."""
        return host.tensors[next(i for i, t in enumerate(bound.tensors) if t is self.kept)].numpy()

    def states(self, kept: np.ndarray, tiling: Tiling) -> np.ndarray:
        """The kind of each tile of `tiling`, exactly: uint8 [B or 1, H or 1, q_tiles, kv_tiles]. kept: as the attribute, on the
        CPU.

        Where the granularities differ, kept tiles are counted in any rectangle by four look-ups in a table of prefix sums
        (Crow 1984): every data tile that a span tile overlaps holds at least one of its positions.
        """
        if self.tile == (tiling.q_tile, tiling.kv_tile):
            return kept.view(np.uint8) << 1
        sums = np.zeros((*kept.shape[:2], kept.shape[2] + 1, kept.shape[3] + 1), np.int64)
        np.cumsum(np.cumsum(kept, axis=2, dtype=np.int64), axis=3, out=sums[:, :, 1:, 1:])
        q0, q1 = _overlap(tiling.q_tile, self.tile[0], tiling.q_len)
        k0, k1 = _overlap(tiling.kv_tile, self.tile[1], tiling.kv_len)
        rows = sums[:, :, q1] - sums[:, :, q0]
        count = rows[..., k1] - rows[..., k0]
        area = (q1 - q0)[:, None] * (k1 - k0)
        return np.where(count == area, np.uint8(Kind.FULL), (count > 0).astype(np.uint8))


def _overlap(tile: int, data_tile: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """First and one past the last data tile that each span tile overlaps."""
    begin = np.arange(0, length, tile)
    last = np.minimum(begin + tile, length) - 1
    return begin // data_tile, last // data_tile + 1


def tile_data(tiles: torch.Tensor, q_len: int, kv_len: int, tile: tuple[int, int] | int) -> TileData:
    """TileData from a bool tensor [B, H, q tiles, kv tiles] ([H, q tiles, kv tiles] and [q tiles, kv tiles] are broadcast), or
    from an integer tensor [B, H, q tiles, n] of the key tiles each row keeps, any order, padded with negatives.

    Raises ShapeError where the table does not fit the lengths, or an index is past the last tile.
    """
    size = tuple(tile) if isinstance(tile, (tuple, list)) else (tile, tile)
    if len(size) != 2 or not all(isinstance(t, int) and not isinstance(t, bool) and t > 0 for t in size):
        raise ShapeError(f"tile={tile!r}: expected one or two positive numbers of positions, (q, kv)")
    if not isinstance(tiles, torch.Tensor):
        raise ShapeError(f"tiles is {type(tiles).__name__}: expected a bool or integer torch tensor [B, H, q tiles, ...]")
    if not 2 <= tiles.ndim <= 4:
        raise ShapeError(f"tiles has shape {tuple(tiles.shape)}: expected [B, H, q tiles, kv tiles] or fewer leading dimensions")
    tiles = tiles.detach()[(None,) * (4 - tiles.ndim)]
    q_tiles, kv_tiles = -(-q_len // size[0]), -(-kv_len // size[1])
    if tiles.shape[2] != q_tiles:
        raise ShapeError(f"tiles has {tiles.shape[2]} query tiles; Q_LEN={q_len} in tiles of {size[0]} needs {q_tiles}")
    if tiles.dtype == torch.bool:
        if tiles.shape[3] != kv_tiles:
            raise ShapeError(f"tiles has {tiles.shape[3]} key tiles; KV_LEN={kv_len} in tiles of {size[1]} needs {kv_tiles}")
        return TileData(tiles, size)
    if tiles.dtype.is_floating_point or tiles.dtype.is_complex:
        raise ShapeError(f"tiles is {tiles.dtype}: expected bool (kept or not) or integer (indices of kept key tiles)")
    return TileData(_from_index(tiles.long(), kv_tiles), size)


def _from_index(index: torch.Tensor, kv_tiles: int) -> torch.Tensor:
    if index.numel() and int(index.max()) >= kv_tiles:
        raise ShapeError(f"tiles holds key tile {int(index.max())}; there are {kv_tiles}, numbered from 0")
    kept = index.new_zeros((*index.shape[:3], kv_tiles + 1), dtype=torch.bool)
    # Padding goes to a column of its own, dropped at once.
    kept.scatter_(3, torch.where(index < 0, kv_tiles, index), True)
    return kept[..., :kv_tiles].contiguous()
