"""Which 64-bit integers of a graph fit in 32 bits, and which are never negative, whatever the call. Standard library only.

Indices and Python's integers are int64 by meaning; a GPU computes them in two or more instructions each. `Assumptions` bounds
the leaves (a launch checks them, and takes the wide plan where one fails), and `integer_ranges` follows the bounds through the
graph. Interval facts over a tile are sharper, but hold for one call; these hold for every call of a compiled kernel.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from flexfa4.ir import DType, Node, Op, topological
from flexfa4.ir.dtypes import INT_RANGE

Range = tuple[int, int]

# 268 million: lengths and integer literals below this add up in 32 bits eight at a time.
NARROW_BITS = 28

_I32 = INT_RANGE[DType.I32]


@dataclass(frozen=True)
class Assumptions:
    """What a compiled kernel takes for granted about its arguments; part of the compile key.

    index_bits: positions are in [0, 2**bits). slot_bits: integer runtime scalars are in (-2**bits, 2**bits). entry_bits: batch
    and head indices are in [0, 2**bits); output columns are below 2**10. capture_bits: elements of captured integer tensors are
    in (-2**bits, 2**bits); 63 assumes nothing.
    """

    index_bits: int = NARROW_BITS
    slot_bits: int = NARROW_BITS
    entry_bits: int = 16
    capture_bits: int = 63

    def holds(self, lengths: tuple[int, ...], literals: tuple[bool | int | float, ...], entries: tuple[int, ...] = ()) -> bool:
        """Whether a call's lengths, literal values and entries (batch entries, query heads) keep to it."""
        integers = [v for v in literals if isinstance(v, int)]
        return (max(lengths, default=0) <= 1 << self.index_bits and max(entries, default=0) <= 1 << self.entry_bits
                and all(abs(v) < 1 << self.slot_bits for v in integers))

    def leaf(self, n: Node) -> Range | None:
        if n.op in (Op.Q, Op.KV):
            return 0, (1 << self.index_bits) - 1
        if n.op in (Op.B, Op.H):
            return 0, (1 << self.entry_bits) - 1
        if n.op is Op.D:
            return 0, (1 << 10) - 1
        if n.op in (Op.SLOT, Op.LOAD) and n.dtype.is_int:
            low, high = INT_RANGE[n.dtype]
            most = (1 << (self.slot_bits if n.op is Op.SLOT else self.capture_bits)) - 1
            return max(low, -most), min(high, most)
        return None


WIDE = Assumptions(index_bits=31, slot_bits=63, entry_bits=31)


def fits_i32(r: Range) -> bool:
    return _I32[0] <= r[0] and r[1] <= _I32[1]


@lru_cache(maxsize=512)
def integer_ranges(roots: tuple[Node, ...], assume: Assumptions = Assumptions()) -> dict[Node, Range]:
    """Inclusive bounds of every integer node below the roots (bools are 0..1, floats are absent). A result that may leave its
    type's range wraps, and gets the whole range."""
    found: dict[Node, Range] = {}
    for n in topological(*roots):
        if n.dtype.is_bool:
            found[n] = (0, 1)
        elif n.dtype.is_int:
            low, high = INT_RANGE[n.dtype]
            got = assume.leaf(n) or _RULES.get(n.op, _unknown)(n, [found.get(a) for a in n.args])
            found[n] = got if got is not None and low <= got[0] and got[1] <= high else (low, high)
    return found


def _unknown(n: Node, args: list[Range | None]) -> Range | None:
    return None


def _corners(function):
    """A function that is monotone in each argument takes its extremes at the corners."""
    def rule(n: Node, args: list[Range]) -> Range:
        values = [function(*corner) for corner in product(*args)]
        return min(values), max(values)
    return rule


def _divide(function):
    def rule(n: Node, args: list[Range]) -> Range | None:
        if args[1][0] <= 0 <= args[1][1]:
            return None
        return _corners(function)(n, args)
    return rule


def _modulo(n: Node, args: list[Range]) -> Range | None:
    (low, high), (d_low, d_high) = args
    if d_low > 0:
        return 0, min(high, d_high - 1) if low >= 0 else d_high - 1
    return (d_low + 1, 0) if d_high < 0 else None


def _fmod(n: Node, args: list[Range]) -> Range | None:
    (low, high), (d_low, d_high) = args
    if d_low <= 0 <= d_high:
        return None
    most = max(abs(d_low), abs(d_high)) - 1
    return max(low, -most) if low < 0 else 0, min(high, most) if high > 0 else 0


def _bits(n: Node, args: list[Range]) -> Range:
    """and, or, xor: no wider than the wider operand; an `and` with a number that is not negative is at most that number."""
    if n.op is Op.AND and (args[0][0] >= 0 or args[1][0] >= 0):
        return 0, min(high for low, high in args if low >= 0)
    width = max(max(low if low >= 0 else ~low, high if high >= 0 else ~high).bit_length() for low, high in args)
    return (0 if all(low >= 0 for low, _ in args) else -(1 << width)), (1 << width) - 1


def _shift_left(n: Node, args: list[Range]) -> Range | None:
    return None if args[1][0] < 0 or args[1][1] > 63 else _corners(lambda a, s: a << s)(n, args)


def _shift_right(n: Node, args: list[Range]) -> Range | None:
    return None if args[1][0] < 0 else _corners(lambda a, s: a >> min(s, 63))(n, args)


def _power(n: Node, args: list[Range]) -> Range | None:
    if args[1][0] < 0 or args[1][1] > 64:
        return None
    low, high = _corners(lambda a, e: a ** e)(n, args)
    # An even power has its least value inside, at zero; both exponents' parities may occur.
    return (min(low, 0) if args[0][0] < 0 else low, high if args[0][0] >= 0 else max(abs(low), high))


def _absolute(n: Node, args: list[Range]) -> Range:
    low, high = args[0]
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


_RULES = {
    Op.CONST: lambda n, a: (int(n.attr), int(n.attr)),
    Op.ADD: _corners(lambda a, b: a + b),
    Op.SUB: _corners(lambda a, b: a - b),
    Op.MUL: _corners(lambda a, b: a * b),
    Op.MIN: _corners(min),
    Op.MAX: _corners(max),
    Op.FLOORDIV: _divide(lambda a, b: a // b),
    Op.TRUNCDIV: _divide(lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    Op.MOD: _modulo,
    Op.FMOD: _fmod,
    Op.AND: _bits, Op.OR: _bits, Op.XOR: _bits,
    Op.NOT: _corners(lambda a: ~a),
    Op.SHL: _shift_left,
    Op.SHR: _shift_right,
    Op.POW: _power,
    Op.NEG: _corners(lambda a: -a),
    Op.ABS: _absolute,
    Op.SIGN: _corners(lambda a: (a > 0) - (a < 0)),
    Op.WHERE: lambda n, a: (min(a[1][0], a[2][0]), max(a[1][1], a[2][1])),
    # From a float nothing is known; between integers the value is kept or wraps.
    Op.CAST: lambda n, a: a[0],
}
