"""A BlockMask whose spans lie in buffers that never move, so that a CUDA graph can be replayed with other captured values."""
from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch

from flexfa4.errors import ShapeError
from flexfa4.ir.bound import BoundGraph
from flexfa4.tensors import capture_on

from .host import on_cpu
from .rebuild import FixedSpans, rebuild, reserve, rows_of
from .spans import Tiling, check_tiles

if TYPE_CHECKING:
    from .block_mask import BlockMask

# Where no capacity is given: room for every tile up to so many, 48 MB, then for so many runs a row of tiles.
_ALL_TILES = 1 << 22
_RUNS_A_ROW = 64

# Buffers that a graph writes. Nobody says when a graph is gone, so they are kept as long as the process.
_of_graphs: dict[int, FixedSpans] = {}


class FixedMask:
    """A mask for `flex_attention(..., block_mask=...)` whose tiles are found on the device, without waiting for it. Made by
    `BlockMask.reserve`.

    There is a buffer for each tile size that calls have asked for. It is written anew in the first call after a captured tensor
    changed, and in the first call of each capture of a CUDA graph, by steps that the graph replays: replays see the captured
    tensors as they are then. `BlockMask.rebuild_into` writes all of them now. Where captures and buffer are on the CPU, a look-up
    past the end of a capture raises LookupOutOfRange as it does of a BlockMask; elsewhere it is not seen.
    mask: the BlockMask. capacity: runs that a buffer holds, None for what its tiles suggest.
    """

    def __init__(self, mask: BlockMask, capacity: int | None):
        if capacity is not None and (type(capacity) is not int or capacity < 1):
            raise ShapeError(f"capacity={capacity!r}: expected a positive number of runs, or None to leave it to the tile size")
        self.mask = mask
        self.capacity = capacity
        self._buffers: dict[tuple, FixedSpans] = {}
        # For which (capture, revision of the mask) a buffer was last written.
        self._written: dict[tuple, tuple] = {}
        self._written_now: dict[tuple, int] = {}

    def __reduce__(self):
        return FixedMask, (self.mask, self.capacity)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{s.capacity:,} runs at {s.tiling.q_tile} x {s.tiling.kv_tile}" for s in self._buffers.values())
        return f"FixedMask({self.mask.bound.origin.name}, {self.mask.shape}, {sizes or 'no buffers yet'})"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.mask.shape

    @property
    def bound(self) -> BoundGraph:
        return self.mask.bound

    @property
    def mask_mod(self) -> Callable:
        return self.mask.mask_mod

    @property
    def revision(self) -> int:
        return self.mask.revision

    def check_fresh(self) -> None:
        """As `BlockMask.check_fresh`; and the buffers are written where they are not what the mask is now."""
        self.mask.check_fresh()
        for key in self._current():
            self._freshen(key)

    def to_dense(self) -> torch.Tensor:
        """As `BlockMask.to_dense`."""
        return self.mask.to_dense()

    def sparsity(self) -> float:
        """As `BlockMask.sparsity`."""
        return self.mask.sparsity()

    def to_torch(self, BLOCK_SIZE: int | tuple[int, int] = 128) -> torch.nn.attention.flex_attention.BlockMask:
        """As `BlockMask.to_torch`: torch's BlockMask of what the mask is now."""
        return self.mask.to_torch(BLOCK_SIZE)

    def picture(self, path: str | None = None, q_tile: int = 128, kv_tile: int = 128):
        """As `BlockMask.picture`."""
        return self.mask.picture(path, q_tile, kv_tile)

    def resize(self, q_len: int, kv_len: int) -> "FixedMask":
        """The same function over other lengths, in other buffers."""
        return self.mask.resize(q_len, kv_len).reserve(self.capacity)

    def spans(self, q_tile: int = 128, kv_tile: int = 128, device: torch.device | str | None = None) -> FixedSpans:
        """The buffer at a tile size, on `device` (default: the mask's), as the captured tensors are now. Raises ShapeError for
        tile sizes that are no positive numbers, and where the capacity is below one run for each row of tiles; LookupOutOfRange
        as `BlockMask.spans` does where captures and buffer are on the CPU."""
        check_tiles(q_tile, kv_tile)
        self.mask.check_fresh()
        return self.kept_spans(q_tile, kv_tile, device=device)

    def kept_spans(self, q_tile: int, kv_tile: int, halved: bool = False,
                   device: torch.device | str | None = None) -> FixedSpans:
        """`spans` for a caller that has just called `check_fresh`, the mask's at least, itself. halved: with kinds for two halves
        of the queries of a tile (`halves`)."""
        device = self.mask.device if device is None else torch.device(device)
        tiling = Tiling(q_tile, kv_tile, *self.shape[2:], *self.mask.mask_shape)
        key = tiling, halved, device
        if key not in self._buffers:
            self._buffers[key] = reserve(tiling, self._room(tiling), device, halved)
        self._freshen(key)
        return self._buffers[key]

    def rebuild(self) -> None:
        """What `BlockMask.rebuild_into` does, for a caller that has just called `check_fresh`."""
        for key in self._current():
            self._rebuild(key, capture_on(key[2]))

    def check(self) -> None:
        """Waits for the device. Raises ShapeError where the latest rebuild overflowed a buffer."""
        for spans in map(self._buffers.get, self._current()):
            needed = int(spans.needed)
            if needed > spans.capacity:
                raise ShapeError(f"{self.bound.origin.where()}: capacity={spans.capacity}, and the mask of "
                                 f"{self.bound.origin.name} needs {needed} runs in tiles of {spans.tiling.q_tile} x "
                                 f"{spans.tiling.kv_tile}: its rows were taken as one partial run each, which gives the same "
                                 f"results in more time; expected a capacity of at least {needed}, or None")

    def _current(self) -> list[tuple]:
        """Of the buffers those whose rows the mask has now: others are of a function that told other batches or heads apart."""
        return [key for key in self._buffers if (key[0].Bm, key[0].Hm) == self.mask.mask_shape]

    def _freshen(self, key: tuple) -> None:
        capture, revision = capture_on(key[2]), self.mask.revision
        fresh = self._written_now.get(key) == revision if capture is None else self._written.get(key) == (capture, revision)
        if not fresh:
            self._rebuild(key, capture)

    def _rebuild(self, key: tuple, capture: object) -> None:
        tiling = key[0]
        if all(map(on_cpu, (self._buffers[key].runs, *self.bound.tensors))):
            self.mask.check_lookups(tiling)
        rebuild(self.bound, self._buffers[key])
        # What is captured is written when the graph is replayed, not now.
        if capture is None:
            self._written_now[key] = self.mask.revision
        else:
            self._written[key] = capture, self.mask.revision
            _of_graphs[id(self._buffers[key])] = self._buffers[key]

    def _room(self, tiling: Tiling) -> int:
        rows = rows_of(tiling)
        if self.capacity is None:
            return max(1, min(rows * tiling.kv_tiles, max(_ALL_TILES, _RUNS_A_ROW * rows)))
        if self.capacity < rows:
            raise ShapeError(f"{self.bound.origin.where()}: capacity={self.capacity}, and the mask of {self.bound.origin.name} "
                             f"has {rows} rows of tiles of {tiling.q_tile} x {tiling.kv_tile}: expected at least one run for "
                             f"each, {rows}, or None")
        return self.capacity
