"""Interval rules of floating point. Bounds are float64, widened by more than what the node's type rounds."""
from __future__ import annotations

import math

from flexfa4.ir import Node, Op

from .interval_values import INF, Interval, Space, either, negate, rounded, top

# How far an engine's elementary function may be from the true value, in roundings: CUDA's approximate ones are within a few ulp
# (CUDA C++ Programming Guide, "Mathematical functions": at most 4 for the ones used here), and so are torch's vectorised ones.
_FUNCTION_ULPS = 16
# Below this the relative bound no longer holds for functions near a zero of theirs.
_FUNCTION_ABSOLUTE = 2.0**-20


def _infinite(*args: Interval):
    """Where an operand may be infinite."""
    total = False
    for a in args:
        if a.least is None:
            total = either(total, (a.lo == -INF) | (a.hi == INF))
    return total


def _nan_poison(*args: Interval) -> tuple:
    nan, poison = False, False
    for a in args:
        nan, poison = either(nan, a.nan), either(poison, a.poison)
    return nan, poison


def add(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    nan, poison = _nan_poison(a, b)
    # Infinities of opposite sign give NaN.
    return rounded(space, a.lo + b.lo, a.hi + b.hi, n.dtype, either(nan, _infinite(a, b)), poison)


def sub(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    nan, poison = _nan_poison(a, b)
    return rounded(space, a.lo - b.hi, a.hi - b.lo, n.dtype, either(nan, _infinite(a, b)), poison)


def _corners(space: Space, values) -> tuple:
    """Least and greatest of four; a NaN among them (0 times infinity) makes the result unbounded."""
    p, q, r, s = (space.floats(v) for v in values)
    lo, hi = space.minimum(space.minimum(p, q), space.minimum(r, s)), space.maximum(space.maximum(p, q), space.maximum(r, s))
    bad = (p != p) | (q != q) | (r != r) | (s != s)
    return space.where(bad, -INF, lo), space.where(bad, INF, hi)


def mul(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    nan, poison = _nan_poison(a, b)
    lo, hi = _corners(space, [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)])
    return rounded(space, lo, hi, n.dtype, either(nan, _infinite(a, b)), poison)


def _quotient(space: Space, a: Interval, b: Interval) -> tuple:
    """(lo, hi, may be NaN) of a / b before rounding."""
    zero = (b.lo <= 0) & (b.hi >= 0)
    low, high = space.where(zero, 1.0, space.floats(b.lo)), space.where(zero, 1.0, space.floats(b.hi))
    lo, hi = _corners(space, [x / y for x in (space.floats(a.lo), space.floats(a.hi)) for y in (low, high)])
    return space.where(zero, -INF, lo), space.where(zero, INF, hi), either(_infinite(a, b), zero)


def div(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    nan, poison = _nan_poison(a, b)
    lo, hi, bad = _quotient(space, a, b)
    # Two roundings: an engine may multiply by the reciprocal.
    return rounded(space, lo, hi, n.dtype, either(nan, bad), poison, ulps=4)


def _integral_quotient(space: Space, n: Node, a: Interval, b: Interval, name: str) -> Interval:
    nan, poison = _nan_poison(a, b)
    lo, hi, bad = _quotient(space, a, b)
    wide = rounded(space, lo, hi, n.dtype, either(nan, bad), poison, ulps=4)
    return rounded(space, space.call(name, wide.lo), space.call(name, wide.hi), n.dtype, wide.nan, poison)


def floordiv(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    return _integral_quotient(space, n, a, b, "floor")


def truncdiv(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    return _integral_quotient(space, n, a, b, "trunc")


def _remainder(space: Space, n: Node, a: Interval, b: Interval, lo, hi) -> Interval:
    nan, poison = _nan_poison(a, b)
    zero = (b.lo <= 0) & (b.hi >= 0)
    return rounded(space, lo, hi, n.dtype, either(nan, either(_infinite(a, b), zero)), poison, ulps=2)


def mod(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    # The sign is the divisor's. With an infinite divisor the result may be the dividend itself.
    lo, hi = space.minimum(b.lo, 0.0), space.maximum(b.hi, 0.0)
    return _remainder(space, n, a, b, lo, hi)


def fmod(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    size = space.maximum(abs(b.lo), abs(b.hi))
    lo = space.where(a.lo < 0, -size, 0.0)
    hi = space.where(a.hi > 0, size, 0.0)
    return _remainder(space, n, a, b, lo, hi)


def power(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    """A positive base: monotone in each operand, so the extremes are at the corners. Any other base: anything."""
    nan, poison = _nan_poison(a, b)
    if isinstance(a.lo, float) and isinstance(a.hi, float) and not a.lo > 0:
        return top(n.dtype, poison)
    positive = a.lo > 0
    base_lo, base_hi = (space.where(positive, space.floats(x), 1.0) for x in (a.lo, a.hi))
    log_lo, log_hi = space.call("log2", base_lo), space.call("log2", base_hi)
    lo, hi = _corners(space, [x * y for x in (log_lo, log_hi) for y in (b.lo, b.hi)])
    # The exponent's own rounding is relative to its size, which the power multiplies: eps * |y log2 x| absolute.
    lo, hi = (space.call("exp2", x + sign * (abs(x) * 2.0**-20 + 2.0**-20)) for x, sign in ((lo, -1), (hi, 1)))
    return rounded(space, space.where(positive, lo, -INF), space.where(positive, hi, INF), n.dtype,
                   either(either(nan, _infinite(a, b)), negate(positive)), poison, ulps=_FUNCTION_ULPS)


_DOMAIN = {Op.LOG: 0.0, Op.LOG2: 0.0, Op.LOG10: 0.0, Op.LOG1P: -1.0, Op.SQRT: 0.0}
_RANGE = {Op.EXP: (0.0, INF), Op.EXP2: (0.0, INF), Op.EXPM1: (-1.0, INF), Op.SQRT: (0.0, INF), Op.TANH: (-1.0, 1.0),
          Op.SIGMOID: (0.0, 1.0), Op.ERF: (-1.0, 1.0), Op.ATAN: (-math.pi / 2, math.pi / 2)}


def monotone(space: Space, n: Node, a: Interval) -> Interval:
    """An increasing function; outside its domain the result is NaN."""
    lo, hi, nan = space.floats(a.lo), space.floats(a.hi), a.nan
    bottom = _DOMAIN.get(n.op)
    if bottom is not None:
        nan = either(nan, lo < bottom)
        lo, hi = space.maximum(lo, bottom), space.maximum(hi, bottom)
    name = n.op.name.lower()
    lo, hi = (space.floats(space.call(name, space.floats(x))) for x in (lo, hi))
    if n.op not in (Op.SQRT, Op.EXP, Op.EXP2, Op.SIGMOID):
        lo, hi = lo - _FUNCTION_ABSOLUTE, hi + _FUNCTION_ABSOLUTE
    if n.op in (Op.EXP, Op.EXP2, Op.SIGMOID):
        # The argument may have been rounded to the type on its way into exp2: relative error grows with its size.
        stretch = 2.0**-16
        lo, hi = lo * (1 - stretch), hi * (1 + stretch)
    found = rounded(space, lo, hi, n.dtype, nan, a.poison, ulps=_FUNCTION_ULPS)
    if n.op not in _RANGE:
        return found
    least, most = _RANGE[n.op]
    edge = 1 if n.op is Op.ATAN else 0
    slack = edge * 2.0**-6
    return Interval(space.maximum(found.lo, least - slack), space.minimum(found.hi, most + slack), found.nan, found.poison)


def step(space: Space, n: Node, a: Interval) -> Interval:
    """floor, ceil, round and trunc: increasing, and exact in any type."""
    if a.least is not None:
        return a
    name = n.op.name.lower()
    lo, hi = (space.call(name, space.floats(x)) for x in (a.lo, a.hi))
    return Interval(lo, hi, a.nan, a.poison)


def wave(space: Space, n: Node, a: Interval) -> Interval:
    return Interval(-1.0, 1.0, either(a.nan, _infinite(a)), a.poison)


def tan(space: Space, n: Node, a: Interval) -> Interval:
    return Interval(-INF, INF, either(a.nan, _infinite(a)), a.poison)


def atan2(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    nan, poison = _nan_poison(a, b)
    return rounded(space, -math.pi, math.pi, n.dtype, nan, poison, ulps=_FUNCTION_ULPS)


def reciprocal(space: Space, n: Node, a: Interval) -> Interval:
    one = Interval(1.0, 1.0)
    lo, hi, _ = _quotient(space, one, a)
    return rounded(space, lo, hi, n.dtype, a.nan, a.poison, ulps=_FUNCTION_ULPS)


def rsqrt(space: Space, n: Node, a: Interval) -> Interval:
    """Decreasing; infinite at zero, of either sign there, NaN below."""
    lo, hi = space.maximum(space.floats(a.lo), 0.0), space.maximum(space.floats(a.hi), 0.0)
    zero = a.lo <= 0
    low = 1 / space.call("sqrt", space.where(hi == 0, 1.0, hi))
    high = 1 / space.call("sqrt", space.where(lo == 0, 1.0, lo))
    return rounded(space, space.where(zero, -INF, low), space.where(zero, INF, high), n.dtype,
                   either(a.nan, a.lo < 0), a.poison, ulps=_FUNCTION_ULPS)


def to_integer(space: Space, n: Node, a: Interval) -> Interval:
    """Truncation. A value that the type does not hold, or NaN, becomes anything."""
    everything = top(n.dtype)
    # The bounds of i64 are not float64 numbers: stay well inside.
    low, high = max(everything.least, -(2**62)), min(everything.most, 2**62)
    safe = (a.lo > low - 1) & (a.hi < high + 1)
    if a.nan is not False:
        safe = safe & negate(a.nan)
    lo = space.ints(space.where(safe, space.call("trunc", space.floats(a.lo)), 0.0))
    hi = space.ints(space.where(safe, space.call("trunc", space.floats(a.hi)), 0.0))
    return Interval(space.where(safe, lo, everything.least), space.where(safe, hi, everything.most), False, a.poison,
                    everything.least, everything.most)
