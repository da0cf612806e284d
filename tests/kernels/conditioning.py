"""A score graph in float64 beside a bound of what float32 and the approximations of the op table may change in it.

    found = evaluate(bound, leaves, score_error)      found.value, found.error: float64

Error bounds are carried from node to node, to first order: of every operand its own times the derivative, and of every operation
its rounding. What decides between branches is marked where it may come out the other way; a branch then adds the difference."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch

from flexfa4.emit.approx import APPROXIMATIONS
from flexfa4.ir import DType, Node, Op
from flexfa4.ir.bound import BoundGraph

# Of tanh.approx, relative: 1.06e-5 at most in sweeps of an H200's (`benchmarks/special_tables.py`); its documentation says 2^-11.
OF_TANH = 2.0**-16
ROUNDING = 2.0**-22  # of an operation in float32, with room for another order of the same sum
DECIDES = {Op.LT: torch.lt, Op.LE: torch.le, Op.EQ: torch.eq, Op.NE: torch.ne}
LOGIC = {Op.AND: torch.logical_and, Op.OR: torch.logical_or, Op.XOR: torch.logical_xor, Op.NOT: torch.logical_not}
STEPS = {Op.FLOOR: torch.floor, Op.CEIL: torch.ceil, Op.TRUNC: torch.trunc, Op.ROUND: torch.round}
SMOOTH: dict[Op, Callable] = {
    Op.ADD: torch.add, Op.SUB: torch.sub, Op.MUL: torch.mul, Op.DIV: torch.div, Op.MIN: torch.minimum, Op.MAX: torch.maximum,
    Op.NEG: torch.neg, Op.ABS: torch.abs, Op.EXP: torch.exp, Op.EXP2: torch.exp2, Op.LOG: torch.log, Op.LOG2: torch.log2,
    Op.LOG1P: torch.log1p, Op.SQRT: torch.sqrt, Op.RSQRT: torch.rsqrt, Op.RECIPROCAL: torch.reciprocal, Op.TANH: torch.tanh,
    Op.SIGMOID: torch.sigmoid, Op.ERF: torch.erf, Op.SIN: torch.sin, Op.COS: torch.cos, Op.ATAN: torch.atan,
}  # fmt: skip
INTEGERS: dict[Op, Callable] = {
    Op.ADD: torch.add, Op.SUB: torch.sub, Op.MUL: torch.mul, Op.MIN: torch.minimum, Op.MAX: torch.maximum, Op.NEG: torch.neg,
    Op.ABS: torch.abs, Op.FLOORDIV: torch.floor_divide, Op.MOD: torch.remainder, Op.AND: torch.bitwise_and,
    Op.OR: torch.bitwise_or, Op.XOR: torch.bitwise_xor, Op.NOT: torch.bitwise_not,
}  # fmt: skip
OPS = frozenset({Op.LOAD, Op.CAST, Op.WHERE, *DECIDES, *LOGIC, *STEPS, *SMOOTH, *INTEGERS})


@dataclass(frozen=True)
class Known:
    """A node's value, float64, int64 or bool, and how far a kernel's may be from it; of a bool 1 where it may be the other."""

    value: torch.Tensor
    error: torch.Tensor


class Unsure(Exception):
    """A decision hangs on rounding where its outcome is an integer or an index, or an operation leaves where its bound holds, or
    it has none here."""


def evaluate(bound: BoundGraph, leaves: dict[Op, torch.Tensor], score_error: torch.Tensor) -> Known:
    """leaves: SCORE in float64, positions in int64, that broadcast."""
    known: dict[Node, Known] = {}

    def of(node: Node) -> Known:
        if node not in known:
            known[node] = _node(node, [of(arg) for arg in node.args], bound, leaves, score_error)
        return known[node]

    return of(bound.graph.root)


def _node(node: Node, args: list[Known], bound: BoundGraph, leaves: dict, score_error: torch.Tensor) -> Known:
    if node.op is Op.SCORE:
        return Known(leaves[Op.SCORE], score_error)
    if node.op in leaves:
        return _exact(leaves[node.op])
    if node.op is Op.CONST:
        return _stored(node.attr, node.dtype)
    if node.op is Op.SLOT:
        return _stored(bound.literals[node.attr], node.dtype)
    if node.op is Op.LOAD:
        return _exact(_wide(bound.tensors[node.attr][_sure(args)]))
    if node.op is Op.CAST:
        return _cast(node, *args)
    if node.op is Op.WHERE:
        return _where(*args)
    if node.op in DECIDES:
        a, b = args
        near = 1.0 if a.value.dtype is torch.bool else ((a.value - b.value).abs() <= a.error + b.error).double()
        return Known(DECIDES[node.op](a.value, b.value), near * _may(a, b))
    if node.dtype is DType.BOOL:
        return Known(LOGIC[node.op](*(a.value for a in args)), sum(a.error for a in args).clamp(max=1.0))
    if not node.dtype.is_float:
        return _exact(_within(INTEGERS[node.op](*_sure(args)), node.dtype))
    if node.op in STEPS:
        return _step(node, *args)
    if node.op not in SMOOTH:
        raise Unsure
    return _smooth(node, args)


def _exact(value: torch.Tensor) -> Known:
    return Known(value, torch.zeros((), dtype=torch.float64))


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value if value.dtype is torch.bool else value.double() if value.is_floating_point() else value.long()


def _stored(number, dtype: DType) -> Known:
    """A number as a kernel has it: floats in float32."""
    value = torch.tensor(number, dtype=torch.float64 if dtype.is_float else torch.bool if dtype is DType.BOOL else torch.int64)
    return _exact(value.float().double() if dtype.is_float else value)


def _may(*args: Known) -> torch.Tensor:
    """1 where any of them is not exact: what is exact decides as it does here, also between equal numbers."""
    return (sum(a.error for a in args) > 0).double()


def _sure(args: list[Known]) -> tuple[torch.Tensor, ...]:
    if any((a.error > 0).any() for a in args):
        raise Unsure
    return tuple(a.value for a in args)


def _within(value: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Of integers that a kernel may narrow to 32 bits."""
    if (value.abs() >= 2**31).any():
        raise Unsure
    return value


