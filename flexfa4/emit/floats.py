"""Float ops on Float32. Where an op has two forms, `precise` picks the one without hardware approximations; the error bound of
the other is its row in `approx.py`."""
from __future__ import annotations

import math

import cutlass.cute as cute
from cutlass import Boolean, Float32

from .values import is_static, select, static_number

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
LOG10_2 = math.log10(2.0)
# 2 pi as a float32 and what it misses, so that k * 2 pi is subtracted with about 48 bits.
TWO_PI_HIGH = 6.2831854820251465
TWO_PI_LOW = 2.0 * math.pi - TWO_PI_HIGH


def divide(a, b, precise: bool):
    return cute.math.div(a, b) if precise else cute.math.div(a, b, approx=True)


def reciprocal(x, precise: bool):
    return cute.math.div(Float32(1.0), x) if precise else cute.arch.rcp_approx(x)


def fmod(a, b):
    """C's remainder, exact. fmod(a, inf) is a; fmod of static numbers folds with Python's sign, so they go through math."""
    if is_static(a) and is_static(b):
        return Float32(math.fmod(static_number(a), static_number(b)))
    return cute.math.rem(Float32(a), Float32(b))


def mod(a, b):
    """fmod moved to the sign of the divisor (torch.remainder)."""
    rest = fmod(a, b)
    return select((rest != 0.0) & ((rest < 0.0) ^ (b < 0.0)), rest + b, rest, Float32)


def floordiv(a, b, precise: bool):
    """torch.floor_divide: the quotient of a - remainder, so that it agrees with `mod` where a / b rounds up to an integer."""
    rest = fmod(a, b)
    down = divide(a - rest, b, precise)
    down = select((rest != 0.0) & ((rest < 0.0) ^ (b < 0.0)), down - 1.0, down, Float32)
    nearest = cute.math.roundeven(down)
    # Division by zero and infinite quotients are those of a / b.
    return select(b == 0.0, divide(a, b, True), nearest, Float32)


def truncdiv(a, b):
    """torch.div(rounding_mode="trunc"): the rounded quotient, truncated."""
    return cute.math.trunc(divide(a, b, True))


def power(a, b, precise: bool):
    """a ** b. A static small integer exponent multiplies, 0.5 is a square root; otherwise 2 ** (b log2 |a|) with the sign of an
    odd power, NaN for a negative base and a fractional exponent, and 1 for exponent 0 or base 1."""
    if is_static(b):
        exponent = static_number(b)
        if exponent == int(exponent) if math.isfinite(exponent) else False:
            if abs(exponent) <= 16:
                return _whole_power(a, int(exponent), precise)
        elif exponent == 0.5:
            return square_root(a, precise)
    if precise:
        return cute.math.pow(a, b)
    size = cute.math.exp2(b * cute.math.log2(cute.math.absf(a), fastmath=True), fastmath=True)
    whole = cute.math.floor(b) == b
    odd = whole & (cute.math.floor(b * 0.5) * 2.0 != b)
    signed = select(whole, select(odd, -size, size, Float32), Float32(math.nan), Float32)
    negative = a < 0.0
    result = select(negative, signed, size, Float32)
    return select((b == 0.0) | (a == 1.0), Float32(1.0), result, Float32)


def _whole_power(a, exponent: int, precise: bool):
    if exponent < 0:
        return reciprocal(_whole_power(a, -exponent, precise), precise)
    result, square = None, a
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return Float32(1.0) if result is None else result


def square_root(x, precise: bool):
    return cute.math.sqrt(x) if precise else cute.math.sqrt(x, fastmath=True)


def reciprocal_root(x, precise: bool):
    return divide(Float32(1.0), cute.math.sqrt(x), True) if precise else cute.math.rsqrt(x, fastmath=True)


def exp2(x, precise: bool):
    return cute.math.exp2(x) if precise else cute.math.exp2(x, fastmath=True)


def exp(x, precise: bool):
    return cute.math.exp(x) if precise else cute.math.exp2(x * LOG2_E, fastmath=True)


def log2(x, precise: bool):
    return cute.math.log2(x) if precise else cute.math.log2(x, fastmath=True)


def log(x, precise: bool):
    return cute.math.log(x) if precise else cute.math.log2(x, fastmath=True) * LN_2


def log10(x, precise: bool):
    return cute.math.log10(x) if precise else cute.math.log2(x, fastmath=True) * LOG10_2


def tanh(x, precise: bool):
    return cute.math.tanh(x) if precise else cute.math.tanh(x, fastmath=True)


def sigmoid(x, precise: bool):
    return reciprocal(1.0 + exp(-x, precise), precise)


def erf(x, precise: bool):
    """Precise: the library's. Else Abramowitz and Stegun 7.1.26, odd by construction."""
    if precise:
        return cute.math.erf(x)
    size = cute.math.absf(x)
    t = cute.arch.rcp_approx(cute.math.fma(Float32(0.3275911), size, Float32(1.0)))
    polynomial = Float32(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        polynomial = cute.math.fma(polynomial, t, Float32(coefficient))
    tail = polynomial * t * exp(-size * size, False)
    return cute.math.copysign(1.0 - tail, x)


def _reduced(x):
    """x minus the nearest multiple of 2 pi: the hardware functions lose a bit for each one of |x|."""
    turns = cute.math.roundeven(x * (0.5 / math.pi))
    return cute.math.fma(-turns, Float32(TWO_PI_LOW), cute.math.fma(-turns, Float32(TWO_PI_HIGH), x))


def sine(x, precise: bool):
    return cute.math.sin(x) if precise else cute.math.sin(_reduced(x), fastmath=True)


def cosine(x, precise: bool):
    return cute.math.cos(x) if precise else cute.math.cos(_reduced(x), fastmath=True)


def tangent(x, precise: bool):
    if precise:
        return cute.math.tan(x)
    angle = _reduced(x)
    return cute.math.sin(angle, fastmath=True) * cute.arch.rcp_approx(cute.math.cos(angle, fastmath=True))


def sign(x):
    """-1, 0 or 1; 0 for NaN, as torch."""
    return select(x > 0.0, Float32(1.0), select(x < 0.0, Float32(-1.0), Float32(0.0), Float32), Float32)


def minimum(a, b):
    return cute.arch.fmin(a, b, nan=True)


def maximum(a, b):
    return cute.arch.fmax(a, b, nan=True)


def is_nan(x):
    return Boolean(x != x)


def is_inf(x):
    return Boolean(cute.math.absf(x) == math.inf)
