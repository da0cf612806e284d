"""Float32 at the end of its range, and products that are rounded where they stand."""
from __future__ import annotations

import math

import cutlass.cute as cute
from cutlass import Float32

from flexfa4.emit.values import select

MOST = 3.4028234663852886e38
# What masks by numbers write.
LEAST = -MOST
LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)


def times(a: Float32, b: Float32) -> Float32:
    """A product that no addition is fused with."""
    return cute.arch.inline_ptx("mul.rn.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Float32], read_only_args=[a, b])


def rest_of(a: Float32, b: Float32, product: Float32) -> Float32:
    """a * b - product, rounded once."""
    return cute.arch.inline_ptx("fma.rn.f32 {$w0}, {$r0}, {$r1}, {$r2};", write_only_types=[Float32],
                                read_only_args=[a, b, -product])


def clamped(x: Float32) -> Float32:
    """The nearest number that is not infinite."""
    return cute.arch.fmin(cute.arch.fmax(x, Float32(LEAST)), Float32(MOST))


def as_finite(x: Float32, value: Float32) -> Float32:
    """x, clamped where `value`, of which it was computed, is finite."""
    return select(cute.math.absf(value) < math.inf, clamped(x), x, Float32)


def in_log2(value: Float32) -> Float32:
    """A logarithm: log2(e) times as large."""
    return as_finite(value * LOG2_E, value)


def cut_off(x: Float32) -> Float32:
    """What `in_log2` took from the largest or the least float, where it left `x` of it."""
    return select(cute.math.absf(x) == MOST, x * (LOG2_E - 1.0), Float32(0.0), Float32)


def natural(top: Float32, rest: Float32, cut: Float32 | float = 0.0) -> Float32:
    """The natural logarithm of 2**(top + rest + cut); top and cut are finite."""
    return as_finite(top * LN_2 + cut * LN_2 + rest * LN_2, rest)


def lse_of(measured: tuple[Float32, Float32], row_sum: Float32, added: Float32) -> Float32:
    """The natural-log LSE of a row with this sum of exponentials. measured: (top, rest), the sum that these are measured from, in
    log2; added: to all scores, by `in_log2`."""
    top, rest = measured
    # What is added to an infinity more is NaN.
    rest = rest + (cute.math.log2(row_sum, fastmath=True) + added) + (added - added)
    return natural(top, rest, cut_off(added))