def _cast(node: Node, x: Known) -> Known:
    if node.dtype.is_float:
        moved = x.error if x.value.dtype is not torch.bool else (x.error > 0).double()
        value = x.value.double()
        return Known(value, moved + ROUNDING * value.abs() * (value.abs() >= 2.0**24))
    if node.dtype is DType.BOOL and x.value.is_floating_point():
        return Known(x.value != 0, (x.value.abs() <= x.error).double() * _may(x))
    (value,) = _sure([x])
    return _exact(_within(value.long(), node.dtype) if node.dtype is not DType.BOOL else value != 0)


def _where(chosen: Known, a: Known, b: Known) -> Known:
    value = torch.where(chosen.value, a.value, b.value)
    error = torch.where(chosen.value, a.error, b.error)
    if not (chosen.error > 0).any():
        return Known(value, error)
    apart = torch.logical_xor(a.value, b.value) if value.dtype is torch.bool else (a.value - b.value).abs()
    return Known(value, torch.where(chosen.error > 0, torch.maximum(a.error, b.error) + apart, error))


def _step(node: Node, x: Known) -> Known:
    """A whole number, and its neighbour where x is as near to an edge as its error."""
    low, high = (STEPS[node.op](x.value + sign * x.error) for sign in (-1, 1))
    return Known(STEPS[node.op](x.value), (high - low).abs())


def _smooth(node: Node, args: list[Known]) -> Known:
    values = [torch.as_tensor(a.value).detach().clone().requires_grad_() for a in args]
    shape = torch.broadcast_shapes(*(v.shape for v in values))
    wide = [v.expand(shape).clone() for v in values]
    result = SMOOTH[node.op](*wide)
    slopes = torch.autograd.grad(result.sum(), wide)
    value, rule = result.detach(), APPROXIMATIONS.get(node.op)
    error = sum(slope.abs() * a.error for slope, a in zip(slopes, args)) + ROUNDING * value.abs()
    if node.op in (Op.MIN, Op.MAX):
        error = torch.maximum(args[0].error, args[1].error).expand(shape)
    if rule:
        error = error + rule.absolute + (OF_TANH if node.op is Op.TANH else rule.relative) * value.abs()
    if node.op in (Op.EXP, Op.EXP2, Op.SIGMOID):
        error = error + args[0].value.abs() * 2.0**-23 * value.abs()
    # Where the slope changes within the error, the bound of first order says nothing.
    if node.op in (Op.DIV, Op.RECIPROCAL, Op.LOG, Op.LOG2, Op.LOG1P, Op.SQRT, Op.RSQRT):
        edge = args[-1].value + (1.0 if node.op is Op.LOG1P else 0.0)
        if (edge.abs() <= 64 * args[-1].error + 2.0**-100).any():
            raise Unsure
    if node.op in (Op.SIN, Op.COS) and (args[0].value.abs() > 2.0**15).any():
        raise Unsure
    return Known(value, error)
