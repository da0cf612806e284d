"""Algebra that keeps every bit: a table of small rules, applied bottom-up until none fits.

Integers wrap, so they form a ring modulo 2^n: sums may be re-associated and cancelled, but `a + 1 < b` is not `a < b - 1`.
Floats keep NaN, infinities and signed zeros: x * 1, x - 0, x + -0, --x, x + -y are exact; x + 0 (it turns -0 into 0), x * 0 and
x - x (NaN) are not. A comparison of floats is not flipped by `not`, since NaN compares false either way.

Only structure counts: the values of slots and captures are never looked at, so one simplified graph serves every call.
"""
from __future__ import annotations

import math
from functools import lru_cache

from flexfa4.ir import DType, Graph, Node, Op, const, node
from flexfa4.ir.dtypes import INT_RANGE
from flexfa4.ir.ops import COMMUTATIVE

from .fold import fold, wrap
from .rewrite import Rewriter, Rule, digest

_BOOL = DType.BOOL


def _is(n: Node, *values: bool | int | float) -> bool:
    """True for a constant that is one of the values, 0.0 and -0.0 being two."""
    return n.op is Op.CONST and any(n.attr == v and math.copysign(1, n.attr) == math.copysign(1, v) for v in values)


def _bits(n: Node) -> int | bool | None:
    """The value of an integer or Boolean constant, else None."""
    return n.attr if n.op is Op.CONST and not n.dtype.is_float else None


def _ones(dtype: DType) -> int | bool:
    """The constant that is neutral for AND."""
    return True if dtype.is_bool else wrap(-1, dtype)


def _not(n: Node) -> Node:
    return node(Op.NOT, (n,), n.dtype)


def _like(n: Node, op: Op, *args: Node) -> Node:
    return node(op, args, n.dtype)


def _order(n: Node) -> Node | None:
    """Operands of a commutative op in canonical order, constants last. minimum(0.0, -0.0) may depend on the order."""
    a, b = n.args
    if n.op in (Op.MIN, Op.MAX) and n.dtype.is_float:
        return None
    key_a, key_b = (a.op is Op.CONST, digest(a)), (b.op is Op.CONST, digest(b))
    return node(n.op, (b, a), n.dtype) if key_b < key_a else None


def _add(n: Node) -> Node | None:
    a, b = n.args
    if n.dtype.is_float:
        if _is(b, -0.0):
            return a
    elif _is(b, 0):
        return a
    elif b.op is Op.CONST and a.op is Op.ADD and a.args[1].op is Op.CONST:
        return _like(n, Op.ADD, a.args[0], const(wrap(a.args[1].attr + b.attr, n.dtype), n.dtype))
    else:
        # (x - b) + b
        for x, y in ((a, b), (b, a)):
            if x.op is Op.SUB and x.args[1] is y:
                return x.args[0]
    # x + -y is x - y, to the last bit.
    for x, y in ((a, b), (b, a)):
        if y.op is Op.NEG:
            return _like(n, Op.SUB, x, y.args[0])
    return None


def _sub(n: Node) -> Node | None:
    a, b = n.args
    if b.op is Op.NEG:
        return _like(n, Op.ADD, a, b.args[0])
    if n.dtype.is_float:
        return a if _is(b, 0.0) else _like(n, Op.NEG, b) if _is(a, -0.0) else None
    if a is b:
        return const(0, n.dtype)
    if b.op is Op.CONST:
        return _like(n, Op.ADD, a, const(wrap(-b.attr, n.dtype), n.dtype))
    if _is(a, 0):
        return _like(n, Op.NEG, b)
    if a.op is Op.ADD and b in a.args:
        return a.args[1] if a.args[0] is b else a.args[0]
    if b.op is Op.SUB and b.args[0] is a:
        return b.args[1]
    return None


def _mul(n: Node) -> Node | None:
    a, b = n.args
    if _is(b, 1, 1.0):
        return a
    if _is(b, -1, -1.0):
        return _like(n, Op.NEG, a)
    if n.dtype.is_float or b.op is not Op.CONST:
        return None
    if b.attr == 0:
        return b
    if a.op is Op.MUL and a.args[1].op is Op.CONST:
        return _like(n, Op.MUL, a.args[0], const(wrap(a.args[1].attr * b.attr, n.dtype), n.dtype))
    return None


def _divide(n: Node) -> Node | None:
    """x / 1, and for integers x // 1. A divisor that turns out to be the integer 0 has an arbitrary result; as `interpret`
    does, it is taken for 1."""
    a, b = n.args
    return a if _is(b, 1.0) and n.op is Op.DIV or n.dtype.is_int and _is(b, 0, 1) else None


def _remainder(n: Node) -> Node | None:
    return const(0, n.dtype) if n.dtype.is_int and _is(n.args[1], 0, 1) else None


