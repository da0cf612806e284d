"""cvt among integers, f64, f32, f16, bf16, tf32 and the small formats, against exact rationals."""

import math
from fractions import Fraction

from .exact import BF16, F16, F32, F64, Format, patterns
from .integers import signed
from .program import integers_of, lanewise

N = 512
FLOATS = {"f64": (F64, "l"), "f32": (F32, "i"), "f16": (F16, "h"), "bf16": (BF16, "h")}
INTEGERS = {f"{k}{n}": (k == "s", n, {8: "h", 16: "h", 32: "i", 64: "l"}[n]) for k in "su" for n in (8, 16, 32, 64)}
E4M3, E5M2 = Format(4, 3, 0x7F), Format(5, 2, 0x7F)


def _extended(value: int, is_signed: bool, bits: int) -> int:
    """A narrow result in its register: 8-bit ones are extended to 16 bits."""
    return value if is_signed else value & ((1 << bits) - 1)


def _integers():
    for d, (ds, dn, dl) in INTEGERS.items():
        for a, (sa, an, al) in INTEGERS.items():
            source = [("l" if an == 64 else "i" if an == 32 else "h", integers_of(an if an > 8 else 16, N, 3))]

            def value(x, sa=sa, an=an):
                return signed(x, an) if sa else x & ((1 << an) - 1)

            def wrap(x, v=value, ds=ds, dn=dn):
                return _extended(signed(v(x), dn) if ds else v(x), ds, dn)

            def clamp(x, v=value, ds=ds, dn=dn):
                lo, hi = (-(1 << dn - 1), (1 << dn - 1) - 1) if ds else (0, (1 << dn) - 1)
                return max(lo, min(hi, v(x)))

            if d != a:
                yield lanewise(f"cvt.{d}.{a}", f"cvt.{d}.{a} " + "{d}, {a};", dl, source, wrap)
            narrows = dn < an or (dn == an and ds != sa) or (sa and not ds)  # ptxas takes .sat where it can saturate
            if d != a and narrows:
                yield lanewise(f"cvt.sat.{d}.{a}", f"cvt.sat.{d}.{a} " + "{d}, {a};", dl, source, clamp)


def _to_and_from_integers():
    for t, (f, letter) in FLOATS.items():
        for i, (is_signed, bits, il) in INTEGERS.items():
            if t == "bf16" and bits == 8:
                continue
            values = integers_of(max(bits, 16), N, 4)
            for mode in ("rn", "rz", "rm", "rp"):
                yield lanewise(f"cvt.{mode}.{t}.{i}", f"cvt.{mode}.{t}.{i} " + "{d}, {a};", letter, [(il, values)],
                               lambda x, f=f, s=is_signed, n=bits, m=mode: f.round(
                                   Fraction(signed(x, n) if s else x & ((1 << n) - 1)), m))
            for mode, whole in (("rni", round), ("rzi", math.trunc), ("rmi", math.floor), ("rpi", math.ceil)):
                def to_int(x, f=f, t=t, s=is_signed, n=bits, whole=whole):
                    lo, hi = (-(1 << n - 1), (1 << n - 1) - 1) if s else (0, (1 << n) - 1)
                    if f.is_nan(x):
                        return 1 << n - 1 if n == 64 or t == "f64" and n == 32 else 0
                    v = f.number(x)
                    return hi if v == math.inf else lo if v == -math.inf else max(lo, min(hi, whole(v)))

                values_f = [x for x in patterns(f, N, 5) if not (t == "f64" and bits < 32 and f.is_nan(x))]
                yield lanewise(f"cvt.{mode}.{i}.{t}", f"cvt.{mode}.{i}.{t} " + "{d}, {a};", il, [(letter, values_f)], to_int)


def _narrow(f, out, x, mode, relu=False, finite=False):
    if f.is_nan(x):
        if f is not F64:
            return out.nan
        # From f64 an H200 keeps the upper bits of the payload, with the quiet bit set.
        kept = (x & (f.sign - 1)) >> (f.mantissa - out.mantissa) & ((1 << out.mantissa) - 1)
        return out.infinity | 1 << (out.mantissa - 1) | kept
    if relu and f.negative(x):
        return 0
    return out.round(f.number(x), mode, f.negative(x), finite)


