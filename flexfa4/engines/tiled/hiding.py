"""What a mask hides in one tile of scores, and how hidden lanes are overwritten.

On a CPU `masked_fill_` costs as much as two matrix products of head dim 64 (0.6 lanes/ns on two cores, against 15 of a minimum and
30 of a sum), so lanes are hidden by a minimum with -inf. A NaN would survive that; the sum of the lanes shows whether there is one.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Iterable

import torch


@dataclass(frozen=True, eq=False)
class Hidden:
    """Where the mask says no in one PARTIAL stretch: `lanes`, bool, broadcasts over tile[..., columns]."""

    columns: slice
    lanes: torch.Tensor
    dtype: torch.dtype

    @cached_property
    def ceiling(self) -> torch.Tensor:
        """-inf where hidden, +inf elsewhere."""
        return self.lanes.to(self.dtype).sub_(0.5).mul_(-math.inf)


def hide(tile: torch.Tensor, hidden: Iterable[Hidden]) -> None:
    """Writes -inf into the hidden lanes of a tile [..., rows, keys], whatever they hold."""
    for part in hidden:
        lanes = tile[..., part.columns]
        if lanes.device.type == "cpu":
            torch.minimum(lanes, part.ceiling, out=lanes)
            if not lanes.sum().isnan():
                continue
        lanes.masked_fill_(part.lanes, -math.inf)


def clear(tile: torch.Tensor, hidden: Iterable[Hidden]) -> None:
    """Writes 0 into the hidden lanes of a tile in which each of them is already a product with 0: 0, or NaN from 0 * inf."""
    for part in hidden:
        lanes = tile[..., part.columns]
        if lanes.device.type == "cpu" and not lanes.sum().isnan():
            continue
        lanes.masked_fill_(part.lanes, 0.0)
