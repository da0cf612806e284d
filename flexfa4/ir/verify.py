"""Which graphs are legal, as data: one typing rule for every Op, and a check that every pass's result can be put through."""
from __future__ import annotations

from dataclasses import dataclass

from flexfa4.errors import FlexError

from .dtypes import FLOATS, INT_RANGE, DType
from .graph import ARGUMENTS, Graph, Node
from .ops import ARITHMETIC, BITWISE, COMPARISONS, FLOAT_BINARY, FLOAT_TESTS, FLOAT_UNARY, INDEX_LEAVES, NUMBER_UNARY, SHIFTS, Op


class IllegalGraphError(FlexError, ValueError):
    """A graph that breaks a rule of the IR. It is a mistake in whatever built it, not in a user's mod."""


@dataclass(frozen=True)
class Rule:
    """`operands` and `result` are "T" (all of one type, out of `types`), "bool", "i64" or "any". `operands` is None for LOAD:
    as many i64 indices as its capture has dimensions. `attr` is the kind of attribute: "", "number", "slot", "capture", "tie"."""

    operands: tuple[str, ...] | None
    result: str
    types: frozenset[DType]
    attr: str = ""

    def __str__(self) -> str:
        operands = "(i64, ...)" if self.operands is None else f"({', '.join(self.operands)})"
        return f"{operands} -> {self.result}"


_ALL = frozenset(DType)
_INTS = frozenset(INT_RANGE)
_NUMBERS = _INTS | FLOATS
_COMPUTE = frozenset({DType.F32, DType.F64})
_I64 = frozenset({DType.I64})
_INTS_AND_BOOL = _INTS | {DType.BOOL}

RULES: dict[Op, Rule] = {
    **{op: Rule((), "T", _I64) for op in INDEX_LEAVES},
    **{op: Rule((), "T", _COMPUTE) for op in (Op.SCORE, Op.OUT, Op.LSE)},
    Op.CONST: Rule((), "T", _ALL, "number"),
    Op.SLOT: Rule((), "T", _ALL, "slot"),
    Op.LOAD: Rule(None, "T", _ALL, "capture"),
    **{op: Rule(("T", "T"), "T", _NUMBERS, "tie" if op in (Op.MIN, Op.MAX) else "") for op in ARITHMETIC},
    **{op: Rule(("T", "T"), "T", FLOATS) for op in FLOAT_BINARY},
    **{op: Rule(("T", "T"), "T", _INTS_AND_BOOL) for op in BITWISE},
    Op.NOT: Rule(("T",), "T", _INTS_AND_BOOL),
    **{op: Rule(("T", "T"), "T", _INTS) for op in SHIFTS},
    **{op: Rule(("T", "T"), "bool", _ALL) for op in COMPARISONS},
    Op.WHERE: Rule(("bool", "T", "T"), "T", _ALL),
    Op.CAST: Rule(("any",), "T", _ALL),
    **{op: Rule(("T",), "T", _NUMBERS) for op in NUMBER_UNARY},
    **{op: Rule(("T",), "T", FLOATS) for op in FLOAT_UNARY},
    **{op: Rule(("T",), "bool", FLOATS) for op in FLOAT_TESTS},
}

_ROOTS = {"score": FLOATS, "mask": frozenset({DType.BOOL}), "out": FLOATS}
_ENVIRONMENT = frozenset().union(*ARGUMENTS.values())
_WIDTH = {DType.U8: 8, DType.I8: 8, DType.I16: 16, DType.I32: 32, DType.I64: 64}


def verify(graph: Graph) -> Graph:
    """`graph` itself. Raises IllegalGraphError naming the node that breaks a rule."""
    for n in graph.nodes:
        problem = _types(n) or _attr(n, graph) or _static_operand(n) or _leaf(n, graph)
        if problem:
            raise IllegalGraphError(f"{_brief(n)}: {problem}")
    if graph.root.dtype not in _ROOTS[graph.kind]:
        raise IllegalGraphError(f"{_brief(graph.root)}: the root of a {graph.kind} graph may not be {graph.root.dtype!r}")
    return graph


def _brief(n: Node) -> str:
    """A node in one line, its operands by op and type: repr would print a deep graph whole."""
    tag = "" if n.attr is None else f"[{n.attr!r}]"
    args = f"({', '.join(f'{a.op!r}:{a.dtype!r}' for a in n.args)})" if n.args else ""
    return f"{n.op!r}{tag}{args}:{n.dtype!r}"


def _types(n: Node) -> str:
    rule = RULES[n.op]
    expected = rule.operands if rule.operands is not None else ("i64",) * len(n.args)
    if len(n.args) != len(expected):
        return f"takes {len(expected)} operands, has {len(n.args)}"
    of_t = {a.dtype for a, kind in zip(n.args, expected) if kind == "T"} | ({n.dtype} if rule.result == "T" else set())
    if len(of_t) > 1:
        return f"operands and result must have one type, have {sorted(map(repr, of_t))}"
    if not of_t <= rule.types:
        return f"{of_t.pop()!r} is not one of {sorted(map(repr, rule.types))}"
    for a, kind in zip((*n.args, n), (*expected, rule.result)):
        if kind in ("bool", "i64") and a.dtype is not DType(kind):
            return f"expected {kind}, have {a.dtype!r}"
    return ""


def _attr(n: Node, graph: Graph) -> str:
    kind = RULES[n.op].attr
    if not kind:
        return "" if n.attr is None else f"has an attribute: {n.attr!r}"
    if kind == "number":
        wanted = bool if n.dtype.is_bool else int if n.dtype.is_int else float
        if type(n.attr) is not wanted:
            return f"the value must be a {wanted.__name__}"
        low, high = INT_RANGE.get(n.dtype, (0, 0))
        return "" if not n.dtype.is_int or low <= n.attr <= high else f"the value is not in [{low}, {high}]"
    if kind == "tie":
        return "" if n.attr is None or (n.dtype.is_float and n.attr in (0, 1)) else f"has no operand {n.attr!r} for ties"
    table = graph.slots if kind == "slot" else graph.captures
    if type(n.attr) is not int or not 0 <= n.attr < len(table):
        return f"there are {len(table)} {kind}s"
    if kind == "slot":
        return "" if table[n.attr] is n.dtype else f"the slot is {table[n.attr]!r}"
    capture = table[n.attr]
    if capture.dtype is not n.dtype:
        return f"the capture is {capture.dtype!r}"
    return "" if capture.rank == len(n.args) else f"the capture has {capture.rank} dimensions, {len(n.args)} indices given"


def _static_operand(n: Node) -> str:
    """Static integer operands that have no result: zero divisors, shifts past the width, negative powers."""
    if not n.dtype.is_int or len(n.args) != 2 or n.args[1].op is not Op.CONST:
        return ""
    value = n.args[1].attr
    if n.op in (Op.FLOORDIV, Op.MOD, Op.TRUNCDIV, Op.FMOD) and value == 0:
        return "integer division by zero"
    if n.op in SHIFTS and not 0 <= value < _WIDTH[n.dtype]:
        return f"shift by {value}"
    return f"integer power {value}" if n.op is Op.POW and value < 0 else ""


def _leaf(n: Node, graph: Graph) -> str:
    if n.op in _ENVIRONMENT and n.op not in ARGUMENTS[graph.kind]:
        return f"a {graph.kind} graph has no {n.op!r}"
    return ""
