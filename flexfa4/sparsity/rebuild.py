"""Spans rebuilt in place, inside a CUDA graph: fixed shapes, no word from the device to the host.

Coarse-to-fine would need the host to hear how many squares are undecided. Masks of comparisons between query and key are worked
out tile by tile (`device_tiles`); of others every element is evaluated, in row bands of a fixed size, which costs what a dense
mask costs in time, and only a band of it in memory.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch

from flexfa4.errors import ShapeError
from flexfa4.interpret import evaluate
from flexfa4.ir import Op
from flexfa4.ir.bound import BoundGraph

from .device_tiles import device_states, fits
from .spans import Tiling

# Elements evaluated at once, and of a mask taken tile by tile in all.
_BAND = 1 << 24


@dataclass(frozen=True, eq=False)
class FixedSpans:
    """Spans in buffers that never move. row_ptr: int32 [rows + 1]; runs: int32 [capacity, 3], of which the first
    row_ptr[-1] hold; needed: int32 [], how many runs the latest rebuild asked for. Where it is more than the
    capacity, the last rows have lost runs."""

    row_ptr: torch.Tensor
    runs: torch.Tensor
    needed: torch.Tensor
    tiling: Tiling

    def check(self) -> None:
        """Waits for the device. Raises ShapeError where the latest rebuild overflowed."""
        needed = int(self.needed)
        if needed > len(self.runs):
            raise ShapeError(f"the mask needs {needed} runs and these buffers hold {len(self.runs)}: reserve a larger capacity")


def reserve(tiling: Tiling, capacity: int, device: torch.device) -> FixedSpans:
    """Empty buffers for the spans of a mask at a tiling."""
    rows = tiling.Bm * tiling.Hm * tiling.q_tiles
    zeros = [torch.zeros(shape, dtype=torch.int32, device=device) for shape in ((rows + 1,), (capacity, 3), ())]
    return FixedSpans(*zeros, tiling)


def rebuild(bound: BoundGraph, fixed: FixedSpans) -> None:
    """Writes the spans that the captured tensors mean now into the buffers; never synchronises. Look-ups are not checked."""
    tiling, device = fixed.tiling, fixed.runs.device
    if tiling.q_len * tiling.kv_len > _BAND and fits(bound, tiling):
        _write(device_states(bound, tiling, device, _BAND).view(-1, tiling.kv_tiles), fixed)
        return
    band = max(1, _BAND // (tiling.q_tile * tiling.kv_len))
    bands = [_states(bound, tiling, first, min(first + band, tiling.q_tiles), device)
             for first in range(0, tiling.q_tiles, band)]
    _write(torch.cat(bands, dim=2).reshape(-1, tiling.kv_tiles), fixed)


def _states(bound: BoundGraph, tiling: Tiling, first: int, last: int, device: torch.device) -> torch.Tensor:
    """uint8 [Bm, Hm, last - first, kv_tiles]: kinds of the tiles of some query tiles."""
    def axis(begin: int, end: int, length: int) -> torch.Tensor:
        # Lanes past the end repeat the last position, which changes neither "any" nor "all".
        return torch.arange(begin, end, device=device).clamp_(max=length - 1)

    q = axis(first * tiling.q_tile, last * tiling.q_tile, tiling.q_len)
    kv = axis(0, tiling.kv_tiles * tiling.kv_tile, tiling.kv_len)
    env = {Op.B: torch.arange(tiling.Bm, device=device)[:, None, None, None],
           Op.H: torch.arange(tiling.Hm, device=device)[:, None, None],
           Op.Q: q[:, None], Op.KV: kv}
    with torch.no_grad():
        value = evaluate(bound, env).to(device).expand(tiling.Bm, tiling.Hm, len(q), len(kv))
    tiles = value.unflatten(3, (tiling.kv_tiles, tiling.kv_tile)).unflatten(2, (last - first, tiling.q_tile))
    return tiles.any(5).any(3).to(torch.uint8) + tiles.all(5).all(3).to(torch.uint8)


def _write(states: torch.Tensor, fixed: FixedSpans) -> None:
    """Runs of a table of kinds [rows, columns], by prefix sums and scatters of fixed shape."""
    rows, columns = states.shape
    capacity = len(fixed.runs)
    padded = torch.nn.functional.pad(states, (1, 1))
    left, here, right = padded[:, :-2], padded[:, 1:-1], padded[:, 2:]
    begins, ends = (here != 0) & (here != left), (here != 0) & (here != right)
    column = torch.arange(columns, dtype=torch.int32, device=states.device).expand(rows, columns)
    # The n-th begin and the n-th end in reading order are one run. What does not fit goes to a spare row, dropped.
    spare = torch.zeros(capacity + 1, 3, dtype=torch.int32, device=states.device)
    for field, where, value in ((0, begins, column), (1, ends, column + 1), (2, begins, here.to(torch.int32))):
        order = where.flatten().cumsum(0) - 1
        slot = torch.where(where.flatten(), order.clamp(max=capacity), capacity)
        spare[:, field].scatter_(0, slot, value.reshape(-1))
    fixed.runs.copy_(spare[:capacity])
    count = begins.sum(1).cumsum(0)
    fixed.row_ptr[1:].copy_(count.clamp(max=capacity))
    fixed.needed.copy_(count[-1])
