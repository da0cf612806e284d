"""Constant folding in plain Python, exact in the node's dtype: integers wrap, f32 rounds after each operation.

Only operations whose result IEEE 754 or integer arithmetic fixes are folded; a transcendental function may differ in the last
bit from machine to machine, and is left to the machine. Halves are left alone too.
"""
from __future__ import annotations

import ctypes
import math
import operator
from typing import Callable

from flexfa4.ir import DType, Node, Op, const
from flexfa4.ir.dtypes import INT_RANGE

_ANY: dict[Op, Callable] = {Op.LT: operator.lt, Op.LE: operator.le, Op.EQ: operator.eq, Op.NE: operator.ne}
_BITS: dict[Op, Callable] = {Op.AND: operator.and_, Op.OR: operator.or_, Op.XOR: operator.xor}
_RING: dict[Op, Callable] = {Op.ADD: operator.add, Op.SUB: operator.sub, Op.MUL: operator.mul}
_INT: dict[Op, Callable] = {
    **_RING, **_BITS, Op.FLOORDIV: operator.floordiv, Op.MOD: operator.mod, Op.MIN: min, Op.MAX: max, Op.NOT: operator.invert,
    Op.NEG: operator.neg, Op.ABS: abs, Op.SIGN: lambda a: (a > 0) - (a < 0),
    Op.TRUNCDIV: lambda a, b: (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1),
    Op.FMOD: lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
    Op.SHL: operator.lshift, Op.SHR: operator.rshift, Op.POW: operator.pow,
}
# A sum, product or quotient of two f32 numbers computed in f64 and rounded to f32 is the correctly rounded one (Figueroa 1995).
_FLOAT: dict[Op, Callable] = {
    **_RING, Op.DIV: operator.truediv, Op.NEG: operator.neg, Op.ABS: abs, Op.ISNAN: math.isnan, Op.ISINF: math.isinf,
}
_BOOL: dict[Op, Callable] = {**_BITS, Op.NOT: operator.not_}
_LIMITED = {Op.FLOORDIV, Op.MOD, Op.TRUNCDIV, Op.FMOD}


def wrap(value: int, dtype: DType) -> int:
    """An integer reduced to the range of `dtype`, as its arithmetic wraps."""
    low, high = INT_RANGE[dtype]
    return (value - low) % (high - low + 1) + low


def _number(value: bool | int | float, dtype: DType) -> Node:
    if dtype.is_int:
        return const(wrap(value, dtype), dtype)
    return const(ctypes.c_float(value).value if dtype is DType.F32 else value, dtype)


def _table(dtype: DType) -> dict[Op, Callable]:
    if dtype.is_int:
        return _INT
    return _BOOL if dtype.is_bool else _FLOAT if dtype in (DType.F32, DType.F64) else {}


def fold(n: Node) -> Node | None:
    """The constant that an operation on constants alone equals, or None where it is not folded."""
    if not n.args or any(a.op is not Op.CONST for a in n.args):
        return None
    values = [a.attr for a in n.args]
    source = n.args[0].dtype
    if n.op is Op.CAST:
        return _fold_cast(values[0], source, n.dtype)
    if source in (DType.F16, DType.BF16):
        return None
    function = _ANY.get(n.op) or _table(source).get(n.op)
    if function is None or (n.op is Op.DIV and values[1] == 0) or (n.op in _LIMITED and values[1] == 0):
        return None
    if n.op in (Op.SHL, Op.SHR, Op.POW) and not 0 <= values[1] < 8:
        return None
    try:
        return _number(function(*values), n.dtype)
    except OverflowError:
        return None


def _fold_cast(value: bool | int | float, source: DType, target: DType) -> Node | None:
    if target.is_bool:
        return const(value != 0, target)
    if source.is_float and target.is_int:
        # Out of range, and for NaN, the result depends on the machine.
        low, high = INT_RANGE[target]
        return const(int(value), target) if math.isfinite(value) and low <= int(value) <= high else None
    if target.is_int:
        return const(wrap(int(value), target), target)
    if target is DType.F64 or (target is DType.F32 and (source.is_float or abs(value) <= 2**53)):
        return _number(float(value), target)
    # Whole numbers that both half formats hold exactly.
    return const(float(value), target) if abs(value) <= 256 and value == int(value) else None
