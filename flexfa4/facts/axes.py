"""Which of the kernel's coordinates a value depends on: what may be computed once a tile, once a row or once a column."""
from __future__ import annotations

from flexfa4.ir import Node, Op, topological
from flexfa4.ir.ops import FLOAT_LEAVES, INDEX_LEAVES

AXES = INDEX_LEAVES | FLOAT_LEAVES


def axes(root: Node) -> dict[Node, frozenset[Op]]:
    """For every node below `root`: the leaves among B, H, Q, KV, D, SCORE, OUT, LSE that its value depends on.

    Empty for values that are the same everywhere (constants, literals, 0-d captures). A lookup depends on what its indices
    depend on.
    """
    found: dict[Node, frozenset[Op]] = {}
    for n in topological(root):
        own = frozenset((n.op,)) if n.op in AXES else frozenset()
        found[n] = own.union(*(found[a] for a in n.args))
    return found
