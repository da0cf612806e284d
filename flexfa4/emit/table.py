"""EMIT: what each op becomes in a kernel, one row for every Op.

A row is `row(context, node, args) -> value`. The context (see `emitter.Emitter`) knows the graph's integer ranges, whether
approximations are allowed, and the captures. Values are scalars of the types named in `values.py`.
"""
from __future__ import annotations

from typing import Callable

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from flexfa4.ir import DType, Node, Op

from . import floats, integers
from .values import as_float, as_int, is_static, select, static_number


def _widest(context, n: Node):
    """The integer type that holds the operands and the result."""
    operands = [a for a in n.args if a.dtype.is_int]
    narrow = all(context.int_type(m) is Int32 for m in ([n] if n.dtype.is_int else []) + operands)
    return Int32 if narrow else Int64


def _ring(integer, floating, boolean=None) -> Callable:
    """Ops whose low 32 bits depend on the low 32 bits of their operands only: the result's width will do."""
    def row(context, n: Node, args):
        if n.dtype.is_float:
            return floating(*args)
        if n.dtype.is_bool:
            return Boolean(boolean(*args))
        kind = context.int_type(n)
        return integer(*(as_int(a, kind) for a in args))
    return row


def _by_width(integer, floating) -> Callable:
    """`integer(context, node, *operands)` at the width that holds operands and result; `floating(context, *operands)`."""
    def row(context, n: Node, args):
        if n.dtype.is_float:
            return floating(context, *args)
        kind = _widest(context, n)
        return integer(context, n, *(as_int(a, kind) for a in args))
    return row


def _division(function, floating) -> Callable:
    def integer(context, n, a, b):
        return function(a, b, all(context.ranges[m][0] >= 0 for m in n.args))
    return _by_width(integer, floating)


def _shift(function) -> Callable:
    def row(context, n: Node, args):
        # A narrow result of a left shift has a narrow operand; counts are clamped by the row where they may reach the width.
        kind = _widest(context, n)
        low, high = context.ranges[n.args[1]]
        return function(as_int(args[0], kind), as_int(args[1], kind), 0 <= low and high < (64 if kind is Int64 else 32))
    return row


def _power(context, n: Node, a, b):
    return integers.power(a, b, max(1, min(context.ranges[n.args[1]][1], 63).bit_length()))


def _compare(function) -> Callable:
    def row(context, n: Node, args):
        if n.args[0].dtype.is_float:
            return Boolean(function(*args))
        kind = Int32 if n.args[0].dtype.is_bool else _widest(context, n)
        return Boolean(function(*(as_int(a, kind) for a in args)))
    return row


def _where(context, n: Node, args):
    condition, a, b = args
    if n.dtype.is_int:
        kind = context.int_type(n)
        return select(condition, as_int(a, kind), as_int(b, kind), kind)
    return select(condition, a, b, Boolean if n.dtype.is_bool else Float32)


def _cast(context, n: Node, args):
    """To bool is `!= 0` (NaN counts as true); from float to integer truncates; between integers the low bits are kept."""
    (x,) = args
    if n.dtype.is_bool:
        return x if isinstance(x, Boolean) else Boolean(x != 0)
    if n.dtype.is_float:
        return as_float(x)
    if n.args[0].dtype.is_float and n.dtype is DType.I64:
        return as_int(x, Int64)
    # A small integer type keeps the low bits of the 32-bit conversion.
    return as_int(x, context.int_type(n))


def _const(context, n: Node, args):
    kind = Boolean if n.dtype.is_bool else Float32 if n.dtype.is_float else context.int_type(n)
    return kind(n.attr)


def _leaf(context, n: Node, args):
    raise KeyError(f"{n.op!r} has no value in this scope: a {context.graph.kind} graph needs it from the kernel")


def _unary(function) -> Callable:
    return lambda context, n, args: function(args[0], context.precise)


def _exact(function) -> Callable:
    return lambda context, n, args: function(*args)


def _number(integer, floating) -> Callable:
    def row(context, n: Node, args):
        return floating(args[0]) if n.dtype.is_float else integer(as_int(args[0], context.int_type(n)))
    return row


