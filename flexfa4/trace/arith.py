"""Scalar operations on traced values: promotion as torch does it, then one or a few IR nodes.

Arguments are `Traced`, Python numbers, or 0-d tensors (which become captures). float16 and bfloat16 are computed wide, in
float32, and rounded back, wherever torch does so: in float-only functions, and where a Python number takes part (torch keeps
such a number in float32).
"""
from __future__ import annotations

import math
import numbers

import numpy as np
import torch

from ..ir import DType, Node, Op, cast, const, node, promote
from ..ir.dtypes import INT_RANGE
from ..tensors import FROM_TORCH, TO_TORCH
from .dtypes import HALVES, as_float, default_float, result_dtype
from .recorder import active, refuse
from .tracer import Traced

Number = (bool, int, float)
_BOOL = DType.BOOL                  # an enumeration's members are slow to look up


def lift(x):
    """`x` as a Traced or a plain Python number."""
    if isinstance(x, (Traced, bool, int, float)):
        return x
    if isinstance(x, torch.Tensor):
        return capture_scalar(x)
    if isinstance(x, np.generic) or (isinstance(x, np.ndarray) and x.ndim == 0):
        return lift(x.item())
    if isinstance(x, numbers.Integral):
        return int(x)
    if isinstance(x, numbers.Real):
        return float(x)
    if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        # A number that torch.compile meets with another value: it is compiled again for each.
        return bool(x) if isinstance(x, torch.SymBool) else int(x) if isinstance(x, torch.SymInt) else float(x)
    if isinstance(x, complex):
        raise refuse("a complex number in a mod", "real arithmetic")
    raise refuse(f"a {type(x).__name__} ({x!r:.60}) meets a traced value",
                 "a number, or a captured tensor with every index given")


def capture_scalar(t: torch.Tensor) -> Traced:
    """A captured tensor used without an index: a 0-d one is a number read at run time."""
    rec = active()
    index = rec.capture(t)
    if t.dim():
        name = rec.capture_names[index]
        given = ", ".join(["..."] * t.dim())
        raise refuse(f"captured tensor `{name}` of shape {tuple(t.shape)} is used as if it were one number",
                     f"an index for each of its {t.dim()} dimensions, {name}[{given}]")
    return Traced(rec.load(index, ()))


def dtype_of(*xs) -> DType:
    """torch.result_type of lifted arguments."""
    if len(xs) == 2 and type(xs[0]) is Traced and type(xs[1]) is Traced:
        return promote(xs[0].node.dtype, xs[1].node.dtype)
    return result_dtype([x.node.dtype for x in xs if isinstance(x, Traced)], [x for x in xs if not isinstance(x, Traced)])


def as_node(x, dtype: DType, static: bool = False) -> Node:
    """A lifted argument as a node of a dtype; a Python number becomes a literal of it."""
    if isinstance(x, Traced):
        if static and x.number is not None:
            return const(x.number, dtype)
        return cast(x.node, dtype)
    return active().literal(x, dtype, static)


def converted(value, dtype: DType, what: str):
    """A Python number as torch stores it in a tensor of a type: rounded toward 0 in integers, refused where it does not fit."""
    if dtype.is_bool:
        return bool(value)
    high = INT_RANGE[dtype][1] if dtype.is_int else torch.finfo(TO_TORCH[dtype]).max
    fits = -high - (dtype.is_int and dtype is not DType.U8) <= value <= high
    if not fits and (dtype.is_int or abs(value) < math.inf):
        raise refuse(f"the number {value} as {what} does not fit {dtype!r}",
                     "a number of that type" + (", such as float('-inf')" if dtype.is_float else ""))
    if not dtype.is_int:
        return value
    return int(value) % 256 if dtype is DType.U8 else int(value)


def emit(op: Op, args: tuple[Node, ...], dtype: DType) -> Traced:
    return Traced(node(op, args, dtype))


def binary(op: Op, a, b, *, static: bool = False, wide: bool = True, allow_bool: bool = False) -> Traced:
    """Arithmetic of two operands in their common type. `static`: a Python number on the right is structure. `wide`: with a
    Python number, halves are computed in float32."""
    a, b = lift(a), lift(b)
    dtype = dtype_of(a, b)
    if dtype.is_bool and not allow_bool:
        raise refuse(f"{op.name.lower()} of two bools", "x.int() first, or & | ^ ~ for logic")
    if dtype in HALVES and wide and not (isinstance(a, Traced) and isinstance(b, Traced)):
        return emit(Op.CAST, (node(op, (as_node(a, DType.F32), as_node(b, DType.F32)), DType.F32),), dtype)
    return emit(op, (as_node(a, dtype), as_node(b, dtype, static and dtype.is_int)), dtype)


