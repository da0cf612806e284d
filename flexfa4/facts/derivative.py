"""Reverse-mode derivative of a graph, as expressions in the same leaves.

An adjoint is carried as a value together with the conditions under which it counts, and the selection is made last, at the
leaves and where paths join. So a branch that a where does not take contributes exactly 0 even where its own derivative is
infinite or NaN: `where(x > 0, log(x), 0)` has derivative 0 at x = 0, with no help from the user.

Where a function has no derivative, torch's choice is followed: abs'(0) = 0; two equal operands of minimum or maximum get half
each, or one of them all, as their node says (clamp and relu are such); rounding functions have derivative 0.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Callable

from flexfa4.ir import DType, Graph, Node, Op, cast, const, node
from flexfa4.ir.ops import FLOAT_LEAVES

from .simplify import simplifier

_BOOL = DType.BOOL


@dataclass(frozen=True)
class Adjoints:
    """d root = score * d score + sum of adjoint * d load (kind "score"), or out * d out + lse * d lse + ... (kind "out").

    Adjoints are float64 nodes where the graph computes in float64, else float32, also for half captures. A leaf that the root
    does not depend on has the constant 0. `loads` holds those float lookups alone that the root depends on, once each.
    """

    score: Node
    out: Node
    lse: Node
    loads: tuple[tuple[Node, Node], ...]


@dataclass(frozen=True)
class Expr:
    """A float node with operators, so that the table below reads as formulas."""

    node: Node

    def _binary(self, op: Op, other: "Expr | float", swap: bool = False) -> "Expr":
        dtype = self.node.dtype
        second = other.node if isinstance(other, Expr) else const(other, dtype)
        return Expr(node(op, (second, self.node) if swap else (self.node, second), dtype))

    def __add__(self, other: "Expr | float") -> "Expr":
        return self._binary(Op.ADD, other)

    __radd__ = __add__

    def __sub__(self, other: "Expr | float") -> "Expr":
        return self._binary(Op.SUB, other)

    def __rsub__(self, other: float) -> "Expr":
        return self._binary(Op.SUB, other, swap=True)

    def __mul__(self, other: "Expr | float") -> "Expr":
        return self._binary(Op.MUL, other)

    __rmul__ = __mul__

    def __truediv__(self, other: "Expr | float") -> "Expr":
        return self._binary(Op.DIV, other)

    def __pow__(self, other: "Expr") -> "Expr":
        return self._binary(Op.POW, other)

    def __neg__(self) -> "Expr":
        return self.apply(Op.NEG)

    def apply(self, op: Op, *others: "Expr") -> "Expr":
        return Expr(node(op, (self.node, *(o.node for o in others)), self.node.dtype))

    def test(self, op: Op, other: "Expr | float") -> Node:
        second = other.node if isinstance(other, Expr) else const(other, self.node.dtype)
        return node(op, (self.node, second), _BOOL)


@dataclass(frozen=True)
class Flow:
    """An adjoint: `value` where all of `conditions` hold, and 0 elsewhere, whatever `value` is there."""

    value: Expr
    conditions: tuple[Node, ...] = ()

    def where(self, *conditions: Node) -> "Flow":
        total = self.conditions + tuple(c for c in conditions if c not in self.conditions)
        # Deeply nested selections would otherwise make lists of quadratic length.
        return Flow(self.value, total if len(total) <= 8 else (_conjunction(total),))


# A rule gives an operand's share of the adjoint g: an Expr, a Flow for what counts under conditions only, or None for 0.
# g, r and x, y are the adjoint, the result and the operands, all in the adjoint's dtype.
Share = "Expr | Flow | None"
Rule = Callable[..., "tuple[Share, ...]"]


def _not(n: Node) -> Node:
    return node(Op.NOT, (n,), _BOOL)


def _extremum(g: Expr, r: Expr, x: Expr, y: Expr, op: Op) -> tuple[Share, ...]:
    """minimum or maximum. At a tie the operand that the node names has everything, else each has half. Beside a NaN, named
    operands do as torch.clamp (0: x has nothing) and torch.relu (1: x has everything)."""
    n = r.node.args[0] if r.node.op is Op.CAST else r.node
    tie = n.attr if n.op is op else None

    def test(order: Op, a: Expr, b: Expr) -> Node:
        return a.test(order, b) if op is Op.MAX else b.test(order, a)

    if tie == 0:
        return Flow(g, (test(Op.LE, y, x),)), Flow(g, (test(Op.LT, x, y),))
    if tie == 1:
        below = test(Op.LE, x, y)
        return Flow(g, (_not(below),)), Flow(g, (below,))
    value = Expr(node(Op.WHERE, (x.test(Op.EQ, y), (g * 0.5).node, g.node), g.node.dtype))
    return Flow(value, (_not(test(Op.LT, x, y)),)), Flow(value, (_not(test(Op.LT, y, x)),))


def _power(g: Expr, r: Expr, x: Expr, y: Expr) -> tuple[Share, ...]:
    """x^y: y x^(y-1), which is 0 for y = 0 also at x = 0; and x^y log x, which is 0 at x = 0 for y >= 0."""
    if y.node.op is Op.CONST:
        exponent = y.node.attr
        return (None if exponent == 0 else g * (exponent * x ** Expr(const(exponent - 1, y.node.dtype))), None)
    by_x = Flow(g * (y * x ** (y - 1.0)), (y.test(Op.NE, 0.0),))
    flat = node(Op.AND, (x.test(Op.EQ, 0.0), node(Op.LE, (const(0.0, y.node.dtype), y.node), _BOOL)), _BOOL)
    return by_x, Flow(g * (r * x.apply(Op.LOG)), (_not(flat),))


def _zero(*_: Expr) -> tuple[Share, ...]:
    return (None, None)


def _angle(g: Expr, x: Expr, y: Expr) -> tuple[Share, ...]:
    """atan2(x, y), at the origin 0."""
    square = x * x + y * y
    somewhere = (square.test(Op.NE, 0.0),)
    return Flow(g * y / square, somewhere), Flow(-(g * x / square), somewhere)


_LN2, _LN10 = math.log(2), math.log(10)

# Ops whose result is float and depends on float operands. CAST and WHERE, and LOAD and the leaves where adjoints end, are
# handled by `adjoints` itself.
DERIVATIVE: dict[Op, Rule] = {
    Op.ADD: lambda g, r, x, y: (g, g),
    Op.SUB: lambda g, r, x, y: (g, -g),
    Op.MUL: lambda g, r, x, y: (g * y, g * x),
    Op.DIV: lambda g, r, x, y: (g / y, -(g * (x / y / y))),
    Op.MOD: lambda g, r, x, y: (g, -(g * x.apply(Op.FLOORDIV, y))),
    Op.FMOD: lambda g, r, x, y: (g, -(g * x.apply(Op.TRUNCDIV, y))),
    Op.POW: _power,
    Op.MIN: lambda g, r, x, y: _extremum(g, r, x, y, Op.MIN),
    Op.MAX: lambda g, r, x, y: _extremum(g, r, x, y, Op.MAX),
    Op.FLOORDIV: _zero,
    Op.TRUNCDIV: _zero,
    Op.NEG: lambda g, r, x: (-g,),
    Op.ABS: lambda g, r, x: (g * x.apply(Op.SIGN),),
    Op.SIGN: _zero,
    Op.FLOOR: _zero,
    Op.CEIL: _zero,
    Op.ROUND: _zero,
    Op.TRUNC: _zero,
    Op.EXP: lambda g, r, x: (g * r,),
    Op.EXP2: lambda g, r, x: (g * (r * _LN2),),
    Op.EXPM1: lambda g, r, x: (g * (r + 1.0),),
    Op.LOG: lambda g, r, x: (g / x,),
    Op.LOG2: lambda g, r, x: (g / (x * _LN2),),
    Op.LOG10: lambda g, r, x: (g / (x * _LN10),),
    Op.LOG1P: lambda g, r, x: (g / (x + 1.0),),
    Op.SQRT: lambda g, r, x: (g / (r * 2.0),),
    Op.RSQRT: lambda g, r, x: (g * (r * r * r * -0.5),),
    Op.RECIPROCAL: lambda g, r, x: (-(g * (r * r)),),
    Op.TANH: lambda g, r, x: (g * (1.0 - r * r),),
    Op.SIGMOID: lambda g, r, x: (g * (r * (1.0 - r)),),
    Op.ERF: lambda g, r, x: (g * ((-(x * x)).apply(Op.EXP) * (2 / math.sqrt(math.pi))),),
    Op.SIN: lambda g, r, x: (g * x.apply(Op.COS),),
    Op.COS: lambda g, r, x: (-(g * x.apply(Op.SIN)),),
    Op.TAN: lambda g, r, x: (g * (1.0 + r * r),),
    Op.ATAN: lambda g, r, x: (g / (1.0 + x * x),),
    Op.ATAN2: lambda g, r, x, y: _angle(g, x, y),
}

# Results that are not floats, or (CONST, SLOT, index leaves) do not vary with a float: no derivative by definition.
NO_DERIVATIVE = frozenset({
    Op.B, Op.H, Op.Q, Op.KV, Op.D, Op.CONST, Op.SLOT, Op.AND, Op.OR, Op.XOR, Op.NOT, Op.SHL, Op.SHR, Op.LT, Op.LE, Op.EQ, Op.NE,
    Op.ISNAN, Op.ISINF,
})
# What `adjoints` handles by itself: where adjoints end, and how they pass a selection and a cast.
STRUCTURAL = frozenset({Op.SCORE, Op.OUT, Op.LSE, Op.LOAD, Op.WHERE, Op.CAST})


def _compute(dtype: DType) -> DType:
    return DType.F64 if dtype is DType.F64 else DType.F32


def _conjunction(conditions: tuple[Node, ...]) -> Node:
    total = conditions[0]
    for c in conditions[1:]:
        total = node(Op.AND, (total, c), _BOOL)
    return total


def _selected(flow: Flow) -> Node:
    """The adjoint as a plain value."""
    if not flow.conditions:
        return flow.value.node
    dtype = flow.value.node.dtype
    return node(Op.WHERE, (_conjunction(flow.conditions), flow.value.node, const(0.0, dtype)), dtype)


def _join(a: Flow, b: Flow) -> Flow:
    """The sum of two adjoints of one value. It counts where either does."""
    if a.conditions == b.conditions:
        return Flow(a.value + b.value, a.conditions)
    outer, dtype = a.conditions[:-1], a.value.node.dtype
    if a.conditions and b.conditions and outer == b.conditions[:-1]:
        last, other = a.conditions[-1], b.conditions[-1]
        if other is _not(last):
            return Flow(Expr(node(Op.WHERE, (last, a.value.node, b.value.node), dtype)), outer)
        if last is _not(other):
            return Flow(Expr(node(Op.WHERE, (other, b.value.node, a.value.node), dtype)), outer)
    total = Expr(_selected(a)) + Expr(_selected(b))
    if not a.conditions or not b.conditions:
        return Flow(total)
    return Flow(total, (node(Op.OR, (_conjunction(a.conditions), _conjunction(b.conditions)), _BOOL),))


def _active(graph: Graph) -> set[Node]:
    """Float nodes that vary with a float leaf or lookup; indices do not count."""
    found: set[Node] = set()
    for n in graph.nodes:
        if n.dtype.is_float and (n.op in FLOAT_LEAVES or n.op is Op.LOAD or any(a in found for a in n.args)):
            found.add(n)
    return found


def _shares(n: Node, flow: Flow) -> list["Flow | None"]:
    """What each operand of `n` receives of its adjoint."""
    if n.op is Op.WHERE:
        condition = n.args[0]
        return [None, flow.where(condition), flow.where(_not(condition))]
    if n.op is Op.CAST:
        return [flow]
    dtype = flow.value.node.dtype
    operands = (Expr(cast(a, dtype)) for a in n.args)
    shares = DERIVATIVE[n.op](flow.value, Expr(cast(n, dtype)), *operands)
    return [None if s is None else Flow(s.value, flow.conditions).where(*s.conditions) if isinstance(s, Flow)
            else Flow(s, flow.conditions) for s in shares]


@lru_cache(maxsize=1024)
def adjoints(graph: Graph) -> Adjoints:
    """Derivatives of the root of a "score" or "out" graph in its float leaves and lookups, simplified.

    Gradients do not flow through indices, integers or Booleans. Raises ValueError for a graph whose root is not float.
    """
    if not graph.root.dtype.is_float:
        raise ValueError(f"a {graph.kind} graph has no derivative: its root is {graph.root.dtype!r}")
    active = _active(graph)
    flows: dict[Node, Flow] = {graph.root: Flow(Expr(const(1.0, _compute(graph.root.dtype))))}
    ends: dict[Node, Node] = {}
    simple = simplifier()
    for n in reversed(graph.nodes):
        flow = flows.pop(n, None)
        if flow is None or n not in active:
            continue
        if n.op in FLOAT_LEAVES or n.op is Op.LOAD:
            ends[n] = simple(_selected(flow))
            continue
        for a, share in zip(n.args, _shares(n, flow)):
            if share is not None and a in active:
                share = Flow(Expr(cast(share.value.node, _compute(a.dtype))), share.conditions)
                flows[a] = _join(flows[a], share) if a in flows else share
    leaf = {n.op: adjoint for n, adjoint in ends.items() if n.op in FLOAT_LEAVES}
    zero = const(0.0, _compute(graph.root.dtype))
    loads = tuple((n, ends[n]) for n in graph.nodes if n.op is Op.LOAD and n in ends)
    return Adjoints(leaf.get(Op.SCORE, zero), leaf.get(Op.OUT, zero), leaf.get(Op.LSE, zero), loads)