def _floor_like(function) -> Callable:
    return lambda context, n, args: function(args[0])


EMIT: dict[Op, Callable] = {
    **{op: _leaf for op in (Op.SCORE, Op.B, Op.H, Op.Q, Op.KV, Op.OUT, Op.LSE, Op.D)},
    Op.CONST: _const,
    Op.SLOT: lambda context, n, args: context.slot(n),
    Op.LOAD: lambda context, n, args: context.load(n, args),
    Op.ADD: _ring(lambda a, b: a + b, lambda a, b: a + b),
    Op.SUB: _ring(lambda a, b: a - b, lambda a, b: a - b),
    Op.MUL: _ring(lambda a, b: a * b, lambda a, b: a * b),
    Op.DIV: lambda context, n, args: floats.divide(*args, context.precise),
    Op.FLOORDIV: _division(integers.floordiv, lambda context, a, b: floats.floordiv(a, b, context.precise)),
    Op.MOD: _division(integers.mod, lambda context, a, b: floats.mod(a, b)),
    Op.TRUNCDIV: _division(integers.truncdiv, lambda context, a, b: floats.truncdiv(a, b)),
    Op.FMOD: _division(integers.fmod, lambda context, a, b: floats.fmod(a, b)),
    Op.POW: _by_width(_power, lambda context, a, b: floats.power(a, b, context.precise)),
    Op.MIN: _by_width(lambda context, n, a, b: integers.minimum(a, b), lambda context, a, b: floats.minimum(a, b)),
    Op.MAX: _by_width(lambda context, n, a, b: integers.maximum(a, b), lambda context, a, b: floats.maximum(a, b)),
    Op.AND: _ring(lambda a, b: a & b, None, lambda a, b: a & b),
    Op.OR: _ring(lambda a, b: a | b, None, lambda a, b: a | b),
    Op.XOR: _ring(lambda a, b: a ^ b, None, lambda a, b: a ^ b),
    Op.NOT: _ring(lambda a: ~a, None, lambda a: (not static_number(a)) if is_static(a) else ~a),
    Op.SHL: _shift(integers.shift_left),
    Op.SHR: _shift(integers.shift_right),
    Op.LT: _compare(lambda a, b: a < b),
    Op.LE: _compare(lambda a, b: a <= b),
    Op.EQ: _compare(lambda a, b: a == b),
    Op.NE: _compare(lambda a, b: a != b),
    Op.WHERE: _where,
    Op.CAST: _cast,
    Op.NEG: _ring(lambda a: -a, lambda a: -a),
    Op.ABS: _number(integers.absolute, cute.math.absf),
    Op.SIGN: _number(integers.sign, floats.sign),
    Op.FLOOR: _floor_like(cute.math.floor),
    Op.CEIL: _floor_like(cute.math.ceil),
    Op.ROUND: _floor_like(cute.math.roundeven),
    Op.TRUNC: _floor_like(cute.math.trunc),
    Op.EXP: _unary(floats.exp),
    Op.EXP2: _unary(floats.exp2),
    Op.EXPM1: _floor_like(cute.math.expm1),
    Op.LOG: _unary(floats.log),
    Op.LOG2: _unary(floats.log2),
    Op.LOG10: _unary(floats.log10),
    Op.LOG1P: _floor_like(cute.math.log1p),
    Op.SQRT: _unary(floats.square_root),
    Op.RSQRT: _unary(floats.reciprocal_root),
    Op.RECIPROCAL: _unary(floats.reciprocal),
    Op.TANH: _unary(floats.tanh),
    Op.SIGMOID: _unary(floats.sigmoid),
    Op.ERF: _unary(floats.erf),
    Op.SIN: _unary(floats.sine),
    Op.COS: _unary(floats.cosine),
    Op.TAN: _unary(floats.tangent),
    Op.ATAN: _floor_like(cute.math.atan),
    Op.ATAN2: _exact(cute.math.atan2),
    Op.ISNAN: _exact(floats.is_nan),
    Op.ISINF: _exact(floats.is_inf),
}
