"""EVALUATE: what each op computes, as Python source over torch. One row for every Op.

A row is a template: {0}, {1}, {2} stand for the operands, {dtype} for the torch type of the result, {attr} for the node's
attribute. Operands are tensors, except at the positions listed in `numbers`, where a static or runtime scalar stays a Python
number: torch then computes with it as it does in the user's own code, and no tensor is made for it.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch

from flexfa4.ir import Op


@dataclass(frozen=True)
class Meaning:
    """`source` is the template; `numbers` the operand positions that may hold a Python number (at most one of them, where all
    others are tensors); `with_number` the template to use then, where it differs."""

    source: str
    numbers: tuple[int, ...] = ()
    with_number: str = ""


def _either(source: str) -> Meaning:
    return Meaning(source, (0, 1))


def _unary(name: str) -> Meaning:
    return Meaning(f"torch.{name}({{0}})")


EVALUATE: dict[Op, Meaning] = {
    Op.SCORE: Meaning("env[SCORE]"),
    Op.B: Meaning("env[B]"),
    Op.H: Meaning("env[H]"),
    Op.Q: Meaning("env[Q]"),
    Op.KV: Meaning("env[KV]"),
    Op.OUT: Meaning("env[OUT]"),
    Op.LSE: Meaning("env[LSE]"),
    Op.D: Meaning("env[D]"),
    Op.CONST: Meaning("number({attr})"),
    Op.SLOT: Meaning("literals[{attr}]"),
    Op.LOAD: Meaning("load(tensors[{attr}]{args})"),
    Op.ADD: _either("{0} + {1}"),
    Op.SUB: _either("{0} - {1}"),
    Op.MUL: _either("{0} * {1}"),
    Op.DIV: _either("{0} / {1}"),
    Op.FLOORDIV: Meaning("divide({0}, {1}, 'floor')", (1,)),
    Op.MOD: Meaning("modulo(torch.remainder, {0}, {1})", (1,)),
    Op.TRUNCDIV: Meaning("divide({0}, {1}, 'trunc')", (1,)),
    Op.FMOD: Meaning("modulo(torch.fmod, {0}, {1})", (1,)),
    Op.POW: Meaning("torch.pow({0}, {1})", (1,)),
    Op.MIN: Meaning("torch.minimum({0}, {1})", (1,), "torch.clamp_max({0}, {1})"),
    Op.MAX: Meaning("torch.maximum({0}, {1})", (1,), "torch.clamp_min({0}, {1})"),
    Op.AND: _either("{0} & {1}"),
    Op.OR: _either("{0} | {1}"),
    Op.XOR: _either("{0} ^ {1}"),
    Op.NOT: Meaning("~{0}"),
    Op.SHL: Meaning("{0} << {1}", (1,)),
    Op.SHR: Meaning("{0} >> {1}", (1,)),
    Op.LT: _either("{0} < {1}"),
    Op.LE: _either("{0} <= {1}"),
    Op.EQ: _either("{0} == {1}"),
    Op.NE: _either("{0} != {1}"),
    Op.WHERE: Meaning("torch.where({0}, {1}, {2})", (1, 2)),
    Op.CAST: Meaning("{0}.to({dtype})"),
    Op.NEG: Meaning("-{0}"),
    Op.ABS: _unary("abs"),
    # torch.sign gives 0 for NaN; so does this op.
    Op.SIGN: _unary("sign"),
    Op.FLOOR: _unary("floor"),
    Op.CEIL: _unary("ceil"),
    Op.ROUND: _unary("round"),
    Op.TRUNC: _unary("trunc"),
    Op.EXP: _unary("exp"),
    Op.EXP2: _unary("exp2"),
    Op.EXPM1: _unary("expm1"),
    Op.LOG: _unary("log"),
    Op.LOG2: _unary("log2"),
    Op.LOG10: _unary("log10"),
    Op.LOG1P: _unary("log1p"),
    Op.SQRT: _unary("sqrt"),
    Op.RSQRT: _unary("rsqrt"),
    Op.RECIPROCAL: _unary("reciprocal"),
    Op.TANH: _unary("tanh"),
    Op.SIGMOID: _unary("sigmoid"),
    Op.ERF: _unary("erf"),
    Op.SIN: _unary("sin"),
    Op.COS: _unary("cos"),
    Op.TAN: _unary("tan"),
    Op.ATAN: _unary("atan"),
    Op.ATAN2: Meaning("torch.atan2({0}, {1})"),
    Op.ISNAN: _unary("isnan"),
    Op.ISINF: _unary("isinf"),
}


def load(captured: torch.Tensor, *index: torch.Tensor | int) -> torch.Tensor:
    """`captured[index]`, one index a dimension; a negative index counts from the end once, and one that is out of range still
    reads some element (the nearest edge), so that positions which are masked away cost no crash.

    The result has the broadcast shape of the index tensors.
    """
    dim, lookups = 0, []
    for i in index:
        size = captured.shape[dim]
        if size == 0:
            shape = torch.broadcast_shapes(*(i.shape for i in index if isinstance(i, torch.Tensor)))
            return captured.new_zeros(shape)
        if isinstance(i, torch.Tensor):
            lookups.append(i.clamp(-size, size - 1))
            dim += 1
        else:
            captured = captured.select(dim, max(min(i, size - 1), -size))
    # Not captured[lookups]: that reads a 0-d index back to the host.
    return torch.ops.aten.index.Tensor(captured, lookups) if lookups else captured


def divide(a: torch.Tensor, b: torch.Tensor | int | float, rounding: str) -> torch.Tensor:
    """Rounded quotient. Of integers, two divisions that stop a CPU are given a value, since they may lie in the branch of a where
    that is not taken: by zero, anything, and the least number by -1, that number, as negation wraps."""
    if a.dtype.is_floating_point:
        return torch.div(a, b, rounding_mode=rounding)
    if not isinstance(b, torch.Tensor):
        return -a if b == -1 else torch.div(a, b or 1, rounding_mode=rounding)
    quotient = torch.div(a, _divisor(b), rounding_mode=rounding)
    return torch.where(b == -1, -a, quotient) if b.dtype.is_signed else quotient


def modulo(function, a: torch.Tensor, b: torch.Tensor | int | float) -> torch.Tensor:
    """`function(a, b)`, with integers as in `divide`."""
    if a.dtype.is_floating_point:
        return function(a, b)
    if not isinstance(b, torch.Tensor):
        return function(a, 1 if b in (0, -1) else b)
    return function(a, _divisor(b))


def _divisor(b: torch.Tensor) -> torch.Tensor:
    stops = (b == 0) | (b == -1) if b.dtype.is_signed else b == 0
    return b.masked_fill(stops, 1)