def _with_scaled(op: Op, a, b, alpha) -> Traced:
    """a + alpha * b (or a - alpha * b) in the type of torch.result_type(a, b), which alpha must suit."""
    dtype, alpha = dtype_of(a, b), lift(alpha)
    if isinstance(alpha, bool) and not dtype.is_bool:
        raise refuse(f"alpha={alpha} where the result is {dtype!r}", "a number as alpha")
    if isinstance(alpha, float) and not dtype.is_float:
        raise refuse(f"alpha={alpha} where the result is {dtype!r}", "a float operand: x.float(), or an integer alpha")
    if dtype.is_bool:
        return binary(Op.OR, a, b if alpha else False, allow_bool=True)
    inner = DType.F32 if dtype in HALVES else dtype
    product = node(Op.MUL, (as_node(b, inner), as_node(alpha, inner)), inner)
    return Traced(cast(node(op, (as_node(a, inner), product), inner), dtype))


def _is_one(alpha) -> bool:
    return type(alpha) is int and alpha == 1


def add(a, b, *, alpha=1) -> Traced:
    a, b = lift(a), lift(b)
    if not _is_one(alpha):
        return _with_scaled(Op.ADD, a, b, alpha)
    if dtype_of(a, b).is_bool:
        return binary(Op.OR, a, b, allow_bool=True)
    return binary(Op.ADD, a, b)


def sub(a, b, *, alpha=1) -> Traced:
    a, b = lift(a), lift(b)
    for x in (a, b):
        if isinstance(x, bool) or (isinstance(x, Traced) and x.node.dtype.is_bool):
            raise refuse("subtraction with a bool", "x.int() first, or ^ (logical_xor), or ~x")
    return binary(Op.SUB, a, b) if _is_one(alpha) else _with_scaled(Op.SUB, a, b, alpha)


def mul(a, b) -> Traced:
    a, b = lift(a), lift(b)
    if dtype_of(a, b).is_bool:
        return binary(Op.AND, a, b, allow_bool=True)
    return binary(Op.MUL, a, b)


def true_div(a, b) -> Traced:
    a, b = lift(a), lift(b)
    dtype = as_float(dtype_of(a, b))
    if dtype in HALVES and not (isinstance(a, Traced) and isinstance(b, Traced)):
        return emit(Op.CAST, (node(Op.DIV, (as_node(a, DType.F32), as_node(b, DType.F32)), DType.F32),), dtype)
    return emit(Op.DIV, (as_node(a, dtype), as_node(b, dtype)), dtype)


def integer_like(op: Op, a, b) -> Traced:
    """//, %, fmod and truncating division: a Python integer divisor is structure, since `x // 64` is a shift."""
    a, b = lift(a), lift(b)
    if not isinstance(b, Traced) and b == 0 and dtype_of(a, b).is_int:
        raise refuse("division of an integer by zero", "a divisor that is not 0")
    return binary(op, a, b, static=True, wide=False)


def div(a, b, *, rounding_mode=None) -> Traced:
    if rounding_mode is None:
        return true_div(a, b)
    if rounding_mode not in ("floor", "trunc"):
        raise refuse(f"rounding_mode={rounding_mode!r}", "None, 'floor' or 'trunc'")
    return integer_like(Op.FLOORDIV if rounding_mode == "floor" else Op.TRUNCDIV, a, b)


def power(a, b) -> Traced:
    """x ** n: products for a Python exponent 0..8 (integer valued), sqrt for 0.5, else POW."""
    a, b = lift(a), lift(b)
    dtype = dtype_of(a, b)
    if isinstance(a, Traced) and not isinstance(b, Traced):
        if dtype.is_int and b < 0:
            raise refuse(f"an integer to the negative power {b}", "x.float() first")
        if b == 0.5:      # as torch does on float32; on halves it gives inf at -inf, where this gives NaN
            return unary_float(Op.SQRT, a)
        if 0 <= b <= 8 and b == int(b):
            return _chain(a, int(b), dtype)
    if dtype.is_bool:
        raise refuse("** of two bools", "& for logic, or x.int() first")
    return binary(Op.POW, a, b)


