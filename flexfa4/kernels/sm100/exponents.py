"""What exponentials are taken of, and what a row is measured from.

Three kinds. Scores that are scaled already; scores that an FMA scales, with the offset; those of graphs that may write masks as
numbers and cannot be scaled inside (`units.py`). The FMA's offset is a rounded product: at the largest score the exponent is 0
but for that rounding, which the row's exponentials share and the end divides by. Of scores by -1e10 it is 2^9 in log2. There the
difference is taken first, and scaled after.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32

from flexfa4.emit.values import select

from ..carried import Fixed
from ..rounding import LN_2, clamped, cut_off, lse_of, rest_of

# Where a row has seen a key its sum is above it, where not below: a polynomial's 2**-inf is 2**-126.
LEAST_SUM = 2.0**-64


@dataclass(frozen=True)
class Exponents(Fixed):
    """scale: of scores, None where they are scaled already; signed: it may be negative; far: scores may be far from 0. A row is
    measured from row_max, its largest score in log2; a far one from the score times the scale's sign."""

    scale: Float32 | None
    signed: bool
    far: bool

    @property
    def size(self) -> Float32:
        """What the difference of two row maxima is times, in log2."""
        if not self.far:
            return Float32(1.0)
        return cute.math.absf(self.scale) if self.signed else self.scale

    def sign(self) -> Float32:
        return select(self.scale < 0.0, Float32(-1.0), Float32(1.0), Float32)

    def maximum(self, s: cute.Tensor) -> Float32:
        """Of a row of scores [1, n]."""
        if self.scale is None:
            return extreme_of(s, cute.arch.fmax)
        top = largest(s, self.scale, self.signed)
        if not self.far:
            return top * self.scale
        return top * self.sign() if self.signed else top

    def offset(self, row_max: Float32) -> Float32:
        return -(row_max * self.sign()) if self.far and self.signed else -row_max

    def of(self, pair: tuple, offset: Float32) -> tuple:
        """Two scores' exponents."""
        offsets = offset, offset
        if self.scale is None:
            return cute.arch.add_packed_f32x2(pair, offsets, rnd="rn")
        scales = self.scale, self.scale
        if self.far:
            return cute.arch.mul_packed_f32x2(cute.arch.add_packed_f32x2(pair, offsets, rnd="rn"), scales, rnd="rn")
        return cute.arch.fma_packed_f32x2(pair, scales, offsets, rnd="rn")

    def measured_from(self, row_max: Float32) -> tuple[Float32, Float32]:
        """(top, rest): what exponentials are measured from, in log2, as a sum."""
        if self.far:
            top = clamped(row_max * self.size)
            return top, clamped(rest_of(row_max, self.size, top))
        return row_max, cut_off(row_max) if self.scale is None else Float32(0.0)

    def end(self, row_max: Float32, row_sum: Float32, added: Float32 | None) -> tuple[Float32, Float32]:
        """(the last factor for O, LSE) of a row: 0 and -inf where it saw no key. added: to all scores, in log2; None for 0."""
        empty = _is_empty(row_sum, added)
        factor = cute.arch.rcp_approx(row_sum)
        if added is not None:
            factor = factor + (added - added)
        if added is None and self.scale is not None and not self.far:
            lse = (row_max + cute.math.log2(row_sum, fastmath=True)) * LN_2
        else:
            lse = lse_of(self.measured_from(row_max), row_sum, Float32(0.0) if added is None else added)
        return select(empty, Float32(0.0), factor, Float32), select(empty, Float32(-math.inf), lse, Float32)

    def part(self, row_max: Float32, row_sum: Float32, added: Float32 | None) -> tuple[Float32, Float32, Float32, Float32]:
        """What the combine is told of a piece of a row: `arguments.Lists`."""
        row_sum = select(_is_empty(row_sum, added), Float32(0.0), row_sum, Float32)
        return *self.measured_from(row_max), row_sum, Float32(0.0) if added is None else added


def _is_empty(row_sum: Float32, added: Float32 | None) -> Boolean:
    empty = Boolean(row_sum < LEAST_SUM)
    return empty if added is None else empty | (added == -math.inf)


@cute.jit
def largest(s: cute.Tensor, scale: Float32, signed: cutlass.Constexpr) -> Float32:
    """The s whose s * scale is largest. signed: scale may be negative."""
    top = Float32(0.0)
    if cutlass.const_expr(signed):
        if scale < 0.0:
            top = extreme_of(s, cute.arch.fmin)
        else:
            top = extreme_of(s, cute.arch.fmax)
    else:
        top = extreme_of(s, cute.arch.fmax)
    return top


def extreme_of(s: cute.Tensor, further) -> Float32:
    """Four chains, which the compiler makes three-input maxima of."""
    chains = [s[j] for j in range(4)]
    for j in range(4, cute.size(s)):
        chains[j % 4] = further(chains[j % 4], s[j])
    return further(further(chains[0], chains[1]), further(chains[2], chains[3]))
