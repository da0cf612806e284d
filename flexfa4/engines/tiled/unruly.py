"""Inputs that hold inf or NaN, where a mask hides them: memory that a cache has not filled yet. 0 * NaN is NaN, so a product in
which hidden lanes have weight 0 would let them through."""
from __future__ import annotations

import math
from typing import Callable

import torch


def readable(t: torch.Tensor) -> bool:
    """False where nothing of `t` can be read back: on the meta device, and while a CUDA graph is captured."""
    return not (t.is_meta or t.is_cuda and torch.cuda.is_current_stream_capturing())


def holds_unruly(t: torch.Tensor) -> bool:
    """True if `t` holds inf or NaN, and perhaps where its sum overflows; False where it cannot be read."""
    return readable(t) and not math.isfinite(t.sum().item())


def tamed(t: torch.Tensor) -> torch.Tensor:
    """`t` with 0 for inf and NaN."""
    return torch.nan_to_num(t, 0.0, 0.0, 0.0)


def largest_product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> float:
    """A bound on |x . y| for rows x of a and y of b, by their lengths; inf or NaN where one holds such. Waits for the device."""
    lengths = [torch.linalg.vector_norm(t, dim=-1, dtype=dtype).amax().item() if t.numel() else 0.0 for t in (a, b)]
    return lengths[0] * lengths[1]


class Marks:
    """Where values [Bk, Hkv, Skv, Dv] hold inf, -inf and NaN, so that a row that sees one gets it."""

    def __init__(self, values: torch.Tensor):
        found = ((math.inf, values == math.inf), (-math.inf, values == -math.inf), (math.nan, values.isnan()))
        self.marks = [(value, at.to(values.dtype)) for value, at in found if bool(at.any())]

    def add(self, out: torch.Tensor, seen: torch.Tensor, take: Callable) -> None:
        """out [pairs, rows, Dv] += what rows see of inf and NaN. seen [pairs, rows, keys]: 1 where the mask shows a key, else 0.
        take(t): the block's keys of a tensor shaped as the values."""
        for value, marks in self.marks:
            hit = torch.bmm(seen, take(marks)) > 0
            out.add_(torch.zeros_like(out).masked_fill_(hit, value))         # inf and -inf in one column make NaN, as in a sum