def _power(n: Node) -> Node | None:
    a, b = n.args
    if _is(b, 0):
        return const(1, n.dtype)
    if _is(b, 1):
        return a
    return _like(n, Op.MUL, a, a) if _is(b, 2) else None


def _extremum(n: Node) -> Node | None:
    a, b = n.args
    if a is b:
        return a
    if not n.dtype.is_int or b.op is not Op.CONST:
        return None
    low, high = INT_RANGE[n.dtype]
    neutral, absorbing = (high, low) if n.op is Op.MIN else (low, high)
    if b.attr in (neutral, absorbing):
        return a if b.attr == neutral else b
    if a.op is n.op and a.args[1].op is Op.CONST:
        tighter = (min if n.op is Op.MIN else max)(a.args[1].attr, b.attr)
        return _like(n, n.op, a.args[0], const(tighter, n.dtype))
    return None


def _and_or(n: Node) -> Node | None:
    """Identity, annihilation, idempotence, complement and absorption."""
    a, b = n.args
    value, ones = _bits(b), _ones(n.dtype)
    neutral, absorbing = (ones, 0) if n.op is Op.AND else (0, ones)
    if value is not None and value in (neutral, absorbing):
        return a if value == neutral else b
    if a is b:
        return a
    other = Op.OR if n.op is Op.AND else Op.AND
    for x, y in ((a, b), (b, a)):
        if (_invert(_not(x)) or _not(x)) is y:
            return const(absorbing, n.dtype)
        if x.op is n.op and y in x.args:
            return x
        if x.op is other and y in x.args:
            return y
    return None


def _xor(n: Node) -> Node | None:
    a, b = n.args
    value = _bits(b)
    if value is not None and value in (0, _ones(n.dtype)):
        return a if value == 0 else _not(a)
    return const(0, n.dtype) if a is b else None


def _invert(n: Node) -> Node | None:
    a = n.args[0]
    if a.op is Op.NOT:
        return a.args[0]
    if a.op in (Op.EQ, Op.NE):
        return node(Op.NE if a.op is Op.EQ else Op.EQ, a.args, _BOOL)
    if a.op in (Op.LT, Op.LE) and not a.args[0].dtype.is_float:
        return node(Op.LE if a.op is Op.LT else Op.LT, a.args[::-1], _BOOL)
    return None


def _shift(n: Node) -> Node | None:
    """Shifts by 0; and, as torch has it, shifts past the width leave nothing but the sign."""
    a, b = n.args
    if b.op is not Op.CONST:
        return None
    width = _width(n.dtype).bit_length() - 1
    if b.attr == 0:
        return a
    if 0 < b.attr < width:
        return None
    return const(0, n.dtype) if n.op is Op.SHL else _like(n, Op.SHR, a, const(width - 1, n.dtype))


def _same_operands(n: Node) -> Node | None:
    """x < x is false, also for NaN; x <= x and x == x are true except for NaN."""
    a, b = n.args
    if a is not b or (a.dtype.is_float and n.op is not Op.LT):
        return None
    return const(n.op in (Op.LE, Op.EQ), _BOOL)


def _narrow(n: Node) -> Node | None:
    """A comparison of two exact widenings of one type is the comparison before widening."""
    a, b = n.args
    if a.op is not Op.CAST or not _exact(a.args[0].dtype, a.dtype):
        return None
    x = a.args[0]
    if b.op is Op.CAST and b.args[0].dtype is x.dtype:
        return node(n.op, (x, b.args[0]), _BOOL)
    if b.op is Op.CONST and x.dtype.is_int and b.dtype.is_int and n.op in (Op.EQ, Op.NE):
        low, high = INT_RANGE[x.dtype]
        fits = low <= b.attr <= high
        return node(n.op, (x, const(b.attr, x.dtype)), _BOOL) if fits else const(n.op is Op.NE, _BOOL)
    return None


def _equal(n: Node) -> Node | None:
    """Comparison with a Boolean constant, and a - b == 0."""
    a, b = n.args
    if b.op is not Op.CONST:
        return None
    if b.dtype.is_bool:
        return a if b.attr == (n.op is Op.EQ) else _not(a)
    if b.dtype.is_int and b.attr == 0 and a.op is Op.SUB:
        return node(n.op, a.args, _BOOL)
    return None


def _where(n: Node) -> Node | None:
    c, a, b = n.args
    if c.op is Op.CONST:
        return a if c.attr else b
    if a is b:
        return a
    if c.op is Op.NOT:
        return _like(n, Op.WHERE, c.args[0], b, a)
    if a.op is Op.WHERE and a.args[0] is c:
        return _like(n, Op.WHERE, c, a.args[1], b)
    if b.op is Op.WHERE and b.args[0] is c:
        return _like(n, Op.WHERE, c, a, b.args[2])
    return _where_bool(c, a, b) if n.dtype.is_bool else None


