"""Interval rules of arithmetic on whole numbers: the integer types, and floats while they hold whole numbers exactly.

Each rule takes intervals with known `least` and `most`. It returns None where the result is not exact in a float type.
"""
from __future__ import annotations

from flexfa4.ir import DType, Node

from .interval_values import Interval, Space, either, top, whole


def poison_of(args) -> object:
    total = False
    for a in args:
        total = either(total, a.poison)
    return total


def add(space: Space, n: Node, a: Interval, b: Interval) -> Interval | None:
    return whole(a.lo + b.lo, a.hi + b.hi, a.least + b.least, a.most + b.most, n.dtype, either(a.poison, b.poison))


def sub(space: Space, n: Node, a: Interval, b: Interval) -> Interval | None:
    return whole(a.lo - b.hi, a.hi - b.lo, a.least - b.most, a.most - b.least, n.dtype, either(a.poison, b.poison))


def mul(space: Space, n: Node, a: Interval, b: Interval) -> Interval | None:
    corners = [x * y for x in (a.least, a.most) for y in (b.least, b.most)]
    poison = either(a.poison, b.poison)
    found = whole(0, 0, min(corners), max(corners), n.dtype, poison)
    if found is None or (found.least, found.most) != (min(corners), max(corners)):
        return found                 # of an integer type that overflows either way: anything
    lo, hi = _product(space, a, b) if not b.fixed else _scaled(a, b.lo)
    return Interval(lo, hi, False, poison, found.least, found.most)


def _scaled(a: Interval, factor) -> tuple:
    return (a.lo * factor, a.hi * factor) if factor >= 0 else (a.hi * factor, a.lo * factor)


def _product(space: Space, a: Interval, b: Interval) -> tuple:
    if a.fixed:
        return _scaled(b, a.lo)
    if a.least >= 0 and b.least >= 0:
        return a.lo * b.lo, a.hi * b.hi
    p, q, r, s = a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi
    return (space.minimum(space.minimum(p, q), space.minimum(r, s)), space.maximum(space.maximum(p, q), space.maximum(r, s)))


def _corner_quotients(space: Space, n: Node, a: Interval, b: Interval, divide) -> Interval | None:
    """A quotient that is monotone in each operand while the divisor keeps its sign: its extremes are at the corners."""
    if n.dtype.is_float:
        # Float quotients round before they are floored, and engines differ in how.
        return None
    poison = either(a.poison, b.poison)
    if b.least <= 0 <= b.most:
        # Division by zero is any value.
        return top(n.dtype, poison)
    if whole(0, 0, -a.least, -a.least, n.dtype, poison).least != -a.least and b.least <= -1 <= b.most:
        # The least number of the type divided by -1 overflows.
        return top(n.dtype, poison)
    if b.fixed:
        p, q = divide(a.lo, b.lo), divide(a.hi, b.lo)
        lo, hi = (p, q) if b.lo > 0 else (q, p)
    else:
        p, q, r, s = (divide(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi))
        lo = space.minimum(space.minimum(p, q), space.minimum(r, s))
        hi = space.maximum(space.maximum(p, q), space.maximum(r, s))
    corners = [_floor(x, y) for x in (a.least, a.most) for y in (b.least, b.most)]
    corners += [-_floor(-x, y) for x in (a.least, a.most) for y in (b.least, b.most)]
    return Interval(lo, hi, False, poison, min(corners), max(corners))


def _floor(x: int, y: int) -> int:
    return int(x) // int(y)


