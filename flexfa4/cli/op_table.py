"""docs/ir.md, written from the tables themselves: `python -m flexfa4.cli.op_table > docs/ir.md`. A test says it is current."""
from __future__ import annotations

import inspect
import math
import re

from flexfa4.emit.approx import APPROXIMATIONS, Approximation
from flexfa4.facts.derivative import DERIVATIVE, NO_DERIVATIVE, Expr, Flow
from flexfa4.facts.simplify import simplifier
from flexfa4.interpret.meaning import EVALUATE
from flexfa4.ir import Capture, DType, Graph, Node, Op, cast, const, node, ops
from flexfa4.ir.dtypes import FLOATS, INT_RANGE
from flexfa4.ir.graph import KV, SCORE, H, Q
from flexfa4.ir.text import show
from flexfa4.ir.verify import RULES

_NAMES = ("g", "r", "x", "y")
_PLACEHOLDERS = {name: node(Op.LOAD, (), DType.F64, i) for i, name in enumerate(_NAMES)}
_INFIX = {Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.DIV: "/", Op.LT: "<", Op.LE: "<=", Op.EQ: "=", Op.NE: "!=", Op.AND: "and",
          Op.OR: "or", Op.POW: "^", Op.FLOORDIV: "//"}
_STRENGTH = {"or": 1, "and": 2, "<": 3, "<=": 3, "=": 3, "!=": 3, "+": 4, "-": 4, "*": 5, "/": 5, "//": 5, "^": 7}
_PREFIX_STRENGTH = 6
_STRUCTURAL = {
    Op.SCORE: "the adjoint ends here", Op.OUT: "the adjoint ends here", Op.LSE: "the adjoint ends here",
    Op.LOAD: "the adjoint ends here; none to the indices", Op.WHERE: "g to y where x, g to z elsewhere",
    Op.CAST: "g between floats, else 0",
}
_TYPES = {
    frozenset(DType): "any", frozenset(INT_RANGE): "ints", FLOATS: "floats", FLOATS | set(INT_RANGE): "numbers",
    frozenset({*INT_RANGE, DType.BOOL}): "ints, bool", frozenset({DType.F32, DType.F64}): "f32, f64",
    frozenset({DType.I64}): "i64",
}


def _formula(n: Node, strength: int = 0) -> str:
    """A derivative in infix form."""
    for name, placeholder in _PLACEHOLDERS.items():
        if n is placeholder:
            return name
    if n.op is Op.CONST:
        return f"{n.attr:.6g}"
    if n.op in _INFIX:
        sign = _INFIX[n.op]
        own = _STRENGTH[sign]
        text = f"{_formula(n.args[0], own)} {sign} {_formula(n.args[1], own + 1)}"
        return f"({text})" if own < strength else text
    if n.op in (Op.NEG, Op.NOT):
        text = ("-" if n.op is Op.NEG else "not ") + _formula(n.args[0], _PREFIX_STRENGTH)
        return f"({text})" if _PREFIX_STRENGTH < strength else text
    return f"{n.op!r}({', '.join(map(_formula, n.args))})"


def _share(share: Expr | Flow | None) -> str:
    if share is None:
        return "0"
    simple = simplifier()
    if isinstance(share, Expr):
        return _formula(simple(share.node))
    return f"{_formula(simple(share.value.node))} where {' and '.join(_formula(simple(c), 2) for c in share.conditions)}"


def derivative_text(op: Op) -> str:
    """What each operand receives of the adjoint g of the result r, operands being x and y."""
    if op in NO_DERIVATIVE:
        return ""
    if op in _STRUCTURAL:
        return _STRUCTURAL[op]
    operands = [Expr(_PLACEHOLDERS[name]) for name in ("g", "r", "x", "y")[:2 + len(RULES[op].operands)]]
    shares = DERIVATIVE[op](*operands)[:len(RULES[op].operands)]
    return "; ".join(map(_share, shares))


def comments() -> dict[Op, str]:
    """What ops.py says of each op, on its own line."""
    found = re.findall(r"^    (\w+) = auto\(\) *(?:# (.*))?$", inspect.getsource(ops), re.MULTILINE)
    return {Op[name]: comment for name, comment in found}


