"""What of a graph is computed how often: once a launch, once a tile, once a row, once a column, or for every element.

A value that depends on (b, h) alone is the same for a whole work tile, one on q for a row of it, one on kv for a column. The
emitter computes each where it belongs and hands on only the *frontier*: values that deeper levels read.
"""
from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from flexfa4.facts.axes import axes
from flexfa4.ir import Graph, Node, Op, topological
from flexfa4.ir.ops import LEAVES

_TILE = frozenset({Op.B, Op.H})
_ROW = _TILE | {Op.Q, Op.LSE}


class Level(Enum):
    """How often a value is computed. `COLUMN` is what does not depend on the row: of an out mod, its output columns."""

    LAUNCH = "once"
    TILE = "once a tile"
    ROW = "once a row"
    COLUMN = "once a column"
    ELEMENT = "every element"


def level(depends_on: frozenset[Op]) -> Level:
    """The level of a value that depends on these leaves."""
    if not depends_on:
        return Level.LAUNCH
    if depends_on <= _TILE:
        return Level.TILE
    if depends_on <= _ROW:
        return Level.ROW
    if depends_on <= _TILE | {Op.KV} or depends_on <= _TILE | {Op.D}:
        return Level.COLUMN
    return Level.ELEMENT


@lru_cache(maxsize=512)
def depends_on(roots: tuple[Node, ...]) -> dict[Node, frozenset[Op]]:
    """`facts.axes` of several roots."""
    return {n: on for root in roots for n, on in axes(root).items()}


@lru_cache(maxsize=512)
def frontier(roots: tuple[Node, ...], bound: frozenset[Op]) -> tuple[Node, ...]:
    """Operations that need no more than the leaves in `bound` and whose value is read by one that needs more, arguments first.
    The roots count as read from outside."""
    depends = depends_on(roots)
    wanted = {a for n in depends if not depends[n] <= bound for a in n.args}.union(roots)
    return tuple(n for n in topological(*roots) if n in wanted and n.op not in LEAVES and depends[n] <= bound)


@dataclass(frozen=True)
class Hoisted:
    """Operations (leaves and constants aside) by level, in the graph's order."""

    operations: dict[Level, tuple[Node, ...]]

    def count(self, at: Level) -> int:
        return len(self.operations[at])

    def __str__(self) -> str:
        lines = []
        for at in Level:
            names = [repr(n.op) for n in self.operations[at]]
            lines.append(f"{at.value + ':':<15}{len(names):>3}  {' '.join(names)}".rstrip())
        return "\n".join(lines)


def element_operations(root: Node) -> int:
    """Operations below a node that are computed for every element, or for every column."""
    depends = axes(root)
    return sum(n.op not in LEAVES and level(on) in (Level.COLUMN, Level.ELEMENT) for n, on in depends.items())


def hoist(graph: Graph) -> Hoisted:
    """Every operation of the graph at the level where it is computed. `print(hoist(graph))` tells it in words."""
    depends = axes(graph.root)
    placed: dict[Level, list[Node]] = {at: [] for at in Level}
    for n in graph.nodes:
        if n.op not in LEAVES:
            placed[level(depends[n])].append(n)
    return Hoisted({at: tuple(nodes) for at, nodes in placed.items()})
