"""f32, f64 and packed f32x2 instructions, against exact rationals; approximations against their documented error (PTX ISA)."""

import math
from fractions import Fraction

from .exact import F32, F64, add, bits32, compare, float32, fma, maximum, mul, patterns, sub
from .program import lanewise, pairs

N = 512


def columns(f, count, letter):
    a, b = pairs(patterns(f, N, 1), patterns(f, N, 2))
    if count == 1:
        return [(letter, patterns(f, N, 1))]
    c = patterns(f, N, 3)
    c = (c[5:] + c)[: len(a)]
    c = (c * (len(a) // len(c) + 1))[: len(a)]
    return [(letter, a), (letter, b), (letter, c)][:count]


def _operands(count):
    return ", ".join("{" + x + "}" for x in "dabc"[: count + 1])


def op(name, f, letter, count, scalar, **more):
    return lanewise(name, f"{name} {_operands(count)};", letter, columns(f, count, letter), scalar, any_nan=f is F64, **more)


def saturate(x: int) -> int:
    if F32.is_nan(x) or x >> 31:
        return 0
    return min(x, 0x3F800000)


def _arithmetic():
    for name, g in (("add", add), ("sub", sub), ("mul", mul)):
        for mode in ("rn", "rm", "rp", "rz"):
            yield op(f"{name}.{mode}.f32", F32, "i", 2, lambda a, b, g=g, m=mode: g(F32, a, b, m))
            yield op(f"{name}.{mode}.f64", F64, "l", 2, lambda a, b, g=g, m=mode: g(F64, a, b, m))
        yield op(f"{name}.ftz.f32", F32, "i", 2, lambda a, b, g=g: F32.flush(g(F32, F32.flush(a), F32.flush(b))))
        yield op(f"{name}.sat.f32", F32, "i", 2, lambda a, b, g=g: saturate(g(F32, a, b)))
    for mode in ("rn", "rm", "rp", "rz"):
        yield op(f"fma.{mode}.f32", F32, "i", 3, lambda a, b, c, m=mode: fma(F32, a, b, c, m))
    yield op("fma.rn.ftz.f32", F32, "i", 3,
             lambda a, b, c: F32.flush(fma(F32, *(F32.flush(x) for x in (a, b, c)))))
    yield op("fma.rn.sat.f32", F32, "i", 3, lambda a, b, c: saturate(fma(F32, a, b, c)))
    yield op("fma.rn.f64", F64, "l", 3, lambda a, b, c: fma(F64, a, b, c))


def _packed():
    def halves(g):
        return lambda *xs: g(*(x & 0xFFFFFFFF for x in xs)) | g(*(x >> 32 for x in xs)) << 32

    def both(count):
        found = columns(F32, count, "i")
        return [("l", [x | y << 32 for x, y in zip(values, values[::-1])]) for _, values in found]

    def packed(name, count, g):
        return lanewise(name, f"{name} {_operands(count)};", "l", both(count), halves(g), arch="sm_100a")

    for mode in ("rn", "rm", "rz", "rp"):
        yield packed(f"add.{mode}.f32x2", 2, lambda a, b, m=mode: add(F32, a, b, m))
        yield packed(f"sub.{mode}.f32x2", 2, lambda a, b, m=mode: sub(F32, a, b, m))
        yield packed(f"mul.{mode}.f32x2", 2, lambda a, b, m=mode: mul(F32, a, b, m))
        yield packed(f"fma.{mode}.f32x2", 3, lambda a, b, c, m=mode: fma(F32, a, b, c, m))
    yield packed("fma.rn.ftz.f32x2", 3, lambda a, b, c: F32.flush(fma(F32, *(F32.flush(x) for x in (a, b, c)))))


def divide(f, a, b):
    if f.is_nan(a) or f.is_nan(b):
        return f.nan
    x, y, negative = f.number(a), f.number(b), f.negative(a) != f.negative(b)
    if abs(x) == math.inf:
        return f.nan if abs(y) == math.inf else f.infinity | (f.sign if negative else 0)
    if y == 0:
        return f.nan if x == 0 else f.infinity | (f.sign if negative else 0)
    return f.round(Fraction(0) if abs(y) == math.inf else x / y, "rn", negative)


def root(f, a):
    if f.is_nan(a) or (f.negative(a) and f.number(a) != 0):
        return f.nan
    if f.number(a) in (0, math.inf):
        return a
    # Enough bits that truncation of the root and a sticky bit decide the rounding.
    x = f.number(a)
    scaled = x.numerator << 2400
    whole = math.isqrt(scaled // x.denominator)
    sticky = Fraction(1, 4) if whole * whole * x.denominator != scaled else 0
    return f.round((whole + sticky) / Fraction(2) ** 1200, "rn")


def _others():
    for f, letter, t in ((F32, "i", "f32"), (F64, "l", "f64")):
        yield op(f"div.rn.{t}", f, letter, 2, lambda a, b, f=f: divide(f, a, b))
        yield op(f"rcp.rn.{t}", f, letter, 1, lambda a, f=f: divide(f, f.round(Fraction(1)), a))
        # An H200 answers the canonical NaN.
        yield op(f"neg.{t}", f, letter, 1, lambda a, f=f: f.nan if f.is_nan(a) else a ^ f.sign)
        yield op(f"sqrt.rn.{t}", f, letter, 1, lambda a, f=f: root(f, a))
        yield op(f"abs.{t}", f, letter, 1, lambda a, f=f: f.nan if f.is_nan(a) else a & (f.sign - 1))
        yield op(f"max.{t}", f, letter, 2, lambda a, b, f=f: maximum(f, a, b))
        yield op(f"min.{t}", f, letter, 2, lambda a, b, f=f: maximum(f, a, b, sign=-1))
        for c in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
            yield lanewise(f"setp.{c}.{t}", f"setp.{c}.{t} %p1, " + "{a}, {b}; selp.b32 {d}, 1, 0, %p1;", "i",
                           columns(f, 2, letter), lambda a, b, c=c, f=f: int(compare(f, c, a, b)))
    yield op("max.NaN.f32", F32, "i", 2, lambda a, b: maximum(F32, a, b, nan=True))
    yield op("min.NaN.f32", F32, "i", 2, lambda a, b: maximum(F32, a, b, nan=True, sign=-1))
    yield op("max.ftz.f32", F32, "i", 2, lambda a, b: maximum(F32, F32.flush(a), F32.flush(b)))
    yield lanewise("max.f32 of three", "max.f32 {d}, {a}, {b}, {c};", "i", columns(F32, 3, "i"),
                   lambda a, b, c: maximum(F32, maximum(F32, a, b), c), arch="sm_100a")
    yield op("copysign.f32", F32, "i", 2, lambda a, b: b & 0x7FFFFFFF | a & 0x80000000)


def _approximations():
    """name, function, error: relative to the result (PTX ISA tables; ulp counted as 2^-23), on inputs where it is so bounded."""

    def on(values, g):
        def scalar(a):
            x = float32(F32.flush(a))
            if x != x:
                return F32.nan
            try:
                return F32.flush(bits32(g(x)))
            except (ValueError, ZeroDivisionError):
                return F32.nan
            except OverflowError:
                return F32.infinity
        return [("i", values)], scalar

    def reciprocal(x):
        return math.copysign(math.inf, x) if x == 0 else 1 / x

    def log2(x):
        return -math.inf if x == 0 else math.log2(x)

    def exp2(x):
        return 0.0 if x < -1000 else math.inf if x > 1000 else 2.0**x

    def rsqrt(x):
        return math.copysign(math.inf, x) if x == 0 else 1 / math.sqrt(x)

    any_size = patterns(F32, N, 5)
    positive = [x & 0x7FFFFFFF for x in any_size]
    far_from_one = [x for x in positive if not 0x3F000000 <= x <= 0x40000000]
    near = [bits32(i / 16 - 15.0) for i in range(480)]
    for name, values, g, error in (
        ("ex2.approx.ftz.f32", near + any_size, exp2, 2.0**-22),
        ("rcp.approx.ftz.f32", any_size, reciprocal, 2.0**-23),
        ("rsqrt.approx.ftz.f32", positive, rsqrt, 2.0**-22),
        ("sqrt.approx.ftz.f32", positive, math.sqrt, 2.0**-22),
        ("lg2.approx.ftz.f32", far_from_one, log2, 2.0**-22),
        ("tanh.approx.f32", near, math.tanh, 2.0**-10.987),
    ):
        inputs, scalar = on(values, g)
        yield lanewise(name, name + " {d}, {a};", "i", inputs, scalar, tolerance=error)


def programs():
    yield from _arithmetic()
    yield from _packed()
    yield from _others()
    yield from _approximations()
