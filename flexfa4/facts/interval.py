"""Bounds of a graph's value over rectangles of positions, many rectangles at a time: what proves tiles empty or full.

Interval analysis (Moore 1966) on the nodes of a graph, with three things more: how a captured tensor ranges over an interval of
indices is read off tables (`ranges`), equality of two look-ups into the same labels is decided on relabelled runs (`labels`), and
possible out-of-range look-ups are followed to the result. Bounds hold for every engine: float results are widened by more than
their rounding, fused or not.
"""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Mapping, Sequence

import numpy as np
import torch

from flexfa4.ir import Graph, Node, Op
from flexfa4.ir.bound import BoundGraph
from flexfa4.threads import cached_property

from .breaks import breaks
from .interval_rules import INTERVAL
from .interval_values import Interval, Space, boolean, exact
from .labels import LabelPair, LabelTable, label_pair
from .ranges import Tables

_POSITIONS = (Op.B, Op.H, Op.Q, Op.KV, Op.D)


@lru_cache(maxsize=256)
def _label_pairs(graph: Graph) -> dict[Node, LabelPair]:
    """The equality tests of a graph that compare labels of one table."""
    pairs = ((n, label_pair(n)) for n in graph.nodes if n.op in (Op.EQ, Op.NE))
    return {n: pair for n, pair in pairs if pair is not None}


class Analysis:
    """Interval analysis of one bound graph: what its captures look like is worked out once, at first use, and kept.

    limits: for each index leaf the least and greatest value it will ever be given; `run` raises nothing and is wrong outside
    them. space: the array library (numpy on the host, torch on a device).
    """

    def __init__(self, bound: BoundGraph, limits: Mapping[Op, tuple[int, int]], space: Space):
        self.bound, self.limits, self.space = bound, limits, space
        self.tables = Tables(bound.tensors, space)
        self._breaks: dict[Op, np.ndarray] = {}

    @cached_property
    def labels(self) -> dict[Node, LabelTable]:
        """The tables of those equality tests that have one."""
        made = {n: self.tables.labels(pair) for n, pair in _label_pairs(self.bound.graph).items()}
        return {n: table for n, table in made.items() if table is not None}

    @cached_property
    def order(self) -> list[Node]:
        """The nodes that the root's bounds are made of, arguments first: an equality of labels asks for the indices
        of its look-ups, not for what they read."""
        wanted, order = {self.bound.graph.root}, []
        for n in reversed(self.bound.graph.nodes):
            if n in wanted:
                order.append(n)
                table = self.labels.get(n)
                wanted.update(n.args if table is None else [i for load in table.pair.loads for i in load.args])
        return order[::-1]

    def of(self, graph: Graph) -> "Analysis":
        """Of another graph over the same captures and slots, with some of this one's label tests: tables are shared."""
        other = Analysis(replace(self.bound, graph=graph), self.limits, self.space)
        other.tables, other.labels = self.tables, self.labels
        return other

    def breaks(self, axis: Op) -> np.ndarray:
        """Sorted positions along Q or KV at which the mask takes a new form (see `breaks`)."""
        if axis not in self._breaks:
            self._breaks[axis] = breaks(self.bound, axis, self.limits[axis][1] + 1, self.tables.run_starts)
        return self._breaks[axis]

    def run(self, env: Mapping[Op, tuple]) -> Interval:
        """The root's bounds. env: (lo, hi), both included, for each index leaf (int64 arrays or Python ints, broadcastable) and
        optionally for SCORE, OUT and LSE (float64; any value if left out)."""
        known: dict[Node, Interval] = {}
        for n in self.order:
            known[n] = self._bounds(n, known, env)
        return known[self.bound.graph.root]

    def along(self, nodes: Sequence[Node], env: Mapping[Op, tuple], known: dict[Node, Interval]) -> None:
        """Adds the bounds of `nodes` to `known`, given arguments first, as `run` makes them."""
        for n in nodes:
            if n not in known:
                known[n] = self._bounds(n, known, env)

    def _bounds(self, n: Node, known: dict[Node, Interval], env: Mapping[Op, tuple]) -> Interval:
        if n.op in env:
            lo, hi = env[n.op]
            least, most = self.limits.get(n.op, (None, None))
            return Interval(lo, hi, least=least, most=most)
        if n.op is Op.LOAD:
            return self.tables.load(n, [known[a] for a in n.args])
        if n.op is Op.SLOT:
            return exact(self.bound.literals[n.attr], n.dtype)
        if n.op in _POSITIONS:
            raise KeyError(f"env has no bounds for {n.op!r}")
        if n.op in (Op.EQ, Op.NE):
            if n.args[0] is n.args[1] and not n.args[0].dtype.is_float:
                return boolean(n.op is Op.EQ, n.op is Op.EQ, poison=known[n.args[0]].poison)
            if n in self.labels:
                return self.labels[n].compare(n, known)
        return INTERVAL[n.op](self.space, n, *(known[a] for a in n.args))


def bounds(bound: BoundGraph, env: Mapping[Op, tuple]) -> Interval:
    """Bounds of the root of `bound` over rectangles.

    env: for each index leaf the graph uses a pair (lo, hi), both ends included, of int64 tensors or Python ints, broadcastable;
    for SCORE, OUT and LSE optionally a pair of float64 tensors. Returns an Interval of tensors (or Python numbers) in
    the broadcast shape: for a bool root `lo` means "certainly true" and `hi` "possibly true".
    """
    plain = {op: tuple(x.cpu().numpy() if isinstance(x, torch.Tensor) else x for x in pair) for op, pair in env.items()}
    limits = {op: (int(np.min(lo)), int(np.max(hi))) for op, (lo, hi) in plain.items() if op in _POSITIONS}
    with np.errstate(all="ignore"):
        found = Analysis(bound, limits, Space(None)).run(plain)
    tensors = [torch.as_tensor(x, device="cpu") for x in (found.lo, found.hi, found.nan, found.poison)]
    return Interval(*tensors, least=found.least, most=found.most)
