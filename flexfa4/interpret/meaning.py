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
    Op.FLOORDIV: Meaning("divide({0}, {1}, 'floor')", (1,), "torch.div({0}, {1}, rounding_mode='floor')"),
    Op.MOD: Meaning("modulo(torch.remainder, {0}, {1})", (1,), "torch.remainder({0}, {1})"),
    Op.TRUNCDIV: Meaning("divide({0}, {1}, 'trunc')", (1,), "torch.div({0}, {1}, rounding_mode='trunc')"),
    Op.FMOD: Meaning("modulo(torch.fmod, {0}, {1})", (1,), "torch.fmod({0}, {1})"),
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


def divide(a: torch.Tensor, b: torch.Tensor, rounding: str) -> torch.Tensor:
    """Rounded quotient; an integer division by zero, which torch refuses on the CPU, gives an arbitrary value: it may lie in
    the branch of a where that is not taken."""
    return torch.div(a, b if b.dtype.is_floating_point else b.masked_fill(b == 0, 1), rounding_mode=rounding)


def modulo(function, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`function(a, b)`, with integer division by zero as in `divide`."""
    return function(a, b if b.dtype.is_floating_point else b.masked_fill(b == 0, 1))
