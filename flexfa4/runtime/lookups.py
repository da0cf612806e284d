"""Look-ups of a score or output graph past the end of a capture, said before its kernel is launched.

A kernel takes the nearest entry there, and has no way to say so; the tiled engine looks at every position. Here some positions of
the call are looked at, on the host and without the contents of any tensor: the ends, some between, and those at the distances
that the mods' numbers name. So an error is one, and none is made of what contents decide (`table[ids[kv]]`, a document mask).
"""
from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from flexfa4.interpret import program
from flexfa4.interpret.poison import any_of, of_branch, past_end, past_ends, range_error
from flexfa4.ir import DType, Graph, Node, Op, node
from flexfa4.ir.bound import BoundGraph
from flexfa4.ir.ops import FLOAT_LEAVES

_BOOL = DType.BOOL
_CONTENTS = FLOAT_LEAVES | {Op.LOAD}
# Positions of each axis that are looked at, and heads; numbers of the mods that are taken for distances.
_SOME, _HEADS, _NUMBERS = 24, 8, 6


def refuse_past_ends(score: BoundGraph | None, mask: BoundGraph | None, out: BoundGraph | None, shape: tuple) -> None:
    """Raises LookupOutOfRange. shape: (batch, query heads, queries, keys, columns of the output) of a call by a kernel."""
    for bound, hidden_by in ((score, mask), (out, None)):
        if bound is None or not decided_by_positions(bound.graph) or hidden_by is not None and hidden_by.tensors:
            continue
        shown = (None, ()) if hidden_by is None else (hidden_by.graph, hidden_by.literals)
        found = _found(bound.graph, bound.literals, tuple([t.shape for t in bound.tensors]), shown, shape)
        if found is not None:
            raise range_error(bound, *found)


@lru_cache(maxsize=256)
def decided_by_positions(graph: Graph) -> bool:
    """Whether positions alone may take the result past the end of a capture."""
    return graph.uses(Op.LOAD) and _surely_past(graph)[0] is not None


@lru_cache(maxsize=512)
def _found(graph: Graph, literals: tuple, shapes: tuple, shown: tuple, shape: tuple) -> tuple[Node, int, tuple[int, int]] | None:
    """(look-up, dimension, least and most index) of what is past an end; None where nothing was seen. shapes: of the captures;
    shown: graph and literals of the mask, None and nothing without one."""
    root, sizes = _surely_past(graph)
    mask, numbers = shown
    with torch.device("cpu"):
        env = _positions(shape, literals + numbers, graph.kind == "out")
        bad = program((root,))(env, (), (*literals, *(shapes[capture][dim] for capture, dim in sizes)))[0]
        if mask is not None:
            bad = bad & program((mask.root,))(env, (), numbers)[0]
        if bool(bad.any()):
            return _where(graph, literals, shapes, env, bad)
    return None


def _where(graph: Graph, literals: tuple, shapes: tuple, env: dict, bad: torch.Tensor) -> tuple | None:
    """As `_found` has it. bad: the positions."""
    for load, dim in _surely_past(graph)[1]:
        for n in graph.nodes:
            if n.op is not Op.LOAD or n.attr != load or n.args[dim] not in _of_positions(graph):
                continue
            found = past_ends(program((n.args[dim],))(env, (), literals)[0], shapes[load][dim], bad)
            if found is not None:
                return n, dim, found
    return None


def _positions(shape: tuple[int, ...], numbers: tuple, of_rows: bool) -> dict[Op, torch.Tensor]:
    """Values of the index leaves, [batches, 1, 1], [heads, 1] and twice [pairs]. of_rows: pairs of queries and columns, for an
    output graph."""
    batches, heads, q_len, kv_len, columns = shape
    q, other = _some(q_len), np.arange(columns) if of_rows else _some(kv_len)
    pairs = [np.repeat(q, other.size), np.tile(other, q.size)]
    if not of_rows:
        distances = [x for x in numbers if isinstance(x, int) and abs(x) < max(q_len, kv_len)][:_NUMBERS]
        distances = np.unique([sign * x + one for x in (0, q_len - kv_len, *distances) for sign in (1, -1) for one in (-1, 0, 1)])
        near = (q[:, None] + distances).ravel()
        pairs = [np.concatenate([pairs[0], np.repeat(q, distances.size)]),
                 np.concatenate([pairs[1], np.clip(near, 0, kv_len - 1)])]
    found = np.unique([0, batches - 1])[:, None, None], _some(heads, _HEADS)[:, None], *pairs
    return dict(zip((Op.B, Op.H, Op.Q, Op.D if of_rows else Op.KV), map(torch.from_numpy, found)))


def _some(count: int, most: int = _SOME) -> np.ndarray:
    """Positions from 0 to the last one, both among them."""
    return np.unique(np.linspace(0, count - 1, most).astype(np.int64))


@lru_cache(maxsize=256)
def _of_positions(graph: Graph) -> frozenset[Node]:
    """What depends on positions and numbers alone."""
    found: set[Node] = set()
    for n in graph.nodes:
        if n.op not in _CONTENTS and found.issuperset(n.args):
            found.add(n)
    return frozenset(found)


@lru_cache(maxsize=256)
def _surely_past(graph: Graph) -> tuple[Node | None, tuple[tuple[int, int], ...]]:
    """A graph of positions alone that is true where the result depends on a look-up past an end, whatever tensors hold; None:
    nowhere. And (capture, dimension) of each extra slot, a size, that it has."""
    known, sizes = _of_positions(graph), {}
    flags: dict[Node, Node | None] = {}
    for n in graph.nodes:
        bad = [flags[a] for a in n.args]
        if n.op is Op.LOAD:
            bad += [past_end(n, dim, sizes, len(graph.slots)) for dim, index in enumerate(n.args) if index in known]
            flags[n] = any_of(*bad)
        elif n.op is Op.WHERE:
            flags[n] = any_of(bad[0], _taken(n.args[0] if n.args[0] in known else None, *bad[1:]))
        elif n.op in (Op.AND, Op.OR) and n.dtype is _BOOL:
            flags[n] = _undecided(n, bad, known)
        else:
            flags[n] = any_of(*bad)
    return flags[graph.root], tuple(sizes)


def _taken(condition: Node | None, yes: Node | None, no: Node | None) -> Node | None:
    """Of the branches of a WHERE: both, where contents choose."""
    if condition is None:
        return None if yes is None or no is None else node(Op.AND, (yes, no), _BOOL)
    return of_branch(condition, yes, no)


def _undecided(n: Node, bad: list[Node | None], known: frozenset[Node]) -> Node | None:
    """Of an AND or OR, one of whose operands may decide it alone."""
    if None not in bad:
        return node(Op.AND, tuple(bad), _BOOL)
    flag, other = (bad[0], n.args[1]) if bad[1] is None else (bad[1], n.args[0])
    if flag is None or other not in known:
        return None
    return node(Op.AND, (flag, other if n.op is Op.AND else node(Op.NOT, (other,), _BOOL)), _BOOL)
