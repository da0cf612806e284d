"""Masks of packed documents: an equality of labels that a key must pass whatever else the mask says.

    same_document & causal  ->  tests: labels[q] == labels[kv];  where it holds, what is left is causal
"""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from flexfa4.ir import DType, Graph, Node, Op, const, node
from flexfa4.ir.graph import rebuild

from .labels import LabelPair, label_pair
from .simplify import simplify

TRUE = const(True, DType.BOOL)


@lru_cache(maxsize=256)
def label_tests(graph: Graph) -> dict[Node, LabelPair]:
    """The equality tests of labels that are conjuncts of a simplified mask graph: it is false wherever one of them is."""
    found, stack = {}, [graph.root]
    while stack:
        n = stack.pop()
        if n.op is Op.AND:
            stack.extend(n.args)
        elif n.op is Op.EQ and (pair := label_pair(n)) is not None:
            found[n] = pair
    return found


@lru_cache(maxsize=256)
def only_label_tests(graph: Graph) -> Graph:
    """The conjunction of `label_tests`, of which there is one at least."""
    root = None
    for n in label_tests(graph):
        root = n if root is None else node(Op.AND, (root, n), DType.BOOL)
    return replace(graph, root=root)


@lru_cache(maxsize=256)
def inside(graph: Graph) -> Graph:
    """What is left of a simplified mask graph where all its `label_tests` hold; captures and slots keep their numbers."""
    tests = label_tests(graph)
    return simplify(replace(graph, root=rebuild(graph.root, lambda n: TRUE if n in tests else n)))