def _example() -> str:
    distance = cast(node(Op.SUB, (KV, Q), DType.I64), DType.F32)
    bias = node(Op.MUL, (node(Op.LOAD, (H,), DType.F32, 0), distance), DType.F32)
    recent = node(Op.LE, (node(Op.SUB, (Q, KV), DType.I64), node(Op.SLOT, (), DType.I64, 0)), DType.BOOL)
    root = node(Op.WHERE, (recent, node(Op.ADD, (SCORE, bias), DType.F32), const(float("-inf"), DType.F32)), DType.F32)
    return show(Graph("score", root, (Capture(DType.F32, 1),), (DType.I64,)))


_HEAD = """# The graph language

Written by `python -m flexfa4.cli.op_table > docs/ir.md` from the tables in the code.

A mod becomes a `Graph`: a directed acyclic graph of scalar operations on one position, with a kind (`score`, `mask` or `out`),
the element type and rank of each captured tensor, and the type of each slot (a literal of the mod, filled in at each call).
Nodes are interned: equal structure is the same object. A captured value is never part of a graph.

`flexfa4.ir.verify.verify` checks a graph, `flexfa4.ir.text.show` prints it and `parse` reads the text back to the identical
object. The text is the same in every process, so it serves as a key. `score + slope[h] * (kv - q)` within a window:

```
{example}
```

## Types

`bool u8 i8 i16 i32 i64 f16 bf16 f32 f64`. Positions, heads and indices are i64; scores are f32, or f64 for float64 inputs. The
tracer applies torch's promotion rules and writes casts, so all operands marked T have one type. Integers wrap, as torch's do.
The least number of a type divided by -1 is itself, as its negation is.
Two things have no defined value: an integer division by zero, and a cast of NaN or of a float that is out of range to an
integer. Neither may crash, since it can lie in a branch that is not taken. A lookup that is out of range is an error only if
the result depends on it.

## Operations

Each operation has one row in each of five tables: its type (`ir/verify.py`), its value (`interpret/meaning.py`), its bounds
(`facts/interval_rules.py`), its derivative (`facts/derivative.py`) and its code in a kernel (`emit/table.py`).

In the last column g is the adjoint of the result r; x and y are the operands, and what each receives is separated by a
semicolon. "where" marks a share that is exactly 0 elsewhere, whatever the formula would give there. An empty cell: by
definition there is no derivative, because the result is not a float or depends on no float. min and max are shown for
torch.minimum and torch.maximum; in `min[0]` the whole of g goes to x at a tie, as in torch.clamp, and in `min[1]` to y, as in
torch.relu.

| operation | operands, result | T | meaning | value | derivative |
|---|---|---|---|---|---|
"""


_APPROXIMATIONS = """
## Approximations

What GPU kernels compute with instructions that are not exact to rounding; `flex_attention(..., precise=True)` turns all of them
off. A result r for the exact value x satisfies |r - x| <= absolute + relative * |x|; errors of the operands come on top, and
subnormal numbers count as 0. From `emit/approx.py`.

| operation | in a kernel | relative | absolute | where |
|---|---|--:|--:|---|
"""


def _bound(x: float) -> str:
    if x == 0.0:
        return "0"
    mantissa, exponent = math.frexp(x)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{x * 2.0**22:g} * 2^-22"


def approximation(op: Op, a: Approximation) -> str:
    """A row of the second table."""
    cells = f"`{op!r}`", a.form, _bound(a.relative), _bound(a.absolute), a.where or "everywhere"
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def render() -> str:
    """The whole of docs/ir.md."""
    said, rows = comments(), []
    for op in Op:
        rule = RULES[op]
        cells = (f"`{op!r}`", f"`{rule}`", _TYPES[rule.types], said[op], f"`{EVALUATE[op].source}`", derivative_text(op))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    approximate = [approximation(op, APPROXIMATIONS[op]) for op in Op if op in APPROXIMATIONS]
    return _HEAD.replace("{example}", _example()) + "\n".join(rows) + "\n" + _APPROXIMATIONS + "\n".join(approximate) + "\n"


if __name__ == "__main__":
    print(render(), end="")
