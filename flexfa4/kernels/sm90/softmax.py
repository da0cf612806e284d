"""Online softmax of the two rows that a thread of a warpgroup holds, in base 2 (Milakov and Gimelshein 2018)."""
from __future__ import annotations

import math
import operator

import cutlass.cute as cute
from cutlass import Boolean, Float32

from flexfa4.emit.values import select

from ..carried import Fixed
from ..hooks import LN_2

ROWS = 2
# The four threads of a quad hold the columns of the same two rows.
QUAD = (1, 2)


class OnlineSoftmax(Fixed):
    """row_max: what is subtracted from the scores of each row, row_sum: this thread's share of the sum of exponentials, both in
    registers. scale: what scores are multiplied by in the exponent (positive).

    row_max is the largest score seen, or up to `tau` (log2) less: O and row_sum are rescaled only where the maximum moves by
    more, so exponentials reach 2^tau, and the end divides by what was really summed (FlashAttention-4, section 3)."""

    def __init__(self, scale: Float32, tau: float):
        self.scale, self.tau = scale, tau
        self.row_max = cute.make_rmem_tensor(ROWS, Float32)
        self.row_sum = cute.make_rmem_tensor(ROWS, Float32)

    def reset(self) -> None:
        self.row_max.fill(-math.inf)
        self.row_sum.fill(0.0)

    def first(self, scores: cute.Tensor) -> None:
        """Turns the scores [2, n] of a row's first tile into exp2(scale * (score - row_max)) in place."""
        for i in range(ROWS):
            self.row_max[i] = self._tile_maximum(scores, i)
            self.row_sum[i] = self._exponentials(scores, i)

    def update(self, scores: cute.Tensor) -> tuple[Boolean, list[Float32]]:
        """The same for a later tile. Returns whether any row of the warp is to be rescaled, and what each row of O is to be
        multiplied by then."""
        factors, moved = [], Boolean(False)
        for i in range(ROWS):
            before = self.row_max[i]
            top = self._tile_maximum(scores, i)
            moves = Boolean((top - before) * self.scale > self.tau)
            after = select(moves, top, before, Float32)
            self.row_max[i] = after
            # Where a row has seen no key yet its sum is 0, and the factor of no meaning.
            factors.append(select(moves, cute.math.exp2((before - after) * self.scale, fastmath=True), Float32(1.0), Float32))
            self.row_sum[i] = self.row_sum[i] * factors[i] + self._exponentials(scores, i)
            moved = moved | moves
        return cute.arch.vote_any_sync(moved), factors

    def _tile_maximum(self, scores: cute.Tensor, i: int) -> Float32:
        row = [scores[i, j] for j in range(cute.size(scores, mode=[1]))]
        return _across_quad(_reduced(row, cute.arch.fmax), cute.arch.fmax)

    def _exponentials(self, scores: cute.Tensor, i: int) -> Float32:
        """In place; returns this thread's sum."""
        # A row that has seen no key has the maximum -inf; subtracting it would give NaN.
        base = select(self.row_max[i] == -math.inf, Float32(0.0), self.row_max[i] * self.scale, Float32)
        columns = cute.size(scores, mode=[1])
        for j in range(columns):
            scores[i, j] = cute.math.exp2(scores[i, j] * self.scale - base, fastmath=True)
        return _reduced([scores[i, j] for j in range(columns)], operator.add)

    def finish(self) -> tuple[list[Float32], list[Float32]]:
        """(what O is to be multiplied by, natural-log LSE) of each row; 0 and -inf for a row without keys."""
        inverses, lses = [], []
        for i in range(ROWS):
            total = _across_quad(self.row_sum[i], operator.add)
            empty = total == 0.0
            inverses.append(select(empty, Float32(0.0), cute.arch.rcp_approx(total), Float32))
            lse = (self.row_max[i] * self.scale + cute.math.log2(total, fastmath=True)) * LN_2
            lses.append(select(empty, Float32(-math.inf), lse, Float32))
        return inverses, lses


def _reduced(values: list[Float32], combine) -> Float32:
    """A tree: chains of depth log n."""
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2])]
        values = pairs + values[2 * len(pairs):]
    return values[0]


def _across_quad(value: Float32, combine) -> Float32:
    for offset in QUAD:
        value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
    return value


def scale_rows(fragment: cute.Tensor, factors: list[Float32]) -> None:
    """fragment [2, n] *= factor of its row."""
    for i in range(ROWS):
        for j in range(cute.size(fragment, mode=[1])):
            fragment[i, j] = fragment[i, j] * factors[i]
