"""What a mask hides in one tile of scores, and how hidden lanes are overwritten.

On a CPU `masked_fill_` costs as much as two matrix products of head dim 64 (0.6 lanes/ns on two cores, against 15 of a minimum
and 30 of a sum), so lanes are hidden by a minimum with -inf. A NaN would survive that; the sum of the lanes shows whether there
is one.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Iterable

import torch

from flexfa4.threads import cached_property


@dataclass(frozen=True, eq=False)
class Lanes:
    """Where the mask says no: `hidden`, bool, broadcasts over [batches, key heads, group heads, rows, keys] of a stretch."""

    hidden: torch.Tensor
    dtype: torch.dtype

    @cached_property
    def ceiling(self) -> torch.Tensor:
        """-inf where hidden, +inf elsewhere."""
        return self.hidden.to(self.dtype).sub_(0.5).mul_(-math.inf)


@dataclass(frozen=True, eq=False)
class Hidden:
    """The lanes of one PARTIAL stretch, and where in a tile [..., rows, keys] they lie."""

    columns: slice
    lanes: Lanes

    def fill(self, tile: torch.Tensor, value: float | bool) -> None:
        tile[..., self.columns].masked_fill_(self.lanes.hidden, value)


def hide(tile: torch.Tensor, hidden: Iterable[Hidden], finite: bool = False) -> None:
    """Writes -inf into the hidden lanes of a tile [..., rows, keys], whatever they hold; `finite` promises that none is NaN."""
    for part in hidden:
        lanes = tile[..., part.columns]
        if lanes.device.type == "cpu":
            torch.minimum(lanes, part.lanes.ceiling, out=lanes)
            if finite or not lanes.sum().isnan():
                continue
        part.fill(tile, -math.inf)


def clear(tile: torch.Tensor, hidden: Iterable[Hidden]) -> None:
    """Writes 0 into the hidden lanes of a tile in which each of them is already a product with 0: 0, or NaN from 0 * inf."""
    for part in hidden:
        lanes = tile[..., part.columns]
        if lanes.device.type == "cpu" and not lanes.sum().isnan():
            continue
        part.fill(tile, 0.0)
