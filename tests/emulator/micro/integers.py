"""Integer, logic and bit-field instructions, against Python's integers."""

from .program import integers_of, lanewise, pairs

N = 512
M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def trunc_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _two(name, letter, f, text=None, result=None, seed=1, second=None):
    bits = {"h": 16, "i": 32, "l": 64}[letter]
    a, b = pairs(integers_of(bits, N, seed), integers_of(bits, N, seed + 1))
    if second:
        b = [second(x) for x in b]
    return lanewise(name, (text or name + " {{d}}, {{a}}, {{b}};".replace("{{", "{").replace("}}", "}")), result or letter,
                    [(letter, a), (letter, b)], f)


def _three(name, letters, result, f, seed=3, third=None):
    columns = []
    for i, letter in enumerate(letters):
        values = integers_of({"h": 16, "i": 32, "l": 64}[letter], N, seed + i)
        shift = 5 * i
        columns.append((letter, values[shift:] + values[:shift]))
    if third:
        columns[2] = (columns[2][0], [third(x) for x in columns[2][1]])
    return lanewise(name, name + " {d}, {a}, {b}, {c};", result, columns, f)


def _one(name, letter, result, f):
    return lanewise(name, name + " {d}, {a};", result, [(letter, integers_of({"h": 16, "i": 32, "l": 64}[letter], N, 9))], f)