def _where_bool(c: Node, a: Node, b: Node) -> Node | None:
    """A choice between truth values in terms of and, or, not."""
    if _is(a, True) or a is c:
        return node(Op.OR, (c, b), _BOOL)
    if _is(b, False) or b is c:
        return node(Op.AND, (c, a), _BOOL)
    if _is(a, False):
        return node(Op.AND, (_not(c), b), _BOOL)
    return node(Op.OR, (_not(c), a), _BOOL) if _is(b, True) else None


# Types whose every value the other holds exactly, besides wider integers and bool in everything.
_EXACT = {
    DType.U8: {DType.F16, DType.BF16, DType.F32, DType.F64}, DType.I8: {DType.F16, DType.BF16, DType.F32, DType.F64},
    DType.I16: {DType.F32, DType.F64}, DType.I32: {DType.F64}, DType.F16: {DType.F32, DType.F64},
    DType.BF16: {DType.F32, DType.F64}, DType.F32: {DType.F64},
}


def _exact(source: DType, target: DType) -> bool:
    """True where every value of `source` is one of `target`."""
    if source.is_bool or source is target:
        return True
    if source.is_int and target.is_int:
        return INT_RANGE[target][0] <= INT_RANGE[source][0] and INT_RANGE[source][1] <= INT_RANGE[target][1]
    return target in _EXACT.get(source, ())


def _cast(n: Node) -> Node | None:
    a = n.args[0]
    if a.dtype is n.dtype:
        return a
    if a.op is not Op.CAST:
        return None
    x, through = a.args[0], a.dtype
    if x.dtype is n.dtype:
        return x if _exact(x.dtype, through) else None
    if n.dtype.is_bool:
        return node(Op.CAST, (x,), _BOOL) if _exact(x.dtype, through) else None
    # Widening and going on in the same category, or wrapping twice, the second time at least as much.
    if x.dtype.is_float and n.dtype.is_float:
        return node(Op.CAST, (x,), n.dtype) if _exact(x.dtype, through) and _exact(x.dtype, n.dtype) else None
    if not x.dtype.is_float and n.dtype.is_int and not through.is_float:
        if _exact(x.dtype, through) or (through.is_int and _width(n.dtype) <= _width(through)):
            return node(Op.CAST, (x,), n.dtype)
    if not x.dtype.is_float and n.dtype.is_float and _exact(x.dtype, through) and _exact(x.dtype, n.dtype):
        return node(Op.CAST, (x,), n.dtype)
    return None


def _width(dtype: DType) -> int:
    """Number of values of an integer type."""
    low, high = INT_RANGE[dtype]
    return high - low + 1


def _negate(n: Node) -> Node | None:
    a = n.args[0]
    if a.op is Op.NEG:
        return a.args[0]
    # -(a - b) is b - a only for integers: for floats 0 - 0 is 0 both ways round.
    return _like(n, Op.SUB, *a.args[::-1]) if a.op is Op.SUB and n.dtype.is_int else None


def _idempotent(n: Node) -> Node | None:
    a = n.args[0]
    return a if a.op is n.op else None


_TABLE: dict[Op, tuple[Rule, ...]] = {
    Op.ADD: (_add,),
    Op.SUB: (_sub,),
    Op.MUL: (_mul,),
    Op.DIV: (_divide,),
    Op.FLOORDIV: (_divide,),
    Op.TRUNCDIV: (_divide,),
    Op.MOD: (_remainder,),
    Op.FMOD: (_remainder,),
    Op.POW: (_power,),
    Op.MIN: (_extremum,),
    Op.MAX: (_extremum,),
    Op.AND: (_and_or,),
    Op.OR: (_and_or,),
    Op.XOR: (_xor,),
    Op.NOT: (_invert,),
    Op.SHL: (_shift,),
    Op.SHR: (_shift,),
    Op.LT: (_same_operands, _narrow),
    Op.LE: (_same_operands, _narrow),
    Op.EQ: (_same_operands, _narrow, _equal),
    Op.NE: (_same_operands, _narrow, _equal),
    Op.WHERE: (_where,),
    Op.CAST: (_cast,),
    Op.NEG: (_negate,),
    **{op: (_idempotent,) for op in (Op.ABS, Op.SIGN, Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC)},
}
RULES: dict[Op, tuple[Rule, ...]] = {
    op: ((fold, _order) if op in COMMUTATIVE else (fold,)) + _TABLE.get(op, ()) for op in Op
}


def simplifier() -> Rewriter:
    """A Rewriter of the rules above, which remembers what it has simplified."""
    return Rewriter(RULES)


@lru_cache(maxsize=1024)
def simplify(graph: Graph) -> Graph:
    """A graph that gives the same bits as `graph` for every env, capture and literal, with captures and slots numbered alike."""
    return Graph(graph.kind, simplifier()(graph.root), graph.captures, graph.slots)
