"""Bottom-up rewriting of a graph by a table of small rules."""
from __future__ import annotations

import weakref
from hashlib import blake2b
from typing import Callable, Mapping, Sequence

from flexfa4.ir import Node, Op, node, topological

Rule = Callable[[Node], "Node | None"]


class Rewriter:
    """Brings nodes to the normal form of `rules`: a rule takes a node whose operands are in normal form and gives an equal node
    that is smaller or more canonical, or None. A rule's result is brought to normal form in turn, so the rules of one table must
    not undo one another. Normal forms are remembered for the Rewriter's life."""

    def __init__(self, rules: Mapping[Op, Sequence[Rule]]):
        self.rules = rules
        self.normal: dict[Node, Node] = {}

    def __call__(self, root: Node) -> Node:
        for n in topological(root):
            if n not in self.normal:
                self._settle(n)
        return self.normal[root]

    def _settle(self, n: Node) -> Node:
        """Recursion is over what a rule has just built on operands that are normal already, so it is a few levels deep."""
        known = self.normal.get(n)
        if known is not None:
            return known
        args = tuple(self._settle(a) for a in n.args)
        current = n if args == n.args else node(n.op, args, n.dtype, n.attr)
        result = self.normal.get(current)
        if result is None:
            result = self._apply(current)
        self.normal[n] = self.normal[current] = self.normal[result] = result
        return result

    def _apply(self, n: Node) -> Node:
        for rule in self.rules.get(n.op, ()):
            found = rule(n)
            if found is not None and found is not n:
                return self._settle(found)
        return n


_digests: "weakref.WeakKeyDictionary[Node, bytes]" = weakref.WeakKeyDictionary()


def digest(root: Node) -> bytes:
    """16 bytes that depend on the structure below `root` alone: an order of nodes that is the same in every process."""
    if root in _digests:
        return _digests[root]
    stack = [root]
    while stack:
        n = stack[-1]
        missing = [a for a in n.args if a not in _digests]
        if missing:
            stack += missing
            continue
        stack.pop()
        text = f"{n.op.name} {n.dtype.value} {n.attr!r}".encode()
        _digests[n] = blake2b(b"".join((text, *(_digests[a] for a in n.args))), digest_size=16).digest()
    return _digests[root]
