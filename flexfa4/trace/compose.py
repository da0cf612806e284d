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


def relu(x):
    x = lift(x)
    if x.node.dtype.is_bool:
        raise refuse("relu of a bool", "x.int()")
    return extremum(Op.MAX, x, 0, tie=1)


def sigmoid(x):
    return unary_float(Op.SIGMOID, x)


@on_floats
def silu(x):
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
def leaky_relu(x, negative_slope=0.01):
    return where(compare(Op.LT, 0.0, x), x, mul(x, negative_slope))


@on_floats
def elu(x, alpha=1.0):
    return where(compare(Op.LT, 0.0, x), x, mul(unary_float(Op.EXPM1, x), alpha))


def relu6(x):
    return hardtanh(x, 0.0, 6.0)


def hardtanh(x, min_val=-1.0, max_val=1.0):
    x = lift(x)
    dtype = arith.dtype_of(x)
    if dtype.is_bool or (dtype is DType.U8 and min(min_val, max_val) < 0):
        raise refuse(f"hardtanh of {dtype!r}" + ("" if dtype.is_bool else " with a negative limit"), "x.float() first")
    if dtype.is_int:
        min_val, max_val = int(min_val), int(max_val)
    return clamp(x, min_val, max_val, tie=1)


@on_floats
def hardsigmoid(x):
    return div(clamp(add(x, 3.0), 0.0, 6.0, tie=1), fixed(6.0, x))


@on_floats
def hardswish(x):
    return mul(x, hardsigmoid(x))


def softsign(x):
    return div(x, add(number_unary(Op.ABS, x), 1))


@on_floats
def mish(x):
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


# (1 + 2 x) exp(x^2) erfc(x) as a polynomial in t = (x - 4) / (x + 4), lowest power first, for 0 <= x <= LIMIT, where erfc is 0.
# Interpolated at Chebyshev points in 40 digits; relative error 1.1e-7 in float32, 2.2e-16 in float64, rounding included.
_ERFC_F32 = (1.2329951346455308, -0.1396209362417063, 0.0153775926455678, 0.06808839901738802, -0.10100142979083368,
             0.09386348786874633, -0.06650937819026811, 0.03638347371266958, -0.01629235707904332, 0.0065980025036742685,
             0.0007428427849099372)
_ERFC_F64 = (1.2329951186255526, -0.1396211168405629, 0.01537965210262074, 0.06809705425473732, -0.10103906603635213,
             0.09373283499679412, -0.06633036581152939, 0.03716751556249286, -0.016197734059115006, 0.005031969755895426,
             -0.00075777334141333, -0.00019925550755614952, 0.000150622243948303, -2.4403169244974074e-05,
             -1.1224789135154701e-05, 5.7178872846321855e-06, 3.0135049944875397e-07, -8.351619688696847e-07,
             6.270727157198311e-08, 1.1534943745754157e-07, -7.71541861441783e-09, -1.3670989863347383e-08,
             -1.8206098680308682e-09)
_ERFC_LIMIT = {DType.F32: 11.0, DType.F64: 28.0}


