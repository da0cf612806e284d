"""torch functions that are a few traced operations: activations, hyperbolic and inverse functions, interpolation, reductions of
short vectors. Each formula is the one in torch's documentation; `const` numbers inside them are structure."""
from __future__ import annotations

import functools
import math
from functools import reduce

import torch

from ..ir import DType, Op
from . import arith
from .arith import add, clamp, compare, div, extremum, lift, logical, mul, negative, number_unary, sub, unary_float, where
from .dtypes import HALVES
from .lanes import Lanes
from .recorder import refuse
from .tracer import Traced


def fixed(value: float, like) -> Traced:
    """A number of a formula, in the float type of `like`: structure, not a literal of the user's."""
    dtype = arith.as_float(arith.dtype_of(lift(like)))
    return Traced(arith.const(value, dtype))


def on_floats(formula):
    """Marks a formula that torch defines on floats alone; halves are computed in float32 and rounded once, as torch does."""
    @functools.wraps(formula)
    def run(x, *args, **kwargs):
        x = lift(x)
        dtype = arith.dtype_of(x, *(a for a in map(lift, args) if isinstance(a, Traced)))
        if not dtype.is_float:
            raise refuse(f"{formula.__name__} of {dtype!r}", "x.float() first")
        inner = DType.F32 if dtype in HALVES else dtype
        x, *args = (Traced(arith.cast(a.node, inner)) if isinstance(a, Traced) else a for a in map(lift, (x, *args)))
        return Traced(arith.cast(formula(x, *args, **kwargs).node, dtype))
    return run


def floating(x) -> Traced:
    x = lift(x)
    return Traced(arith.as_node(x, arith.as_float(arith.dtype_of(x))))


def relu(x, inplace=False):
    x = lift(x)
    if x.node.dtype.is_bool:
        raise refuse("relu of a bool", "x.int()")
    return extremum(Op.MAX, x, 0, tie=1)


def sigmoid(x):
    return unary_float(Op.SIGMOID, x)


@on_floats
def silu(x, inplace=False):
    return mul(floating(x), sigmoid(x))


@on_floats
def gelu(x, approximate="none"):
    x = floating(x)
    if approximate == "tanh":
        inner = mul(fixed(math.sqrt(2 / math.pi), x), add(x, mul(fixed(0.044715, x), mul(x, mul(x, x)))))
        return mul(mul(fixed(0.5, x), x), add(unary_float(Op.TANH, inner), fixed(1.0, x)))
    return mul(mul(fixed(0.5, x), x), add(unary_float(Op.ERF, mul(x, fixed(math.sqrt(0.5), x))), fixed(1.0, x)))


@on_floats
def softplus(x, beta=1.0, threshold=20.0):
    x = floating(x)
    scaled = mul(x, beta)
    return where(compare(Op.LT, threshold, scaled), x, div(unary_float(Op.LOG1P, unary_float(Op.EXP, scaled)), beta))


@on_floats
def logsigmoid(x):
    x = floating(x)
    return sub(extremum(Op.MIN, x, 0.0), unary_float(Op.LOG1P, unary_float(Op.EXP, negative(number_unary(Op.ABS, x)))))


@on_floats
def leaky_relu(x, negative_slope=0.01, inplace=False):
    return where(compare(Op.LT, 0.0, x), x, mul(x, negative_slope))


@on_floats
def elu(x, alpha=1.0, inplace=False):
    return where(compare(Op.LT, 0.0, x), x, mul(unary_float(Op.EXPM1, x), alpha))


def relu6(x, inplace=False):
    return clamp(x, 0, 6, tie=1)


def hardtanh(x, min_val=-1.0, max_val=1.0, inplace=False):
    return clamp(x, min_val, max_val, tie=1)


@on_floats
def hardsigmoid(x, inplace=False):
    return div(clamp(add(x, 3.0), 0.0, 6.0, tie=1), fixed(6.0, x))


