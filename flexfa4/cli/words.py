"""Facts of a graph in words."""

from __future__ import annotations

from ..facts.affine import affine
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


def _coefficient(c: int | float | Node, number: dict[Node, int]) -> str:
    return f"%{number.get(c, '?')}" if isinstance(c, Node) else f"{c:+g}"


def _is(c: int | float | Node, value: int) -> bool:
    return not isinstance(c, Node) and c == value


def _sense(form) -> str:
    """What an affine form means for the tiles."""
    q, kv = form.q_coef, form.kv_coef
    if _is(q, 0) and _is(kv, 0):
        return "the same for a whole head"
    if _is(kv, 0):
        return "one value a query: computed once a row"
    if _is(q, 0):
        return "one value a key: computed once a column"
    if not isinstance(q, Node) and not isinstance(kv, Node) and q == -kv:
        return "constant along diagonals: one value for each distance"
    return "steps by a constant from key to key"


def affine_facts(bound: BoundGraph) -> list[str]:
    """One line for each largest affine value: %n = a * query + c * key + rest, and what follows from it."""
    graph = bound.graph
    number = {n: i for i, n in enumerate(graph.nodes)}
    forms = {n: form for n in graph.nodes if n.op not in LEAVES and (form := affine(n)) is not None}
    inner = {a for n in forms for a in n.args}
    lines = []
    for n, form in forms.items():
        used_elsewhere = any(n in user.args and user not in forms for user in graph.nodes) or n is graph.root
        if n in inner and not used_elsewhere or _is(form.q_coef, 0) and _is(form.kv_coef, 0):
            continue
        terms = [
            f"{_coefficient(c, number)} * {name}" for c, name in ((form.q_coef, "query"), (form.kv_coef, "key")) if not _is(c, 0)
        ]
        rest = form.rest if isinstance(form.rest, Node) and not (form.rest.op is Op.CONST and form.rest.attr == 0) else None
        if rest is not None:
            terms.append(f"+{rest.attr}" if rest.op is Op.CONST else f"%{number[rest]}" if rest in number else "a term per head")
        lines.append(f"%{number[n]} is affine: {' '.join(terms)} - {_sense(form)}")
    return lines


def row_constant(bound: BoundGraph) -> str | None:
    """For a score edit that adds a term on (batch, head, query) alone: it cancels in the softmax."""
    root = bound.graph.root
    if bound.graph.kind != "score" or root.op not in (Op.ADD, Op.SUB) or Op.SCORE not in {a.op for a in root.args}:
        return None
    other = root.args[1] if root.args[0].op is Op.SCORE else root.args[0]
    if root.op is Op.SUB and other is root.args[0] or not axes(other)[other] <= {Op.B, Op.H, Op.Q}:
        return None
    return "the added term is the same for every key of a row: it cancels in the softmax and moves only the LSE"
