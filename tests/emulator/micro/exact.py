"""Exact arithmetic on bit patterns of binary floating-point formats, by rationals: what the emulator is checked against."""

import math
import struct
from fractions import Fraction
from functools import cache


class Format:
    """IEEE-like format of `exponent` and `mantissa` bits (with a sign, infinities and NaNs)."""

    def __init__(self, exponent: int, mantissa: int, nan: int):
        self.exponent, self.mantissa, self.nan = exponent, mantissa, nan
        self.bits, self.bias = 1 + exponent + mantissa, (1 << (exponent - 1)) - 1
        self.infinity = ((1 << exponent) - 1) << mantissa
        self.sign = 1 << (self.bits - 1)

    def is_nan(self, x: int) -> bool:
        return x & (self.sign - 1) > self.infinity

    def number(self, x: int):
        """Fraction, or a float infinity; not for NaN. The sign of zero is lost."""
        negative, x = x & self.sign, x & (self.sign - 1)
        if x == self.infinity:
            return -math.inf if negative else math.inf
        e, m = x >> self.mantissa, x & ((1 << self.mantissa) - 1)
        value = (m + (1 << self.mantissa if e else 0)) * _power(max(e, 1) - self.bias - self.mantissa)
        return -value if negative else value

    def round(self, value, mode: str = "rn", negative_zero: bool = False, finite: bool = False) -> int:
        """Bit pattern of an exact number (or infinity) rounded once. mode: rn, rz, rm, rp. finite: largest value for overflow."""
        if value in (math.inf, -math.inf):
            code = self.infinity - finite
            return code | (self.sign if value < 0 else 0)
        if value == 0:
            return self.sign if negative_zero else 0
        negative, value = value < 0, abs(value)
        e = max(_exponent(value), 1 - self.bias)
        scaled = value * _power(self.mantissa - e)
        q, rest = int(scaled), scaled - int(scaled)
        up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and q & 1) if mode == "rn" else bool(rest) and (
            mode == ("rm" if negative else "rp"))
        q += up
        code = q + ((e - 1 + self.bias) << self.mantissa)
        if code >= self.infinity:
            reach = mode == "rn" or mode == ("rm" if negative else "rp")
            code = self.infinity if reach and not finite else self.infinity - 1
        return code | (self.sign if negative else 0)

    def negative(self, x: int) -> bool:
        return bool(x & self.sign)

    def flush(self, x: int) -> int:
        """Subnormals become zero of their sign."""
        return x & self.sign if x & (self.sign - 1) < 1 << self.mantissa else x


@cache
def _power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def _exponent(value: Fraction) -> int:
    e = value.numerator.bit_length() - value.denominator.bit_length()
    return e if _power(e) <= value else e - 1


F64, F32 = Format(11, 52, 0x7FFFFFFFFFFFFFFF), Format(8, 23, 0x7FFFFFFF)
F16, BF16 = Format(5, 10, 0x7FFF), Format(8, 7, 0x7FFF)


def add(f: Format, a: int, b: int, mode="rn") -> int:
    return fma(f, a, f.round(Fraction(1)), b, mode)


def sub(f: Format, a: int, b: int, mode="rn") -> int:
    return f.nan if f.is_nan(b) else add(f, a, b ^ f.sign, mode)


def mul(f: Format, a: int, b: int, mode="rn") -> int:
    if f.is_nan(a) or f.is_nan(b):
        return f.nan
    x, y = f.number(a), f.number(b)
    if math.inf in (abs(x), abs(y)):
        if x == 0 or y == 0:
            return f.nan
        return f.infinity | ((a ^ b) & f.sign)
    return f.round(x * y, mode, bool((a ^ b) & f.sign))


def fma(f: Format, a: int, b: int, c: int, mode="rn", out: Format | None = None, wide: Format | None = None) -> int:
    """a * b + c rounded once. out: format of the result and of c, when it differs."""
    out = out or f
    if f.is_nan(a) or f.is_nan(b) or out.is_nan(c):
        return out.nan
    x, y, z = f.number(a), f.number(b), out.number(c)
    product_negative, c_negative = f.negative(a) != f.negative(b), out.negative(c)
    if math.inf in (abs(x), abs(y)):
        if x == 0 or y == 0 or (abs(z) == math.inf and product_negative != c_negative):
            return out.nan
        return out.infinity | (out.sign if product_negative else 0)
    if abs(z) == math.inf:
        return c
    total = x * y + z
    same = product_negative == c_negative
    zero_negative = product_negative if x * y == 0 and z == 0 and same else mode == "rm"
    return out.round(total, mode, zero_negative)


def maximum(f: Format, a: int, b: int, nan=False, sign=1) -> int:
    """max (sign 1) or min (-1): a NaN loses, unless `nan`; -0 < +0."""
    if f.is_nan(a) or f.is_nan(b):
        if nan or (f.is_nan(a) and f.is_nan(b)):
            return f.nan
        return b if f.is_nan(a) else a
    key = [(sign * f.number(x), sign * (not f.negative(x))) for x in (a, b)]
    return a if key[0] >= key[1] else b


COMPARE = {
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
}


def compare(f: Format, op: str, a: int, b: int) -> bool:
    """A comparison of PTX: ordered ones fail on NaN, those with a trailing u hold."""
    unordered = f.is_nan(a) or f.is_nan(b)
    if op in ("num", "nan"):
        return unordered == (op == "nan")
    if unordered:
        return op.endswith("u")
    return COMPARE[op.removesuffix("u") if op not in COMPARE else op](f.number(a), f.number(b))


def bits32(x: float) -> int:
    """Bit pattern of the float32 nearest to a Python float."""
    if x != x:
        return F32.nan
    return F32.round(Fraction(x) if math.isfinite(x) else x, "rn", math.copysign(1, x) < 0)


def float32(x: int) -> float:
    return struct.unpack("<f", struct.pack("<I", x))[0]


def patterns(f: Format, count: int, seed: int) -> list[int]:
    """Twelve edge cases, then random numbers of all sizes and numbers near one another."""
    import numpy as np

    rng = np.random.default_rng(seed)
    one = f.round(Fraction(1))
    edges = [0, f.sign, one, one | f.sign, f.infinity, f.infinity | f.sign, f.nan, f.infinity + 1, 1, f.infinity - 1,
             1 << f.mantissa, (1 << f.mantissa) - 1]
    found = [int(x) >> (64 - f.bits) for x in rng.integers(0, 2**64, (count - 12) // 2, dtype=np.uint64)]
    near = count - 12 - len(found)
    found += [one + int(x) | (f.sign if s else 0) for x, s in
              zip(rng.integers(-(1 << f.mantissa), 1 << f.mantissa, near), rng.integers(0, 2, near))]
    return edges + found
