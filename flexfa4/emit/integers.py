"""Integer ops on Int32 and Int64 with Python's rounding. A row gets operands of one width and the facts it can use."""
from __future__ import annotations

from cutlass import Int32, Int64

from .values import is_static, select, static_number, unsigned


def _power_of_two(value) -> int | None:
    """k where the value is the static number 2**k."""
    number = static_number(value)
    return number.bit_length() - 1 if is_static(value) and number > 0 and number & (number - 1) == 0 else None


def floordiv(a, b, non_negative: bool):
    """Towards minus infinity: one shift by a power of two (floor on signed values too), an unsigned division where neither
    side can be negative, else the same on the complement of what is negative."""
    shift = _power_of_two(b)
    if shift is not None:
        return a >> shift
    if is_static(a) and is_static(b):
        return a // b
    kind = type(a)
    if non_negative:
        return kind(unsigned(a) // unsigned(b))
    # Not the DSL's own signed `//`: nvidia-cutlass-dsl 4.8.1 drops its fix-up where it takes the divisor to be positive, and
    # rounds towards zero. ~x = -x - 1 turns floor into a division of numbers that are not negative.
    if not (is_static(b) and static_number(b) > 0):
        a, b = select(b < 0, -a, a, kind), absolute(b)
    sign_bits = a >> (63 if isinstance(a, Int64) else 31)
    return kind(unsigned(a ^ sign_bits) // unsigned(b)) ^ sign_bits


def mod(a, b, non_negative: bool):
    """Sign of the divisor. The signed case goes through the floor division."""
    shift = _power_of_two(b)
    if shift is not None:
        return a & ((1 << shift) - 1)
    if non_negative and not is_static(a):
        return type(a)(unsigned(a) % unsigned(b))
    return a - floordiv(a, b, False) * b


def truncdiv(a, b, non_negative: bool):
    """Towards zero: the floor, plus one where it was rounded down across zero."""
    down = floordiv(a, b, non_negative)
    if non_negative:
        return down
    inexact = a != down * b
    return down + select(inexact & ((a < 0) ^ (b < 0)), type(a)(1), type(a)(0), type(a))


def fmod(a, b, non_negative: bool):
    return mod(a, b, True) if non_negative else a - truncdiv(a, b, False) * b


def power(a, b, exponent_bits: int):
    """a ** b by squaring, b >= 0 of at most `exponent_bits` bits; a static exponent costs its own multiplications only."""
    kind = type(a)
    result, square = kind(1), a
    for bit in range(exponent_bits):
        if is_static(b):
            if static_number(b) >> bit & 1:
                result = result * square
            if static_number(b) >> bit <= 1:
                break
        else:
            result = select((b >> bit & 1) != 0, result * square, result, kind)
        square = square * square
    return result


def minimum(a, b):
    return select(a < b, a, b, type(a))


def maximum(a, b):
    return select(a > b, a, b, type(a))


def shift_left(a, b, count_below_width: bool):
    """Zero once every bit is shifted out (a hardware shift by the width or more has no defined meaning to the compiler)."""
    kind, width = type(a), 64 if isinstance(a, Int64) else 32
    if count_below_width:
        return a << b
    return select(b < width, a << minimum(b, kind(width - 1)), kind(0), kind)


def shift_right(a, b, count_below_width: bool):
    width = 64 if isinstance(a, Int64) else 32
    return a >> (b if count_below_width else minimum(b, type(a)(width - 1)))


def sign(a):
    kind = type(a)
    return select(a > 0, kind(1), select(a < 0, kind(-1), kind(0), kind), kind)


def absolute(a):
    return select(a < 0, -a, a, type(a))


def clamp_index(index, size: Int32, non_negative: bool):
    """A position in [0, size): negative ones count from the end once, what is out of range goes to the nearest edge (it is
    read, but belongs to a lane that is masked or reported elsewhere)."""
    if isinstance(index, Int64):
        # Clamped before it is narrowed; size fits in 32 bits.
        index = Int32(maximum(minimum(index, Int64(size)), -Int64(size)))
    if not non_negative:
        index = select(index < 0, index + size, index, Int32)
        index = maximum(index, Int32(0))
    return minimum(index, size - 1)
