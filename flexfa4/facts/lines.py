"""Values that are the same along a line of the score matrix: a column, or a diagonal (one distance between query and key)."""
from __future__ import annotations

from enum import Enum

from flexfa4.ir import Node, Op, topological

from .affine import affine_forms
from .axes import axes

_TILE = frozenset({Op.B, Op.H})
_KEY = _TILE | {Op.KV}


class Line(Enum):
    """Where a value is the same, given the batch and the head. A tile of n queries and m keys has one value (TILE), a value for
    each of m columns, or for each of n + m - 1 diagonals."""

    TILE = "tile"
    COLUMN = "column"
    DIAGONAL = "diagonal"


def lines(root: Node) -> dict[Node, Line]:
    """The line of every node below `root` that has one: a node of diagonals is the same number at (q + n, kv + n) for every n."""
    forms, on, found = affine_forms(root), axes(root), {}
    for n in topological(root):
        if on[n] <= _TILE:
            found[n] = Line.TILE
        elif on[n] <= _KEY:
            found[n] = Line.COLUMN
        elif n.dtype.is_int and forms[n] is not None and forms[n].is_toeplitz:
            found[n] = Line.DIAGONAL
        elif n.args and all(found.get(a) in (Line.TILE, Line.DIAGONAL) for a in n.args):
            found[n] = Line.DIAGONAL
    return found
