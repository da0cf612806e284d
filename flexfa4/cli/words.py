"""Facts of a graph in words."""

from __future__ import annotations

from ..facts.affine import Affine, affine_forms
from ..facts.axes import axes
from ..ir import Node, Op
from ..ir.bound import BoundGraph
from ..ir.ops import LEAVES

NAMES = {
    Op.B: "batch",
    Op.H: "head",
    Op.Q: "query position",
    Op.KV: "key position",
    Op.D: "output column",
    Op.SCORE: "score",
    Op.OUT: "output",
    Op.LSE: "LSE",
}
ORDER = tuple(NAMES)


def dependence(bound: BoundGraph) -> str:
    """What the mod's result depends on."""
    on = axes(bound.graph.root)[bound.graph.root]
    names = [NAMES[leaf] for leaf in ORDER if leaf in on]
    return "depends on " + (_listed(names) if names else "nothing: it is the same everywhere")


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def captures(bound: BoundGraph) -> list[str]:
    """One line a captured tensor, and one for the literals."""
    names = bound.origin.capture_names or tuple(f"capture {i}" for i in range(len(bound.tensors)))
    lines = [
        f"load[{i}] reads {name}: {str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
        + (", wants a gradient" if t.requires_grad else "")
        for i, (name, t) in enumerate(zip(names, bound.tensors))
    ]
    if bound.literals:
        lines.append(
            "run-time numbers: "
            + ", ".join(f"slot[{i}] = {v}" for i, v in enumerate(bound.literals))
            + " (a new value is no new kernel)"
        )
    return lines


def _term(coefficient: int | Node, name: str, number: dict[Node, int]) -> str | None:
    if isinstance(coefficient, Node):
        return f"+ {_name(coefficient, number)} * {name}"
    if coefficient == 0:
        return None
    sign, size = ("-", -coefficient) if coefficient < 0 else ("+", coefficient)
    return f"{sign} {name}" if size == 1 else f"{sign} {size} * {name}"


def _name(n: Node, number: dict[Node, int]) -> str:
    """A node as the printed graph calls it; algebra may have made one that is not printed."""
    return f"%{number[n]}" if n in number else repr(n.attr) if n.op is Op.CONST else f"({n!r})"


def _formula(form: Affine, number: dict[Node, int]) -> str:
    terms = [_term(form.q_coef, "query", number), _term(form.kv_coef, "key", number)]
    if not (form.rest.op is Op.CONST and form.rest.attr == 0):
        terms.append(f"+ {_name(form.rest, number)}")
    text = " ".join(sorted(filter(None, terms), key=lambda t: t[0] == "-")).removeprefix("+ ")
    return (
        text
        if form.scale is None or form.scale.op is Op.CONST and form.scale.attr == 1
        else f"{_name(form.scale, number)} * ({text})"
    )


def _sense(form: Affine) -> str:
    """What an affine form means for the tiles."""
    if form.is_toeplitz:
        return "constant along diagonals, one value a distance"
    if form.kv_coef == 0:
        return "one value a query, computed once a row"
    if form.q_coef == 0:
        return "one value a key, computed once a column"
    return "a constant step from key to key"


def affine_facts(bound: BoundGraph) -> list[str]:
    """One line for each largest affine value of query and key: its formula, and what follows from it."""
    graph = bound.graph
    number = {n: i for i, n in enumerate(graph.nodes)}
    forms = {n: f for n, f in affine_forms(graph.root).items() if f is not None and not f.is_free and n.op not in LEAVES}
    users = {n: [u for u in graph.nodes if n in u.args] for n in forms}
    largest = [n for n in graph.nodes if n in forms and not (users[n] and all(u in forms for u in users[n]))]
    return [f"%{number[n]} = {_formula(forms[n], number)}: {_sense(forms[n])}" for n in largest]


def row_constant(bound: BoundGraph) -> str | None:
    """For a score edit that adds a term on (batch, head, query) alone: it cancels in the softmax."""
    root = bound.graph.root
    if bound.graph.kind != "score" or root.op not in (Op.ADD, Op.SUB) or Op.SCORE not in {a.op for a in root.args}:
        return None
    other = root.args[1] if root.args[0].op is Op.SCORE else root.args[0]
    if root.op is Op.SUB and other is root.args[0] or not axes(other)[other] <= {Op.B, Op.H, Op.Q}:
        return None
    return "the added term is the same for every key of a row: it cancels in the softmax and moves only the LSE"