def _chain(a: Traced, exponent: int, dtype: DType) -> Traced:
    inner = DType.F32 if dtype in HALVES else dtype
    square, result = cast(a.node, inner), None
    if exponent == 0:
        return Traced(const(1, dtype))
    while exponent:
        if exponent & 1:
            result = square if result is None else node(Op.MUL, (result, square), inner)
        exponent >>= 1
        square = node(Op.MUL, (square, square), inner) if exponent else square
    return Traced(cast(result, dtype))


def bitwise(op: Op, a, b) -> Traced:
    if type(a) is Traced and type(b) is Traced and a.node.dtype is b.node.dtype is _BOOL:
        return Traced(node(op, (a.node, b.node), _BOOL))
    a, b = lift(a), lift(b)
    dtype = dtype_of(a, b)
    if dtype.is_float:
        raise refuse(f"bitwise {op.name.lower()} of a float", "a comparison first: (a < b) & (c < d); mind the parentheses")
    return emit(op, (as_node(a, dtype), as_node(b, dtype)), dtype)


def shift(op: Op, a, b) -> Traced:
    a, b = lift(a), lift(b)
    dtype = dtype_of(a, b)
    if not dtype.is_int:
        raise refuse(f"a shift of {dtype!r}", "x.int() or x.long() first")
    if not isinstance(b, Traced) and not 0 <= b < 64:
        raise refuse(f"a shift by {b}", "a shift by 0 to 63")
    return emit(op, (as_node(a, dtype, static=True), as_node(b, dtype, static=True)), dtype)


def compare(op: Op, a, b, *, swap: bool = False) -> Traced:
    """<, <=, == and !=; `swap` for > and >=. On bools False < True."""
    if type(a) is Traced and type(b) is Traced and a.node.dtype is b.node.dtype:
        x, y, dtype = a.node, b.node, a.node.dtype
    else:
        a, b = lift(a), lift(b)
        dtype = dtype_of(a, b)
        x, y = as_node(a, dtype), as_node(b, dtype)
    if swap:
        x, y = y, x
    if dtype is _BOOL and op in (Op.LT, Op.LE):
        return emit(Op.AND if op is Op.LT else Op.OR, (node(Op.NOT, (x,), dtype), y), dtype)
    return Traced(node(op, (x, y), _BOOL))


def extremum(op: Op, a, b, tie: int | None = None) -> Traced:
    """The smaller or larger of two. `tie`: which of them has the whole gradient where they are equal; None: each has half."""
    a, b = lift(a), lift(b)
    dtype = dtype_of(a, b)
    if dtype.is_bool:
        op = Op.AND if op is Op.MIN else Op.OR
    return Traced(node(op, (as_node(a, dtype), as_node(b, dtype)), dtype, tie if dtype.is_float else None))


def clamp(x, min=None, max=None, tie: int = 0) -> Traced:
    """torch.clamp: min(max(x, lo), hi), in the common type of all three; the upper bound wins where they cross. `tie`: at an
    edge x has the gradient (0, clamp), or the edge (1, relu and its kin)."""
    if min is None and max is None:
        raise refuse("clamp without a bound", "x.clamp(min=..., max=...)")
    parts = [lift(p) for p in (x, min, max) if p is not None]
    dtype = dtype_of(*parts)
    if dtype.is_bool:
        if not all(isinstance(p, Traced) for p in parts):
            raise refuse("clamp of a bool", "x.int() first")
        low = x if min is None else extremum(Op.MAX, x, min)
        return low if max is None else extremum(Op.MIN, low, max)
    for bound in parts[1:]:
        if dtype.is_float and not isinstance(bound, Traced):
            converted(bound, dtype, "a bound of clamp")
    n, attr = as_node(parts[0], dtype), tie if dtype.is_float else None
    if min is not None:
        n = node(Op.MAX, (n, as_node(lift(min), dtype)), dtype, attr)
    if max is not None:
        n = node(Op.MIN, (n, as_node(lift(max), dtype)), dtype, attr)
    return Traced(n)


