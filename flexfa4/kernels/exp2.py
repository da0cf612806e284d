"""2**x on the FMA units, for the share of the exponentials that the special function unit has no time for.

Cody-Waite: x = n + f with n an integer and |f| <= 1/2; a Horner polynomial gives 2**f, and n is added to its exponent. The
coefficients minimise the largest relative error over [-1/2, 1/2] (Remez exchange), then rounded to float32.
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32, Int32

# Adding it leaves the nearest integer in the low bits of the mantissa: 1.5 * 2**23.
_ROUND = 12582912.0
# Below it 2**x is no normal float32. The result is then 2**-126 or less, positive.
SMALLEST = -126.0

COEFFICIENTS = {
    3: (0.9999280571937561, 0.6932609677314758, 0.2426111251115799, 0.0551716685295105),
    4: (0.9999992847442627, 0.6931217908859253, 0.240247443318367, 0.05591785907745361, 0.009570102207362652),
    5: (
        1.0000001192092896,
        0.6931469440460205,
        0.24022120237350464,
        0.05550713092088699,
        0.009675540961325169,
        0.0013276472454890609,
    ),
}

# Largest relative error for -125 <= x <= 126, with the rounding of each step in float32.
RELATIVE_ERROR = {3: 7.6e-5, 4: 2.8e-6, 5: 2.5e-7}


def exp2_packed(x: Float32, y: Float32, degree: int) -> tuple[Float32, Float32]:
    """(2**x, 2**y) for x, y <= 126, without the special function unit. sm100: instructions on pairs of float32."""
    pair = cute.arch.fmax(x, Float32(SMALLEST)), cute.arch.fmax(y, Float32(SMALLEST))
    shifted = cute.arch.add_packed_f32x2(pair, (Float32(_ROUND), Float32(_ROUND)), rnd="rn")
    whole = cute.arch.add_packed_f32x2(shifted, (Float32(-_ROUND), Float32(-_ROUND)), rnd="rn")
    fraction = cute.arch.sub_packed_f32x2(pair, whole, rnd="rn")
    *rest, highest = COEFFICIENTS[degree]
    value = Float32(highest), Float32(highest)
    for coefficient in reversed(rest):
        value = cute.arch.fma_packed_f32x2(value, fraction, (Float32(coefficient), Float32(coefficient)), rnd="rn")
    return tuple(_scaled(v, s) for v, s in zip(value, shifted))


def _scaled(value: Float32, shifted: Float32) -> Float32:
    """value * 2**n, n in the low bits of `shifted`: an integer addition to the exponent."""
    return ((shifted.bitcast(Int32) << 23) + value.bitcast(Int32)).bitcast(Float32)
