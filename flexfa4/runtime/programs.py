"""Graphs as text, so that an op's arguments mean the same in another process, and back.

A `programs` string holds one JSON object: for each of "score", "mask" and "out" that is present, the canonical text of its graph
and the origin for messages; for a mask the tiles of its spans; and "precise" where it is so. Captured tensors and literals travel
beside it in two flat lists, in the order score, mask, out.
"""
from __future__ import annotations

import json
import weakref
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Callable, Sequence

from flexfa4.engines.tiled.tiles import finer_tile
from flexfa4.ir import Graph, Op
from flexfa4.ir.bound import BoundGraph, Origin
from flexfa4.ir.text import parse, show
from flexfa4.sparsity import Spans

KINDS = ("score", "mask", "out")

_pieces: "weakref.WeakKeyDictionary[BoundGraph, str]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Layout:
    """Of a mask: the tiles of its spans, whether they tell batches and heads apart, and whether the op is to build them."""

    q_tile: int
    kv_tile: int
    batches: int
    heads: int


def fitted(layout: Layout, heads: int, spans_at: Callable[[Layout], Spans]) -> tuple[Layout, Spans]:
    """What the tiled engine takes for `heads` heads (of all batches): the layout, with finer query tiles where rows turn out
    short, and its spans."""
    spans = spans_at(layout)
    tile = finer_tile(layout.q_tile, spans.mean_keys, heads)
    if tile == layout.q_tile:
        return layout, spans
    finer = replace(layout, q_tile=tile)
    return finer, spans_at(finer)


@dataclass(frozen=True)
class Programs:
    """A decoded `programs` string. precise: of the kernel's plan."""

    graphs: tuple[Graph | None, Graph | None, Graph | None]
    origins: tuple[Origin | None, Origin | None, Origin | None]
    layout: Layout | None
    precise: bool = False

    def bind(self, captures: Sequence, literals: Sequence) -> list[BoundGraph | None]:
        """The score, mask and out graphs with their shares of the flat lists."""
        bound, capture, literal = [], 0, 0
        for graph, origin in zip(self.graphs, self.origins):
            if graph is None:
                bound.append(None)
                continue
            more, others = len(graph.captures), len(graph.slots)
            mine, numbers = tuple(captures[capture:capture + more]), tuple(literals[literal:literal + others])
            bound.append(BoundGraph(graph, mine, numbers, origin))
            capture, literal = capture + more, literal + others
        return bound

    def first_capture(self, kind: str) -> int:
        """Where the captures of a kind begin in the flat list."""
        before = self.graphs[:KINDS.index(kind)]
        return sum(len(g.captures) for g in before if g is not None)


def encode(score: BoundGraph | None, mask: BoundGraph | None, out: BoundGraph | None, layout: Layout | None,
           precise: bool = False) -> str:
    parts = [f'"{kind}": {_piece(bound)}' for kind, bound in zip(KINDS, (score, mask, out)) if bound is not None]
    if layout is not None:
        parts.append(f'"layout": [{layout.q_tile}, {layout.kv_tile}, {layout.batches}, {layout.heads}]')
    if precise:
        parts.append('"precise": true')
    return "{" + ", ".join(parts) + "}"


def _piece(bound: BoundGraph) -> str:
    text = _pieces.get(bound)
    if text is None:
        origin, graph = bound.origin, bound.graph
        lines = [origin.lines.get(n) for n in graph.nodes if n.op is Op.LOAD]
        about = [origin.name, origin.file, origin.line, list(origin.capture_names), lines]
        text = _pieces[bound] = json.dumps({"graph": show(graph), "origin": about})
    return text


@lru_cache(maxsize=1024)
def decode(text: str) -> Programs:
    """The Programs that `encode` wrote."""
    data = json.loads(text)
    graphs = tuple(parse(data[kind]["graph"]) if kind in data else None for kind in KINDS)
    origins = tuple(_origin(data[kind]["origin"], graph) if graph is not None else None for kind, graph in zip(KINDS, graphs))
    return Programs(graphs, origins, Layout(*data["layout"]) if "layout" in data else None, data.get("precise", False))


def _origin(about: list, graph: Graph) -> Origin:
    name, file, line, captures, lines = about
    loads = [n for n in graph.nodes if n.op is Op.LOAD]
    return Origin(name, file, line, tuple(captures), {n: at for n, at in zip(loads, lines) if at is not None})