def _between_floats():
    f32 = patterns(F32, N, 6)
    for d, (out, dl) in (("f16", FLOATS["f16"]), ("bf16", FLOATS["bf16"])):
        for mode in ("rn", "rz"):
            for name, relu in (("", False), (".relu", True)):
                yield lanewise(f"cvt.{mode}{name}.{d}.f32", f"cvt.{mode}{name}.{d}.f32 " + "{d}, {a};", dl, [("i", f32)],
                               lambda x, o=out, m=mode, r=relu: _narrow(F32, o, x, m, r))
                yield lanewise(f"cvt.{mode}{name}.{d}x2.f32", f"cvt.{mode}{name}.{d}x2.f32 " + "{d}, {a}, {b};", "i",
                               [("i", f32), ("i", f32[::-1])],
                               lambda x, y, o=out, m=mode, r=relu: _narrow(F32, o, x, m, r) << 16 | _narrow(F32, o, y, m, r))
    for d in ("f32", "f16", "bf16"):
        out, dl = FLOATS[d]
        for mode in ("rn", "rz", "rm", "rp"):
            yield lanewise(f"cvt.{mode}.{d}.f64", f"cvt.{mode}.{d}.f64 " + "{d}, {a};", dl, [("l", [
                x for x in patterns(F64, N, 7) if not (F64.is_nan(x) and F64.negative(x))] + [
                F64.round(F32.number(x)) for x in f32 if not F32.is_nan(x)])], lambda x, o=out, m=mode: _narrow(F64, o, x, m))
    for a in ("f16", "bf16"):
        f, al = FLOATS[a]
        values = patterns(f, N, 8)
        yield lanewise(f"cvt.f32.{a}", f"cvt.f32.{a} " + "{d}, {a};", "i", [(al, values)],
                       lambda x, f=f: x << 16 if f is BF16 else _narrow(f, F32, x, "rn"))
    yield lanewise("cvt.f64.f32", "cvt.f64.f32 {d}, {a};", "l", [("i", [x for x in f32 if not F32.is_nan(x)])],
                   lambda x: _narrow(F32, F64, x, "rn"))
    for t in ("f64", "f32", "f16"):
        f, letter = FLOATS[t]
        values = [x for x in patterns(f, N, 9) if not f.is_nan(x)]
        for mode, whole in (("rni", round), ("rzi", math.trunc), ("rmi", math.floor), ("rpi", math.ceil)):
            yield lanewise(f"cvt.{mode}.{t}.{t}", f"cvt.{mode}.{t}.{t} " + "{d}, {a};", letter, [(letter, values)],
                           lambda x, f=f, w=whole: x if abs(f.number(x)) == math.inf else f.round(
                               Fraction(w(f.number(x))), "rn", f.negative(x)))
    yield lanewise("cvt.rna.tf32.f32", "cvt.rna.tf32.f32 {d}, {a};", "i", [("i", [x for x in f32 if not F32.is_nan(x)])],
                   lambda x: x + 0x1000 & ~0x1FFF if x & 0x7FFFFFFF < 0x7F800000 else x)


def _to_small(out: Format, x: int, largest: int) -> int:
    """satfinite: NaN stays NaN, what is too large becomes the largest number."""
    sign = x >> 31 << 7
    if F32.is_nan(x):
        return 0x7F
    value = F32.number(x)
    if abs(value) == math.inf:
        return sign | largest
    # One exponent bit more, so that e4m3's top binade is ordinary.
    wide = Format(out.exponent + 1, out.mantissa, 0)
    wide.bias = out.bias
    return sign | min(wide.round(abs(value), "rn"), largest)


def _small_number(out: Format, x: int, top_is_ordinary: bool):
    if x & 0x7F == 0x7F if top_is_ordinary else x & 0x7F > out.infinity:
        return None
    e, m = x >> out.mantissa & ((1 << out.exponent) - 1), x & ((1 << out.mantissa) - 1)
    if not top_is_ordinary and x & 0x7F == out.infinity:
        return -math.inf if x >> 7 else math.inf
    value = Fraction(m + (1 << out.mantissa if e else 0)) * Fraction(2) ** (max(e, 1) - out.bias - out.mantissa)
    return -value if x >> 7 else value


def _eight_bits():
    f32 = patterns(F32, N, 10) + [F32.round(Fraction(i, 64)) for i in range(-400, 400, 3)]
    for name, out, largest in (("e4m3", E4M3, 0x7E), ("e5m2", E5M2, 0x7B)):
        yield lanewise(f"cvt.rn.satfinite.{name}x2.f32", f"cvt.rn.satfinite.{name}x2.f32 " + "{d}, {a}, {b};", "h",
                       [("i", f32), ("i", f32[::-1])],
                       lambda x, y, o=out, top=largest: _to_small(o, x, top) << 8 | _to_small(o, y, top))

        def widen(x, o=out, name=name):
            def one(c):
                v = _small_number(o, c, name == "e4m3")
                return F16.nan if v is None else F16.round(v, "rn", bool(c >> 7))
            return one(x >> 8) << 16 | one(x & 255)

        yield lanewise(f"cvt.rn.f16x2.{name}x2", f"cvt.rn.f16x2.{name}x2 " + "{d}, {a};", "i",
                       [("h", [i | (255 - i) << 8 for i in range(256)])], widen)


def programs():
    yield from _integers()
    yield from _to_and_from_integers()
    yield from _between_floats()
    yield from _eight_bits()