def _arithmetic():
    for letter, bits in (("h", 16), ("i", 32), ("l", 64)):
        for kind in "us":
            t = f"{kind}{bits}"

            def v(x, kind=kind, bits=bits):
                return signed(x, bits) if kind == "s" else x

            yield _two(f"add.{t}", letter, lambda a, b, v=v: v(a) + v(b))
            yield _two(f"sub.{t}", letter, lambda a, b, v=v: v(a) - v(b))
            yield _two(f"mul.lo.{t}", letter, lambda a, b, v=v: v(a) * v(b))
            yield _two(f"mul.hi.{t}", letter, lambda a, b, v=v, n=bits: (v(a) * v(b)) >> n)
            yield _two(f"max.{t}", letter, lambda a, b, v=v: max(v(a), v(b)))
            yield _two(f"min.{t}", letter, lambda a, b, v=v: min(v(a), v(b)))
            yield _two(f"div.{t}", letter, lambda a, b, v=v: trunc_div(v(a), v(b)), second=lambda b: b or 1)
            yield _two(f"rem.{t}", letter, lambda a, b, v=v: v(a) - v(b) * trunc_div(v(a), v(b)), second=lambda b: b or 1)
            yield _three(f"mad.lo.{t}", letter * 3, letter, lambda a, b, c: a * b + c)
            if bits < 64:
                wide = {"h": "i", "i": "l"}[letter]
                yield _two(f"mul.wide.{t}", letter, lambda a, b, v=v: v(a) * v(b), result=wide)
                yield _three(f"mad.wide.{t}", letter * 2 + wide, wide, lambda a, b, c, v=v: v(a) * v(b) + c)
                yield _three(f"mad.hi.{t}", letter * 3, letter, lambda a, b, c, v=v, n=bits: ((v(a) * v(b)) >> n) + c)
            for op, f in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
                holds = {"==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
                         "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b}[f]
                text = f"setp.{op}.{t} %p1, " + "{a}, {b}; selp.b32 {d}, 1, 0, %p1;"
                yield _two(f"setp.{op}.{t}", letter, lambda a, b, v=v, h=holds: int(h(v(a), v(b))), text, "i")


def _logic():
    for letter, bits in (("h", 16), ("i", 32), ("l", 64)):
        t = f"b{bits}"
        yield _two(f"and.{t}", letter, lambda a, b: a & b)
        yield _two(f"or.{t}", letter, lambda a, b: a | b)
        yield _two(f"xor.{t}", letter, lambda a, b: a ^ b)
        yield _one(f"not.{t}", letter, letter, lambda a: ~a)
        amounts = integers_of(32, N, 5)
        values = integers_of(bits, N, 6)
        values = values[7:] + values[:7]
        for name, f in ((f"shl.{t}", lambda a, n, w=bits: 0 if n >= w else a << n),
                        (f"shr.u{bits}", lambda a, n, w=bits: 0 if n >= w else a >> n),
                        (f"shr.s{bits}", lambda a, n, w=bits: signed(a, w) >> min(n, w))):
            yield lanewise(name, name + " {d}, {a}, {b};", letter, [(letter, values), ("i", amounts)], f)


def _bits():
    yield _one("popc.b32", "i", "i", lambda a: a.bit_count())
    yield _one("popc.b64", "l", "i", lambda a: a.bit_count())
    yield _one("clz.b32", "i", "i", lambda a: 32 - a.bit_length())
    yield _one("clz.b64", "l", "i", lambda a: 64 - a.bit_length())
    yield _one("brev.b32", "i", "i", lambda a: int(f"{a:032b}"[::-1], 2))
    yield _one("brev.b64", "l", "l", lambda a: int(f"{a:064b}"[::-1], 2))
    yield _one("abs.s32", "i", "i", lambda a: abs(signed(a, 32)))
    yield _one("neg.s64", "l", "l", lambda a: -a)
    yield _one("bfind.u32", "i", "i", lambda a: a.bit_length() - 1)
    yield _one("bfind.s64", "l", "i", lambda a: (a if not a >> 63 else ~a & M64).bit_length() - 1)
    yield _one("bfind.shiftamt.u32", "i", "i", lambda a: 32 - a.bit_length() if a else -1)

    def bfe(a, p, n, width, sign):
        p, n = p & 255, n & 255
        top = a >> min(p + n - 1, width - 1) & 1 if sign and n else 0
        return sum(((a >> (p + i) & 1) if i < n and p + i < width else top) << i for i in range(width))

    def small(x):
        return x % 70

    def three(name, letter, f, sign=False):
        values = integers_of(64 if letter == "l" else 32, N, 11)
        return lanewise(name, name + " {d}, {a}, {b}, {c};", letter,
                        [(letter, values), ("i", [small(x * 7) for x in values]), ("i", [small(x * 3 + 1) for x in values])], f)

    yield three("bfe.u32", "i", lambda a, p, n: bfe(a, p, n, 32, False))
    yield three("bfe.s32", "i", lambda a, p, n: bfe(a, p, n, 32, True))
    yield three("bfe.u64", "l", lambda a, p, n: bfe(a, p, n, 64, False))
    yield three("bfe.s64", "l", lambda a, p, n: bfe(a, p, n, 64, True))
    bfi = "bfi.b32 {d}, {a}, {b}, {c}, 9;"
    mask = (1 << 9) - 1
    yield lanewise("bfi.b32", bfi, "i", [("i", integers_of(32, N, 12)), ("i", integers_of(32, N, 13)[::-1]),
                                         ("i", [x % 40 for x in integers_of(32, N, 14)])],
                   lambda a, b, p: b & ~(mask << p) | (a & mask) << p if p < 64 else b)
    for lut in (0xCA, 0x96, 0xE8):
        yield lanewise(f"lop3.b32 {lut:#x}", "lop3.b32 {d}, {a}, {b}, {c}, " + str(lut) + ";", "i",
                       [("i", integers_of(32, N, s)) for s in (15, 16, 17)],
                       lambda a, b, c, lut=lut: sum((lut >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i
                                                    for i in range(32)))

    def prmt(a, b, s):
        pool, out = [(a | b << 32) >> 8 * i & 255 for i in range(8)], 0
        for i in range(4):
            k = s >> 4 * i & 15
            byte = pool[k & 7]
            out |= (byte if k < 8 else (255 if byte >> 7 else 0)) << 8 * i
        return out

    yield _three("prmt.b32", "iii", "i", prmt)
    for mode, pick in {"f4e": lambda s, i: s + i, "b4e": lambda s, i: (s - i) % 8, "rc8": lambda s, i: s,
                       "ecl": lambda s, i: max(s, i), "ecr": lambda s, i: min(s, i), "rc16": lambda s, i: 2 * (s & 1) + i % 2
                       }.items():
        yield _three(f"prmt.b32.{mode}", "iii", "i", lambda a, b, s, f=pick: sum(
            ((a | b << 32) >> 8 * f(s & 3, i) & 255) << 8 * i for i in range(4)))
    for way in "lr":
        for mode in ("wrap", "clamp"):
            def shf(a, b, n, way=way, mode=mode):
                n = n & 31 if mode == "wrap" else min(n, 32)
                x = a | b << 32
                return (x << n) >> 32 if way == "l" else x >> n
            yield _three(f"shf.{way}.{mode}.b32", "iii", "i", shf, third=lambda x: x % 50)


def _packed():
    def s24(x):
        return signed(x, 24)

    yield _two("mul24.lo.s32", "i", lambda a, b: s24(a) * s24(b))
    yield _two("mul24.hi.s32", "i", lambda a, b: s24(a) * s24(b) >> 16)
    yield _two("mul24.hi.u32", "i", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16)
    yield _three("mad24.lo.u32", "iii", "i", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c)
    yield _three("dp4a.s32.s32", "iii", "i", lambda a, b, c: c + sum(
        signed(a >> 8 * i, 8) * signed(b >> 8 * i, 8) for i in range(4)))
    yield _three("dp4a.u32.s32", "iii", "i", lambda a, b, c: c + sum(
        (a >> 8 * i & 255) * signed(b >> 8 * i, 8) for i in range(4)))
    for half in ("lo", "hi"):
        base = 16 if half == "hi" else 0
        yield _three(f"dp2a.{half}.s32.u32", "iii", "i", lambda a, b, c, base=base: c + sum(
            signed(a >> 16 * i, 16) * (b >> (base + 8 * i) & 255) for i in range(2)))
    yield _two("add.sat.s32", "i", lambda a, b: max(-(1 << 31), min((1 << 31) - 1, signed(a, 32) + signed(b, 32))))
    yield _two("sub.sat.s32", "i", lambda a, b: max(-(1 << 31), min((1 << 31) - 1, signed(a, 32) - signed(b, 32))))
    yield _three("sad.s32", "iii", "i", lambda a, b, c: c + abs(signed(a, 32) - signed(b, 32)))

    def halves(f):
        return lambda a, b: (f(a & 0xFFFF, b & 0xFFFF) & 0xFFFF) | (f(a >> 16, b >> 16) & 0xFFFF) << 16

    yield _two("add.u16x2", "i", halves(lambda a, b: a + b))
    yield _two("max.s16x2", "i", halves(lambda a, b: max(signed(a, 16), signed(b, 16))))
    yield _two("min.u16x2", "i", halves(min))

    def clamp(x, lo, hi):
        return max(lo, min(hi, x))

    yield _two("cvt.pack.sat.s16.s32", "i", lambda a, b: (clamp(signed(a, 32), -32768, 32767) & 0xFFFF) << 16
               | (clamp(signed(b, 32), -32768, 32767) & 0xFFFF))
    yield _three("cvt.pack.sat.u8.s32.b32", "iii", "i", lambda a, b, c: (c << 16 | clamp(signed(a, 32), 0, 255) << 8
                                                                          | clamp(signed(b, 32), 0, 255)))


def _carry():
    """128-bit sums, differences and products from 32-bit pieces that hand a carry on."""
    values = integers_of(64, N, 21)
    columns = [("l", values), ("l", values[3:] + values[:3])]
    split = "mov.b64 {{%r20, %r21}}, {a}; mov.b64 {{%r22, %r23}}, {b}; "
    yield lanewise("add.cc addc", split + "add.cc.u32 %r24, %r20, %r22; addc.u32 %r25, %r21, %r23; mov.b64 {d}, {{%r24, %r25}};",
                   "l", columns, lambda a, b: a + b)
    yield lanewise("sub.cc subc", split + "sub.cc.u32 %r24, %r20, %r22; subc.u32 %r25, %r21, %r23; mov.b64 {d}, {{%r24, %r25}};",
                   "l", columns, lambda a, b: a - b)
    yield lanewise("mad.lo.cc madc.hi", split + "mad.lo.cc.u32 %r24, %r20, %r22, %r21; madc.hi.u32 %r25, %r20, %r22, %r23;"
                   "mov.b64 {d}, {{%r24, %r25}};", "l", columns,
                   lambda a, b: ((a & M32) * (b & M32) + (a >> 32)) + ((b >> 32) << 32))


def programs():
    yield from _arithmetic()
    yield from _logic()
    yield from _bits()
    yield from _packed()
    yield from _carry()