def where(condition, a, b) -> Traced:
    condition, a, b = lift(condition), lift(a), lift(b)
    if not isinstance(condition, Traced):
        raise refuse(f"torch.where with the Python value {condition!r} as condition", "a Python if, which is decided once")
    if not condition.node.dtype.is_bool:
        raise refuse(f"torch.where with a condition of dtype {condition.dtype}", "a comparison, such as x != 0")
    strong = [x for x in (a, b) if isinstance(x, Traced)]
    dtype = dtype_of(a, b) if strong else result_dtype([], [a, b])
    return emit(Op.WHERE, (condition.node, as_node(a, dtype), as_node(b, dtype)), dtype)


def unary_float(op: Op, x) -> Traced:
    """A float-only function: integers go to the default float type, halves are computed in float32."""
    x = lift(x)
    dtype = as_float(dtype_of(x))
    inner = DType.F32 if dtype in HALVES else dtype
    return Traced(cast(node(op, (as_node(x, inner),), inner), dtype))


def rounding(op: Op, x) -> Traced:
    """floor, ceil, round, trunc: the identity on integers."""
    x = lift(x)
    dtype = dtype_of(x)
    if dtype.is_bool:
        raise refuse(f"{op.name.lower()} of a bool", "x.int()")
    return Traced(as_node(x, dtype)) if dtype.is_int else emit(op, (as_node(x, dtype),), dtype)


def negative(x) -> Traced:
    x = lift(x)
    if dtype_of(x).is_bool:
        raise refuse("-x of a bool", "~x, or -x.int()")
    return emit(Op.NEG, (as_node(x, dtype_of(x)),), dtype_of(x))


def number_unary(op: Op, x) -> Traced:
    x = lift(x)
    dtype = dtype_of(x)
    if dtype.is_bool:
        if op is Op.SIGN:
            return Traced(as_node(x, dtype))
        raise refuse(f"{op.name.lower()} of a bool", "x.int() first")
    return emit(op, (as_node(x, dtype),), dtype)


def invert(x) -> Traced:
    x = lift(x)
    dtype = dtype_of(x)
    if dtype.is_float:
        raise refuse("~x of a float", "a comparison first, such as ~(x > 0)")
    return emit(Op.NOT, (as_node(x, dtype),), dtype)


def truth(x) -> Traced:
    """x != 0, as logical_and and its kin see their operands."""
    x = lift(x)
    return Traced(as_node(x, dtype_of(x))) if dtype_of(x).is_bool else Traced(cast(as_node(x, dtype_of(x)), DType.BOOL))


def logical(op: Op, a, b) -> Traced:
    return emit(op, (truth(a).node, truth(b).node), DType.BOOL)


def float_test(op: Op, x) -> Traced:
    x = lift(x)
    dtype = dtype_of(x)
    return emit(op, (as_node(x, dtype),), DType.BOOL) if dtype.is_float else Traced(const(False, DType.BOOL))


def atan2(a, b) -> Traced:
    a, b = lift(a), lift(b)
    dtype = as_float(dtype_of(a, b))
    inner = DType.F32 if dtype in HALVES else dtype
    return Traced(cast(node(Op.ATAN2, (as_node(a, inner), as_node(b, inner)), inner), dtype))


def to_dtype(x, dtype: torch.dtype) -> Traced:
    x = lift(x)
    target = FROM_TORCH.get(dtype)
    if target is None:
        raise refuse(f"a cast to {dtype}", "bool, uint8, int8..int64, float16, bfloat16, float32 or float64")
    if isinstance(x, Traced) and x.node.dtype is target:
        return x                     # as torch does, so that what is written to the one is written to the other
    return Traced(cast(as_node(x, dtype_of(x)), target))


def copied(x: Traced) -> Traced:
    """The same value, which in-place methods of `x` leave as it is."""
    return Traced(x.node, x.number)


def constant(value, dtype: torch.dtype | None) -> Traced:
    """torch.tensor(3), torch.full((), c), x.new_tensor(2): a 0-d tensor made inside the mod, as a literal of that dtype."""
    value = lift(value)
    if isinstance(value, Traced):
        return copied(value if dtype is None else to_dtype(value, dtype))
    if dtype is not None:
        target = FROM_TORCH.get(dtype)
        if target is None:
            raise refuse(f"a number of dtype {dtype}", "a bool, integer or float dtype")
    else:
        target = DType.BOOL if isinstance(value, bool) else DType.I64 if isinstance(value, int) else default_float()
    value = bool(value) if target.is_bool else int(value) if target.is_int else value
    return Traced(active().literal(value, target), number=value)