def erfc(x):
    """Accurate relative to erfc itself: 1 - erf(x) has no digit left beyond x = 4 in float32, 6 in float64."""
    x = floating(x)
    outer = x.node.dtype
    x = Traced(arith.cast(x.node, DType.F32 if outer in HALVES else outer))
    below = compare(Op.LT, x, 0.0)
    y = extremum(Op.MIN, where(below, negative(x), x), fixed(_ERFC_LIMIT[x.node.dtype], x), tie=0)
    t = div(sub(y, fixed(4.0, x)), add(y, fixed(4.0, x)))
    coefficients = _ERFC_F32 if x.node.dtype is DType.F32 else _ERFC_F64
    series = fixed(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        series = add(mul(series, t), fixed(c, x))
    # exp(-y^2) in two factors, of which the first has an exact exponent: y * y as one loses y^2 units of the last place.
    near = div(arith.rounding(Op.TRUNC, mul(y, fixed(16.0, x))), fixed(16.0, x))
    rest = unary_float(Op.EXP, negative(mul(sub(y, near), add(y, near))))
    tail = div(mul(mul(series, unary_float(Op.EXP, negative(mul(near, near)))), rest), add(mul(y, fixed(2.0, x)), fixed(1.0, x)))
    return Traced(arith.cast(where(below, sub(fixed(2.0, x), tail), tail).node, outer))


@on_floats
def logaddexp(a, b):
    a, b = floating(a), floating(b)
    top = extremum(Op.MAX, a, b)
    gap = number_unary(Op.ABS, sub(a, b))
    smooth = add(top, unary_float(Op.LOG1P, unary_float(Op.EXP, negative(gap))))
    # Two equal infinities, whose difference is NaN.
    alike = logical(Op.AND, compare(Op.EQ, a, b), arith.float_test(Op.ISINF, a))
    return where(alike, a, smooth)


def _alike(*xs):
    """Operands in their common type, halves in float32; and the function that rounds a result to that type."""
    xs = tuple(map(lift, xs))
    dtype = arith.dtype_of(*xs)
    inner = DType.F32 if dtype in HALVES else dtype
    return dtype, tuple(Traced(arith.as_node(x, inner)) for x in xs), lambda result: Traced(arith.cast(result.node, dtype))


def xlogy(x, y):
    x, y = lift(x), lift(y)
    if not arith.dtype_of(x, y).is_float:
        x, y = floating(x), floating(y)
    _, (x, y), rounded = _alike(x, y)
    # Not for all y: the derivative in x is log y at x = 0 too.
    extreme = logical(Op.OR, compare(Op.LE, y, 0.0), signed_inf(y, 1.0))
    inner = where(logical(Op.AND, compare(Op.EQ, x, 0.0), extreme), fixed(0.0, x), mul(x, unary_float(Op.LOG, y)))
    return rounded(where(arith.float_test(Op.ISNAN, y), y, inner))


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
    kinds = [arith.dtype_of(x) for x in (start, end)]
    if not kinds[0].is_float or kinds[0] is not kinds[1]:
        raise refuse(f"lerp from {kinds[0]!r} to {kinds[1]!r}", "two floats of one type: x.float() first")
    if isinstance(weight, Traced):
        _, (start, end, weight), rounded = _alike(start, end, weight)
    else:
        _, (start, end), rounded = _alike(start, end)
    gap = sub(end, start)
    low = add(start, mul(weight, gap))
    high = sub(end, mul(gap, sub(1.0, weight)) if isinstance(weight, Traced) else mul(gap, 1.0 - weight))
    if not isinstance(weight, Traced):
        return rounded(low if abs(weight) < 0.5 else high)
    return rounded(where(compare(Op.LT, number_unary(Op.ABS, weight), 0.5), low, high))


def addcmul(x, a, b, *, value=1):
    dtype, (x, a, b), rounded = _alike(x, a, b)
    if dtype.is_bool:
        raise refuse("addcmul of bools", "x.int() first")
    if dtype.is_int:
        value = int(value)              # as torch rounds it
    product = mul(a, b)
    return rounded(add(x, product if value == 1 else mul(product, value)))


def addcdiv(x, a, b, *, value=1):
    if not arith.dtype_of(lift(a), lift(b)).is_float:
        raise refuse("addcdiv with a quotient of integers", "x + value * a / b")
    _, (x, a, b), rounded = _alike(x, a, b)
    quotient = arith.true_div(a, b)
    return rounded(add(x, quotient if value == 1 else mul(quotient, value)))


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
        return arith.copied(x)
    limits = torch.finfo(x.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    result = where(signed_inf(x, 1.0), high, where(signed_inf(x, -1.0), low, x))
    return where(arith.float_test(Op.ISNAN, x), 0.0 if nan is None else nan, result)


def fmax(a, b, op=Op.MAX):
    a, b = lift(a), lift(b)
    best = extremum(op, a, b, tie=0)
    return where(arith.float_test(Op.ISNAN, a), b, where(arith.float_test(Op.ISNAN, b), a, best))


def masked_fill(x, mask, value):
    x, value = lift(x), lift(value)
    if not isinstance(value, Traced):
        value = arith.converted(value, x.node.dtype, "masked_fill")
    filled = arith.as_node(value, x.node.dtype)
    return where(mask, Traced(filled), x)


def any_lane(x: Lanes) -> Traced:
    return reduce(lambda a, b: logical(Op.OR, a, b), x.items) if len(x.items) > 1 else arith.truth(x.items[0])


def all_lanes(x: Lanes) -> Traced:
    return reduce(lambda a, b: logical(Op.AND, a, b), x.items) if len(x.items) > 1 else arith.truth(x.items[0])


def sum_lanes(x: Lanes) -> Traced:
    """Halves are added up in float32 and rounded once, as torch does."""
    return _rounded_once(_wide_sum(x.items), x.items[0])


def mean_lanes(x: Lanes) -> Traced:
    if not x.items[0].node.dtype.is_float:
        raise refuse(f"mean() of {x.dtype}", "x.float().mean()")
    total = _wide_sum(x.items)
    return _rounded_once(div(total, fixed(float(len(x.items)), total)), x.items[0])


def _wide_sum(items: list[Traced]) -> Traced:
    wide = [i if i.node.dtype in (DType.F32, DType.F64) else
            arith.to_dtype(i, torch.float32 if i.node.dtype.is_float else torch.int64) for i in items]
    return reduce(add, wide)


def _rounded_once(total: Traced, like: Traced) -> Traced:
    return Traced(arith.cast(total.node, like.node.dtype)) if like.node.dtype in HALVES else arith.copied(total)


def max_lanes(x: Lanes) -> Traced:
    return _extreme_lane(Op.MAX, x)


def min_lanes(x: Lanes) -> Traced:
    return _extreme_lane(Op.MIN, x)


def _extreme_lane(op: Op, x: Lanes) -> Traced:
    """The largest or smallest lane. Where k lanes are equally so, each has 1/k of the gradient, as torch shares it."""
    best = reduce(lambda a, b: extremum(op, a, b), x.items)
    if len(x.items) < 3 or not best.node.dtype.is_float:
        return arith.copied(best)
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
