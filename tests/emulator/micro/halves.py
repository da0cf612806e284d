"""f16 and bf16 arithmetic, single and packed, against exact rationals."""

import math
from fractions import Fraction

from .exact import BF16, F16, F32, add, compare, fma, maximum, mul, patterns, sub
from .program import lanewise, pairs

N = 512


def _columns(f, count):
    a, b = pairs(patterns(f, N, 1), patterns(f, N, 2))
    c = patterns(f, N, 3)
    c = ((c[5:] + c) * 3)[: len(a)]
    return [a, b, c][:count]


def _single(name, f, count, scalar, **more):
    operands = ", ".join("{" + x + "}" for x in "dabc"[: count + 1])
    return lanewise(name, f"{name} {operands};", "h", [("h", v) for v in _columns(f, count)], scalar, **more)


def _packed(name, f, count, scalar, **more):
    operands = ", ".join("{" + x + "}" for x in "dabc"[: count + 1])
    columns = [("i", [x | y << 16 for x, y in zip(v, v[::-1])]) for v in _columns(f, count)]
    return lanewise(name, f"{name} {operands};", "i", columns,
                    lambda *xs: scalar(*(x & 0xFFFF for x in xs)) | scalar(*(x >> 16 for x in xs)) << 16, **more)


def _both(name, t, f, count, scalar):
    yield _single(f"{name}.{t}", f, count, scalar)
    yield _packed(f"{name}.{t}x2", f, count, scalar)


def _relu(f, x):
    return x if f.is_nan(x) else 0 if f.negative(x) else x


def _saturate(f, x):
    one = f.round(1)
    return 0 if f.is_nan(x) or f.negative(x) else min(x, one)


def _of(t, f):
    for name, g in (("add", add), ("sub", sub), ("mul", mul)):
        yield from _both(f"{name}.rn", t, f, 2, lambda a, b, g=g: g(f, a, b))
        if t == "f16":
            yield from _both(f"{name}.ftz", t, f, 2, lambda a, b, g=g: f.flush(g(f, f.flush(a), f.flush(b))))
            yield from _both(f"{name}.sat", t, f, 2, lambda a, b, g=g: _saturate(f, g(f, a, b)))
    yield from _both("fma.rn", t, f, 3, lambda a, b, c: fma(f, a, b, c))
    yield from _both("fma.rn.relu", t, f, 3, lambda a, b, c: _relu(f, fma(f, a, b, c)))
    for nan in (False, True):
        for name, sign in (("max", 1), ("min", -1)):
            yield from _both(name + (".NaN" if nan else ""), t, f, 2, lambda a, b, n=nan, s=sign: maximum(f, a, b, n, s))
    yield from _both("max.xorsign.abs", t, f, 2,
                     lambda a, b: maximum(f, a & 0x7FFF, b & 0x7FFF) & 0x7FFF | (a ^ b) & 0x8000)
    yield from _both("neg", t, f, 1, lambda a: 0x7FFF if f.is_nan(a) else a ^ 0x8000)
    yield from _both("abs", t, f, 1, lambda a: 0x7FFF if f.is_nan(a) else a & 0x7FFF)
    for c in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
        yield lanewise(f"setp.{c}.{t}", f"setp.{c}.{t} %p1, " + "{a}, {b}; selp.b32 {d}, 1, 0, %p1;", "i",
                       [("h", v) for v in _columns(f, 2)], lambda a, b, c=c: int(compare(f, c, a, b)))
    for c in ("eq", "lt", "ge"):
        columns = [("i", [x | y << 16 for x, y in zip(v, v[::-1])]) for v in _columns(f, 2)]
        yield lanewise(f"setp.{c}.{t}x2", f"setp.{c}.{t}x2 %p1|%p2, " + "{a}, {b}; selp.b32 %r40, 1, 0, %p1; "
                       "selp.b32 %r41, 2, 0, %p2; or.b32 {d}, %r40, %r41;", "i", columns,
                       lambda a, b, c=c: compare(f, c, a & 0xFFFF, b & 0xFFFF) | compare(f, c, a >> 16, b >> 16) << 1)
    # Mixed precision: halves times halves into f32.
    wide = patterns(F32, N, 4)
    a, b = _columns(f, 2)
    c = (wide * 3)[: len(a)]
    yield lanewise(f"fma.rn.f32.{t}", f"fma.rn.f32.{t} " + "{d}, {a}, {b}, {c};", "i", [("h", a), ("h", b), ("i", c)],
                   lambda a, b, c: fma(f, a, b, c, out=F32), arch="sm_100a")


def _approximations():
    """Within the documented error and one rounding to the format; tested where the result is normal."""
    for name, f, g, inputs in (
        ("ex2.approx.f16", F16, lambda x: 2.0**x, [F16.round(Fraction(i, 16)) for i in range(-190, 200)]),
        ("ex2.approx.ftz.bf16", BF16, lambda x: 2.0**x, [BF16.round(Fraction(i, 16)) for i in range(-700, 700)]),
        ("tanh.approx.f16", F16, math.tanh, [F16.round(Fraction(i, 32)) for i in range(-150, 150)]),
        ("tanh.approx.bf16", BF16, math.tanh, [BF16.round(Fraction(i, 32)) for i in range(-150, 150)]),
    ):
        # Widened to f32, so that the tolerance can be stated.
        t = name.split(".")[-1]
        error = 2.0**-9 if t == "f16" else 2.0**-7
        yield lanewise(name, name + " %h30, {a}; cvt.f32." + t + " {d}, %h30;", "i", [("h", inputs)],
                       lambda a, f=f, g=g: F32.round(Fraction(g(float(f.number(a)))), "rn"), tolerance=error)


def programs():
    yield from _of("f16", F16)
    yield from _of("bf16", BF16)
    yield from _approximations()
