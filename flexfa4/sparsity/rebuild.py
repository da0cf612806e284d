"""Spans rebuilt in place, inside a CUDA graph: fixed shapes, no word from the device to the host.

Coarse-to-fine would need the host to hear how many squares are undecided. Masks of comparisons between query and key are worked
out tile by tile (`device_tiles`); of others every element is evaluated, in row bands of a fixed size, which costs what a dense
mask costs in time, and only a band of it in memory.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from flexfa4.interpret import evaluate
from flexfa4.ir import Op
from flexfa4.ir.bound import BoundGraph

from .device_tiles import device_states, fits
from .halves import of_halves, paired_states
from .spans import Kind, Tiling

# Elements evaluated at once.
_BAND = 1 << 24
# Elements evaluated of a mask that is taken tile by tile: 256 tiles of 128 x 128, where 100 are left of documents that come back
# at 131,072 tokens. It takes 35 us on an H200 whether there are any or not.
_SETTLED = 1 << 22
# What a PARTIAL tile costs in fifths of a FULL one, as `flexfa4.schedule.CostModel` has it.
_FULL_COST, _PARTIAL_COST = 5, 6


@dataclass(frozen=True, eq=False)
class FixedSpans:
    """Spans in buffers that never move. row_ptr: int32 [rows + 1]; runs: int32 [capacity, 3], of which the first row_ptr[-1]
    hold; needed: int32 [], how many runs the latest rebuild asked for. Where that is more than the capacity, each row that has
    tiles is one PARTIAL run from its first to its last, which means the same mask. order: int32 [Bm * Hm, q_tiles], the query
    tiles of each mask, those of most work first. halved: as in `Spans`. followers: what is read from `order` at every rebuild,
    see `follow`."""

    row_ptr: torch.Tensor
    runs: torch.Tensor
    needed: torch.Tensor
    order: torch.Tensor
    tiling: Tiling
    halved: bool = False
    followers: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        return len(self.runs)

    def follow(self, places: torch.Tensor, column: torch.Tensor) -> None:
        """Writes the elements of `order` at some places (int64 [n], in reading order) to a column, int32 [n], and from now on
        at every rebuild."""
        self.followers.append((places, column))
        column.copy_(self.order.view(-1)[places])


def reserve(tiling: Tiling, capacity: int, device: torch.device, halved: bool = False) -> FixedSpans:
    """Buffers for the spans of a mask at a tiling, to be written by `rebuild`. capacity: at least `rows_of(tiling)`."""
    shapes = (rows_of(tiling) + 1,), (capacity, 3), (), (tiling.Bm * tiling.Hm, tiling.q_tiles)
    return FixedSpans(*(torch.zeros(shape, dtype=torch.int32, device=device) for shape in shapes), tiling, halved)


def rows_of(tiling: Tiling) -> int:
    return tiling.Bm * tiling.Hm * tiling.q_tiles


def rebuild(bound: BoundGraph, fixed: FixedSpans) -> None:
    """Writes the spans that the captured tensors mean now into the buffers; never synchronises. Look-ups are not checked
    (`build.check_lookups` does)."""
    if fixed.tiling.has_no_positions:
        return                         # no runs, as the buffers are made
    with torch.no_grad():
        if not fixed.halved:
            states = _all_states(bound, fixed.tiling, fixed.runs.device)
        else:
            fine = replace(fixed.tiling, q_tile=fixed.tiling.q_tile // 2)
            states = paired_states(_all_states(bound, fine, fixed.runs.device))
        states = states.reshape(-1, fixed.tiling.kv_tiles)
        _write(states, fixed)
        _put_in_order(states, fixed)


def _all_states(bound: BoundGraph, tiling: Tiling, device: torch.device) -> torch.Tensor:
    """uint8 [Bm, Hm, q_tiles, kv_tiles]: kinds of all tiles."""
    if tiling.q_len * tiling.kv_len > _BAND and fits(bound, tiling):
        return device_states(bound, tiling, device, _SETTLED)
    band = max(1, _BAND // (tiling.q_tile * tiling.kv_len))
    bands = [_states(bound, tiling, first, min(first + band, tiling.q_tiles), device)
             for first in range(0, tiling.q_tiles, band)]
    return torch.cat(bands, dim=2) if len(bands) > 1 else bands[0]


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
    value = evaluate(bound, env).to(device).expand(tiling.Bm, tiling.Hm, len(q), len(kv))
    tiles = value.unflatten(3, (tiling.kv_tiles, tiling.kv_tile)).unflatten(2, (last - first, tiling.q_tile))
    return tiles.any(5).any(3).to(torch.uint8) + tiles.all(5).all(3).to(torch.uint8)


def _write(states: torch.Tensor, fixed: FixedSpans) -> None:
    """Runs of a table of kinds [rows, columns], by steps of fixed shape."""
    begins, ends = _edges(states)
    count = begins.sum(1).cumsum(0)
    fixed.needed.copy_(count[-1])
    if fixed.capacity < states.numel():
        states = torch.where(count[-1] > fixed.capacity, _joined(states, fixed.halved), states)
        begins, ends = _edges(states)
        count = begins.sum(1).cumsum(0)
    fixed.row_ptr[1:].copy_(count)
    # The n-th begin and the n-th end in reading order are one run.
    first, last = (torch.nonzero_static(where.view(-1), size=fixed.capacity, fill_value=0).view(-1) for where in (begins, ends))
    columns = states.shape[1]
    fixed.runs.copy_(torch.stack([first % columns, last % columns + 1, states.reshape(-1)[first]], dim=1))


def _put_in_order(states: torch.Tensor, fixed: FixedSpans) -> None:
    """Of equal rows the last comes first, as `flexfa4.schedule.lpt` has them."""
    halves = of_halves(states) if fixed.halved else (states,)
    less = _PARTIAL_COST - _FULL_COST
    cost = sum((half != Kind.EMPTY).sum(1) * _PARTIAL_COST - (half == Kind.FULL).sum(1) * less for half in halves)
    last = fixed.tiling.q_tiles - 1
    fixed.order.copy_(last - cost.view(fixed.order.shape).flip(1).sort(dim=1, descending=True, stable=True).indices)
    for places, column in fixed.followers:
        column.copy_(fixed.order.view(-1)[places])


def _edges(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tiles are the first of their run, and which the last: bool [rows, columns] each."""
    padded = torch.nn.functional.pad(states, (1, 1))
    left, here, right = padded[:, :-2], padded[:, 1:-1], padded[:, 2:]
    return (here != 0) & (here != left), (here != 0) & (here != right)


def _joined(states: torch.Tensor, halved: bool) -> torch.Tensor:
    """Each row as one run at most, PARTIAL from its first tile to its last; a half without tiles stays EMPTY."""
    column = torch.arange(states.shape[1], device=states.device)
    there = states != 0
    first = torch.where(there, column, states.shape[1]).amin(1, keepdim=True)
    last = torch.where(there, column, -1).amax(1, keepdim=True)
    kind = torch.full_like(states[:, :1], Kind.PARTIAL)
    if halved:
        upper, lower = ((x != 0).any(1, keepdim=True).to(torch.uint8) for x in of_halves(states))
        kind = paired_states(torch.stack([upper, lower], dim=1)).view(-1, 1)
    return torch.where((column >= first) & (column <= last), kind, 0)