@on_floats
def hardswish(x, inplace=False):
    return mul(x, hardsigmoid(x))


def softsign(x):
    return div(x, add(number_unary(Op.ABS, x), 1))


@on_floats
def mish(x, inplace=False):
    return mul(floating(x), unary_float(Op.TANH, softplus(x)))


def positive(x):
    x = lift(x)
    if arith.dtype_of(x).is_bool:
        raise refuse("+x of a bool", "x.int()")
    return x


def _other_leg(x: Traced) -> Traced:
    """sqrt(1 - x^2): as two factors it is accurate near 1, and as two roots its derivative at 1 is infinite and not NaN."""
    return mul(unary_float(Op.SQRT, sub(fixed(1.0, x), x)), unary_float(Op.SQRT, add(fixed(1.0, x), x)))


def asin(x):
    x = floating(x)
    return arith.atan2(x, _other_leg(x))


def acos(x):
    x = floating(x)
    return arith.atan2(_other_leg(x), x)


def _half_exp(x) -> Traced:
    """exp(x) / 2 as a product, which overflows no sooner than sinh and cosh do."""
    e = unary_float(Op.EXP, mul(x, fixed(0.5, x)))
    return mul(mul(fixed(0.5, x), e), e)


def sinh(x):
    x = floating(x)
    e = unary_float(Op.EXPM1, x)
    near = mul(fixed(0.5, x), add(e, div(e, add(e, fixed(1.0, x)))))
    return where(compare(Op.LT, number_unary(Op.ABS, x), 1.0), near, sub(_half_exp(x), _half_exp(negative(x))))


def cosh(x):
    x = floating(x)
    return add(_half_exp(x), _half_exp(negative(x)))


def erfc(x):
    return sub(fixed(1.0, x), unary_float(Op.ERF, x))


@on_floats
def logaddexp(a, b):
    a, b = floating(a), floating(b)
    top = extremum(Op.MAX, a, b)
    gap = number_unary(Op.ABS, sub(a, b))
    smooth = add(top, unary_float(Op.LOG1P, unary_float(Op.EXP, negative(gap))))
    # Two equal infinities, whose difference is NaN.
    alike = logical(Op.AND, compare(Op.EQ, a, b), arith.float_test(Op.ISINF, a))
    return where(alike, a, smooth)


def xlogy(x, y):
    x, y = floating(x), floating(y)
    # Not for all y: the derivative in x is log y at x = 0 too.
    extreme = logical(Op.OR, compare(Op.LE, y, 0.0), signed_inf(y, 1.0))
    inner = where(logical(Op.AND, compare(Op.EQ, x, 0.0), extreme), fixed(0.0, x), mul(x, unary_float(Op.LOG, y)))
    return where(arith.float_test(Op.ISNAN, y), y, inner)


@on_floats
def hypot(a, b):
    """Scaled by the larger side, so that squares do not overflow; infinite where a side is, also beside a NaN (C99)."""
    a, b = number_unary(Op.ABS, a), number_unary(Op.ABS, b)
    large, small = extremum(Op.MAX, a, b), extremum(Op.MIN, a, b)
    ratio = div(small, where(compare(Op.EQ, large, fixed(0.0, a)), fixed(1.0, a), large))
    length = mul(large, unary_float(Op.SQRT, add(fixed(1.0, a), mul(ratio, ratio))))
    infinite = logical(Op.OR, arith.float_test(Op.ISINF, a), arith.float_test(Op.ISINF, b))
    return where(infinite, fixed(math.inf, a), length)


def lerp(start, end, weight):
    start, end, weight = lift(start), lift(end), lift(weight)
    gap = sub(end, start)
    low = add(start, mul(weight, gap))
    high = sub(end, mul(gap, sub(1.0, weight)) if isinstance(weight, Traced) else mul(gap, 1.0 - weight))
    if not isinstance(weight, Traced):
        return low if abs(weight) < 0.5 else high
    return where(compare(Op.LT, number_unary(Op.ABS, weight), 0.5), low, high)