def floordiv(space: Space, n: Node, a: Interval, b: Interval) -> Interval | None:
    return _corner_quotients(space, n, a, b, lambda x, y: x // y)


def truncdiv(space: Space, n: Node, a: Interval, b: Interval) -> Interval | None:
    def divide(x, y):
        # Not by way of abs: the least number of a type has none. A remainder that wraps is still 0 only where it is 0.
        quotient = x // y
        return quotient + ((x - quotient * y != 0) & ((x < 0) ^ (y < 0)))

    return _corner_quotients(space, n, a, b, divide)


def mod(space: Space, n: Node, a: Interval, b: Interval) -> Interval | None:
    """Exact where the whole interval falls in one period of a fixed divisor; the divisor's range elsewhere."""
    if n.dtype.is_float:
        return None
    poison = either(a.poison, b.poison)
    if b.least <= 0 <= b.most:
        return top(n.dtype, poison)
    if not b.fixed:
        return Interval(min(0, b.least + 1), max(0, b.most - 1), False, poison, min(0, b.least + 1), max(0, b.most - 1))
    d = b.lo
    first, last = (0, d - 1) if d > 0 else (d + 1, 0)
    if first <= a.least and a.most <= last:
        return Interval(a.lo, a.hi, False, poison, a.least, a.most)
    period = a.lo // d
    same = a.hi // d == period
    base = period * d
    return Interval(space.where(same, a.lo - base, first), space.where(same, a.hi - base, last), False, poison,
                    int(first), int(last))


def fmod(space: Space, n: Node, a: Interval, b: Interval) -> Interval | None:
    if n.dtype.is_float:
        return None
    if a.least >= 0 and b.least > 0:
        return mod(space, n, a, b)
    poison = either(a.poison, b.poison)
    if b.least <= 0 <= b.most:
        return top(n.dtype, poison)
    size = max(abs(b.least), abs(b.most)) - 1
    low, high = (-size if a.least < 0 else 0), (size if a.most > 0 else 0)
    return Interval(low, high, False, poison, low, high)


def power(space: Space, n: Node, a: Interval, b: Interval) -> Interval | None:
    """Monotone where the base is not below zero; otherwise, and where it might overflow, anything."""
    if n.dtype.is_float:
        return None
    if a.least < 0 or b.least < 0 or b.most > 64:
        return top(n.dtype, either(a.poison, b.poison))
    least, most = min(a.least**b.least, a.least**b.most), max(1, a.most) ** b.most
    found = whole(0, 0, least, most, n.dtype, either(a.poison, b.poison))
    if found.most != most:
        return found
    # 0 ** 0 is 1 and 0 ** 1 is 0: with a base that may be zero the least is taken from the whole range.
    return Interval(a.lo**b.lo if a.least > 0 else 0, space.maximum(space.maximum(a.hi, 1) ** b.hi, 1), False, found.poison,
                    0, most)


def _points(space: Space, n: Node, a: Interval, b: Interval, low: int, high: int, value) -> Interval:
    """`value` where both operands are one number, [low, high] elsewhere."""
    poison = either(a.poison, b.poison)
    if a.fixed and b.fixed:
        return Interval(value, value, False, poison, value, value)
    one = (a.lo == a.hi) & (b.lo == b.hi)
    return Interval(space.where(one, value, low), space.where(one, value, high), False, poison, low, high)


def bit_and(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    for x, mask in ((a, b), (b, a)):
        # x & (2**m - 1) is x mod 2**m in two's complement.
        if mask.fixed and mask.lo >= 0 and mask.lo & (mask.lo + 1) == 0:
            size = mask.lo + 1
            return mod(space, n, x, Interval(size, (size), False, mask.poison, size, size)) if size < 2**62 else x
    if a.least >= 0 and b.least >= 0:
        low, high = 0, min(a.most, b.most)
    elif a.least >= 0 or b.least >= 0:
        low, high = 0, a.most if a.least >= 0 else b.most
    else:
        low, high = _bit_range(n, a, b)
    return _points(space, n, a, b, low, high, a.lo & b.lo)


def bit_or(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    return _points(space, n, a, b, *_bit_range(n, a, b), a.lo | b.lo)


def bit_xor(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    return _points(space, n, a, b, *_bit_range(n, a, b), a.lo ^ b.lo)


def _bit_range(n: Node, a: Interval, b: Interval) -> tuple[int, int]:
    """The least range of two's complement numbers of enough bits for both operands."""
    bits = max((x if x >= 0 else ~x).bit_length() for x in (a.least, a.most, b.least, b.most))
    signed = a.least < 0 or b.least < 0
    return (-(1 << bits) if signed else 0), (1 << bits) - 1


def invert(space: Space, n: Node, a: Interval) -> Interval:
    if n.dtype is DType.U8:
        return Interval(255 - a.hi, 255 - a.lo, False, a.poison, 255 - a.most, 255 - a.least)
    return Interval(-1 - a.hi, -1 - a.lo, False, a.poison, -1 - a.most, -1 - a.least)


def _corners(space: Space, a: Interval, b: Interval, shift) -> tuple:
    """Least and greatest of what is monotone in its first operand, and in its second for either sign of the first."""
    if b.fixed:
        return shift(a.lo, b.lo), shift(a.hi, b.lo)
    lows, highs = ((shift(x, b.lo), shift(x, b.hi)) for x in (a.lo, a.hi))
    return space.minimum(*lows), space.maximum(*highs)


def shift_left(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    poison = either(a.poison, b.poison)
    if not 0 <= b.least <= b.most < 63:
        return top(n.dtype, poison)
    least, most = min(a.least << b.least, a.least << b.most), max(a.most << b.least, a.most << b.most)
    found = whole(0, 0, least, most, n.dtype, poison)
    if (found.least, found.most) != (least, most):
        return found
    return Interval(*_corners(space, a, b, lambda x, y: x * (1 << y)), False, poison, least, most)


def shift_right(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    poison = either(a.poison, b.poison)
    # A shift by the width or more, or by a negative amount, differs between machines.
    width = {DType.I32: 31, DType.I64: 63}.get(n.dtype, 8)
    if not 0 <= b.least <= b.most < width:
        return top(n.dtype, poison)
    least, most = min(a.least >> b.least, a.least >> b.most), max(a.most >> b.least, a.most >> b.most)
    return Interval(*_corners(space, a, b, lambda x, y: x >> y), False, poison, least, most)
