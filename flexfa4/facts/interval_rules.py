"""INTERVAL: how each op carries bounds from its operands to its result. One row for every Op.

A rule takes (space, node, operand intervals...) and returns the node's interval. Leaves and LOAD are bound by the
analysis itself, so their rows give "anything of the type", which is what is known without it.
"""
from __future__ import annotations

from typing import Callable

from flexfa4.ir import DType, Node, Op

from . import interval_floats as floats
from . import interval_ints as ints
from .interval_values import INF, Interval, Space, boolean, either, exact, negate, rounded, top, whole

Rule = Callable[..., Interval]


def _by_type(on_ints: Rule, on_floats: Rule) -> Rule:
    """Integers and floats of whole numbers that stay exact share the integer rule."""

    def rule(space: Space, n: Node, *args: Interval) -> Interval:
        if all(a.least is not None for a in args):
            found = on_ints(space, n, *args)
            if found is not None:
                return found
        if n.dtype.is_float:
            return on_floats(space, n, *args)
        return top(n.dtype, ints.poison_of(args))

    return rule


def _anything(space: Space, n: Node, *args: Interval) -> Interval:
    return top(n.dtype)


def _const(space: Space, n: Node) -> Interval:
    return exact(n.attr, n.dtype)


def _extremum(name: str, pick: Callable) -> Rule:
    def rule(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
        known = a.least is not None and b.least is not None
        f = getattr(space, name)
        return Interval(f(a.lo, b.lo), f(a.hi, b.hi), either(a.nan, b.nan), either(a.poison, b.poison),
                        pick(a.least, b.least) if known else None, pick(a.most, b.most) if known else None)

    return rule


def _compare(must: Callable, may: Callable) -> Rule:
    def rule(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
        nan = either(a.nan, b.nan)
        certain = must(a, b)
        # Every comparison with NaN is false.
        return boolean(certain if nan is False else certain & negate(nan), may(a, b), either(a.poison, b.poison))

    return rule


def _equal(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    nan = either(a.nan, b.nan)
    must, may = (a.lo == b.hi) & (a.hi == b.lo), (a.lo <= b.hi) & (b.lo <= a.hi)
    return boolean(must if nan is False else must & negate(nan), may, either(a.poison, b.poison))


def _not_equal(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    same = _equal(space, n, a, b)
    return boolean(negate(same.hi), negate(same.lo), same.poison)


def _and(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    if not n.dtype.is_bool:
        return ints.bit_and(space, n, a, b)
    poison = either(a.poison, b.poison)
    if poison is not False:
        # A false operand that does not itself come from a bad look-up decides alone.
        for x in (a, b):
            poison = poison & (either(x.hi, x.poison))
    return boolean(a.lo & b.lo, a.hi & b.hi, poison)


def _or(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    if not n.dtype.is_bool:
        return ints.bit_or(space, n, a, b)
    poison = either(a.poison, b.poison)
    if poison is not False:
        for x in (a, b):
            poison = poison & either(negate(x.lo), x.poison)
    return boolean(a.lo | b.lo, a.hi | b.hi, poison)


def _xor(space: Space, n: Node, a: Interval, b: Interval) -> Interval:
    if not n.dtype.is_bool:
        return ints.bit_xor(space, n, a, b)
    differ, equal = (a.lo & negate(b.hi)) | (b.lo & negate(a.hi)), (a.lo & b.lo) | negate(a.hi | b.hi)
    return boolean(differ, negate(equal), either(a.poison, b.poison))


def _not(space: Space, n: Node, a: Interval) -> Interval:
    if n.dtype.is_bool:
        return boolean(negate(a.hi), negate(a.lo), a.poison)
    return ints.invert(space, n, a)


def _where(space: Space, n: Node, c: Interval, a: Interval, b: Interval) -> Interval:
    surely, never = c.lo, negate(c.hi)
    nan = a.nan if a.nan is False and b.nan is False else (a.nan & c.hi) | (b.nan & negate(c.lo))
    poison = c.poison
    if a.poison is not False or b.poison is not False:
        poison = either(poison, (a.poison & c.hi) | (b.poison & negate(c.lo)))
    if n.dtype.is_bool:
        lo = (surely & a.lo) | (never & b.lo) | (a.lo & b.lo)
        hi = (c.hi & a.hi) | (negate(c.lo) & b.hi)
        return boolean(lo, hi, poison)
    lo = space.where(surely, a.lo, space.where(never, b.lo, space.minimum(a.lo, b.lo)))
    hi = space.where(surely, a.hi, space.where(never, b.hi, space.maximum(a.hi, b.hi)))
    known = a.least is not None and b.least is not None
    return Interval(lo, hi, nan, poison, min(a.least, b.least) if known else None, max(a.most, b.most) if known else None)


def _cast(space: Space, n: Node, a: Interval) -> Interval:
    source = n.args[0].dtype
    if n.dtype is source:
        return a
    if n.dtype.is_bool:
        # NaN is not zero.
        return boolean((a.lo > 0) | (a.hi < 0), either(negate((a.lo == 0) & (a.hi == 0)), a.nan), a.poison)
    if source.is_bool:
        a = Interval(space.ints(a.lo), space.ints(a.hi), False, a.poison, 0, 1)
    if a.least is not None:
        found = whole(a.lo, a.hi, a.least, a.most, n.dtype, a.poison)
        if found is not None:
            convert = space.floats if n.dtype.is_float else space.ints
            return Interval(convert(found.lo), convert(found.hi), False, a.poison, found.least, found.most)
        return rounded(space, a.lo, a.hi, n.dtype, False, a.poison)
    if n.dtype.is_float:
        return rounded(space, a.lo, a.hi, n.dtype, a.nan, a.poison)
    return floats.to_integer(space, n, a)


def _negative(space: Space, n: Node, a: Interval) -> Interval:
    if n.dtype.is_float:
        known = a.least is not None
        return Interval(-a.hi, -a.lo, a.nan, a.poison, -a.most if known else None, -a.least if known else None)
    return whole(-a.hi, -a.lo, -a.most, -a.least, n.dtype, a.poison)


def _absolute(space: Space, n: Node, a: Interval) -> Interval:
    if n.dtype.is_int and not _negatable(n.dtype, a):
        return top(n.dtype, a.poison)
    lo = space.maximum(space.maximum(a.lo, -a.hi), 0)
    hi = space.maximum(a.hi, -a.lo)
    if a.least is None:
        return Interval(lo, hi, a.nan, a.poison)
    least = max(a.least, -a.most, 0)
    return Interval(lo, hi, False, a.poison, least, max(a.most, -a.least))


def _negatable(dtype: DType, a: Interval) -> bool:
    """Whether -value is a number of the type for every value."""
    return whole(0, 0, -a.most, max(a.most, -a.least), dtype, False).least == -a.most or dtype is DType.U8


def _sign(space: Space, n: Node, a: Interval) -> Interval:
    convert = space.floats if n.dtype.is_float else space.ints
    lo = convert(a.lo > 0) - convert(a.lo < 0)
    hi = convert(a.hi > 0) - convert(a.hi < 0)
    # The sign of NaN is 0 on some engines and NaN on others.
    if a.nan is not False:
        lo, hi = space.minimum(lo, 0), space.maximum(hi, 0)
    return Interval(lo, hi, a.nan, a.poison, -1, 1) if a.nan is False else Interval(lo, hi, a.nan, a.poison)


def _is_nan(space: Space, n: Node, a: Interval) -> Interval:
    return boolean(False, a.nan, a.poison)


def _is_inf(space: Space, n: Node, a: Interval) -> Interval:
    infinite = (a.lo == INF) | (a.hi == -INF)
    return boolean(infinite if a.nan is False else infinite & negate(a.nan), (a.lo == -INF) | (a.hi == INF), a.poison)


INTERVAL: dict[Op, Rule] = {
    **{op: _anything for op in (Op.SCORE, Op.B, Op.H, Op.Q, Op.KV, Op.OUT, Op.LSE, Op.D, Op.SLOT, Op.LOAD)},
    Op.CONST: _const,
    Op.ADD: _by_type(ints.add, floats.add),
    Op.SUB: _by_type(ints.sub, floats.sub),
    Op.MUL: _by_type(ints.mul, floats.mul),
    Op.DIV: floats.div,
    Op.FLOORDIV: _by_type(ints.floordiv, floats.floordiv),
    Op.MOD: _by_type(ints.mod, floats.mod),
    Op.TRUNCDIV: _by_type(ints.truncdiv, floats.truncdiv),
    Op.FMOD: _by_type(ints.fmod, floats.fmod),
    Op.POW: _by_type(ints.power, floats.power),
    Op.MIN: _extremum("minimum", min),
    Op.MAX: _extremum("maximum", max),
    Op.AND: _and,
    Op.OR: _or,
    Op.XOR: _xor,
    Op.NOT: _not,
    Op.SHL: ints.shift_left,
    Op.SHR: ints.shift_right,
    Op.LT: _compare(lambda a, b: a.hi < b.lo, lambda a, b: a.lo < b.hi),
    Op.LE: _compare(lambda a, b: a.hi <= b.lo, lambda a, b: a.lo <= b.hi),
    Op.EQ: _equal,
    Op.NE: _not_equal,
    Op.WHERE: _where,
    Op.CAST: _cast,
    Op.NEG: _negative,
    Op.ABS: _absolute,
    Op.SIGN: _sign,
    Op.ISNAN: _is_nan,
    Op.ISINF: _is_inf,
    Op.ATAN2: floats.atan2,
    Op.SIN: floats.wave,
    Op.COS: floats.wave,
    Op.TAN: floats.tan,
    Op.RECIPROCAL: floats.reciprocal,
    Op.RSQRT: floats.rsqrt,
    **{op: floats.step for op in (Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC)},
    **{op: floats.monotone for op in (Op.EXP, Op.EXP2, Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG10, Op.LOG1P, Op.SQRT, Op.TANH,
                                      Op.SIGMOID, Op.ERF, Op.ATAN)},
}