def addcmul(x, a, b, *, value=1):
    product = mul(a, b)
    return add(x, product if value == 1 else mul(product, value))


def addcdiv(x, a, b, *, value=1):
    quotient = arith.true_div(a, b)
    return add(x, quotient if value == 1 else mul(quotient, value))


@on_floats
def frac(x):
    return sub(x, arith.rounding(Op.TRUNC, x))


def isfinite(x):
    return arith.invert(logical(Op.OR, arith.float_test(Op.ISNAN, x), arith.float_test(Op.ISINF, x)))


def signed_inf(x, sign: float):
    x = lift(x)
    if not x.node.dtype.is_float:
        return arith.emit(Op.AND, (arith.const(False, DType.BOOL),) * 2, DType.BOOL)
    return compare(Op.EQ, x, Traced(arith.const(sign * math.inf, x.node.dtype)))


def nan_to_num(x, nan=0.0, posinf=None, neginf=None):
    x = lift(x)
    if not x.node.dtype.is_float:
        return x
    limits = torch.finfo(x.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    result = where(signed_inf(x, 1.0), high, where(signed_inf(x, -1.0), low, x))
    return where(arith.float_test(Op.ISNAN, x), 0.0 if nan is None else nan, result)


def fmax(a, b, op=Op.MAX):
    a, b = lift(a), lift(b)
    best = extremum(op, a, b, tie=0)
    return where(arith.float_test(Op.ISNAN, a), b, where(arith.float_test(Op.ISNAN, b), a, best))


def masked_fill(x, mask, value):
    x = lift(x)
    filled = arith.as_node(lift(value), x.node.dtype)
    return where(mask, Traced(filled), x)


def any_lane(x: Lanes) -> Traced:
    return reduce(lambda a, b: logical(Op.OR, a, b), x.items) if len(x.items) > 1 else arith.truth(x.items[0])


def all_lanes(x: Lanes) -> Traced:
    return reduce(lambda a, b: logical(Op.AND, a, b), x.items) if len(x.items) > 1 else arith.truth(x.items[0])


def sum_lanes(x: Lanes) -> Traced:
    items = [i if i.node.dtype.is_float else arith.to_dtype(i, torch.int64) for i in x.items]
    return reduce(add, items)


def mean_lanes(x: Lanes) -> Traced:
    total = sum_lanes(x)
    return div(total, fixed(float(len(x.items)), total))


def max_lanes(x: Lanes) -> Traced:
    return _extreme_lane(Op.MAX, x)


def min_lanes(x: Lanes) -> Traced:
    return _extreme_lane(Op.MIN, x)


def _extreme_lane(op: Op, x: Lanes) -> Traced:
    """The largest or smallest lane. Where k lanes are equally so, each has 1/k of the gradient, as torch shares it."""
    best = reduce(lambda a, b: extremum(op, a, b), x.items)
    if len(x.items) < 3 or not best.node.dtype.is_float:
        return best
    alike = [compare(Op.EQ, item, best) for item in x.items]
    count = reduce(add, [where(c, fixed(1.0, best), fixed(0.0, best)) for c in alike])
    shared = reduce(add, [where(c, div(item, count), fixed(0.0, best)) for c, item in zip(alike, x.items)])
    # Of a lone lane, and beside a NaN, the value itself: to the last bit.
    return where(compare(Op.LT, fixed(1.0, best), count), shared, best)


def dot(a: Lanes, b: Lanes) -> Traced:
    if not (isinstance(a, Lanes) and isinstance(b, Lanes)) or a.shape != b.shape or a.ndim != 1:
        raise refuse("torch.dot / @ of something else than two vectors of one length",
                     "two rows of captured tensors, a[b, q] and c[b, k]")
    return reduce(add, (mul(x, y) for x, y in zip(a.items, b.items)))
