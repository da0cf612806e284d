"""Lookups past the end of a captured tensor: harmless where the mod masks them away, an error where they reach the result.

The question is asked in the language of graphs: `_checked` extends a graph by a second root that is true where the value
depends on an out-of-range lookup, with the captured sizes as extra runtime scalars. So it costs one more program, and only for
graphs that look things up.
"""
from __future__ import annotations

from functools import lru_cache
from typing import Mapping

import torch

from flexfa4.errors import LookupOutOfRange
from flexfa4.ir import DType, Graph, Node, Op, const, node
from flexfa4.ir.bound import BoundGraph

from .program import program

_BOOL, _I64 = DType.BOOL, DType.I64


def any_of(*flags: Node | None) -> Node | None:
    """The disjunction of flags; None is "never"."""
    present = list(dict.fromkeys(f for f in flags if f is not None))
    total = present[0] if present else None
    for f in present[1:]:
        total = node(Op.OR, (total, f), _BOOL)
    return total


def _not(n: Node) -> Node:
    return node(Op.NOT, (n,), _BOOL)


def _and(a: Node, b: Node) -> Node:
    return node(Op.AND, (a, b), _BOOL)


def past_end(load: Node, dim: int, size_slots: dict[tuple[int, int], Node], first_slot: int) -> Node:
    """True where the index of `load` in a dimension is not in [-size, size). size_slots: gets the slot of that size, by capture
    and dimension; the first one is `first_slot`."""
    size = size_slots.setdefault((load.attr, dim), node(Op.SLOT, (), _I64, first_slot + len(size_slots)))
    index = load.args[dim]
    past = node(Op.LE, (size, index), _BOOL)
    before = node(Op.LT, (node(Op.ADD, (index, size), _I64), const(0, _I64)), _BOOL)
    return node(Op.OR, (past, before), _BOOL)


def of_branch(condition: Node, yes: Node | None, no: Node | None) -> Node | None:
    """That of the branch which a WHERE takes; None is "never"."""
    if yes is None and no is None:
        return None
    never = const(False, _BOOL)
    return node(Op.WHERE, (condition, yes or never, no or never), _BOOL)


def _decided(n: Node, bad: list[Node | None]) -> Node | None:
    """Poison of a Boolean AND or OR: an operand that is good and decides the result alone makes it good."""
    flag = any_of(*bad)
    if flag is None:
        return None
    for operand, poison in zip(n.args, bad):
        decides = _not(operand) if n.op is Op.AND else operand
        good = decides if poison is None else _and(decides, _not(poison))
        flag = _and(flag, _not(good))
    return flag


def _chosen(n: Node, bad: list[Node | None]) -> Node | None:
    """Poison of a WHERE: that of the branch taken, and of the condition."""
    on_condition, yes, no = bad
    return any_of(on_condition, of_branch(n.args[0], yes, no))


@lru_cache(maxsize=1024)
def _checked(graph: Graph) -> tuple[Node | None, tuple[tuple[int, int], ...]]:
    """The poison root of a graph (None where no lookup can be out of range), and (capture, dim) of each extra size slot."""
    sizes: dict[tuple[int, int], Node] = {}
    flags: dict[Node, Node | None] = {}
    for n in graph.nodes:
        bad = [flags[a] for a in n.args]
        if n.op is Op.LOAD:
            flags[n] = any_of(*bad, *[past_end(n, dim, sizes, len(graph.slots)) for dim in range(len(n.args))])
        elif n.op in (Op.AND, Op.OR) and n.dtype is _BOOL:
            flags[n] = _decided(n, bad)
        elif n.op is Op.WHERE:
            flags[n] = _chosen(n, bad)
        else:
            flags[n] = any_of(*bad)
    return flags[graph.root], tuple(sizes)


def evaluate_checked(bound: BoundGraph, env: Mapping[Op, torch.Tensor | int | float]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(value, bad): the root on `env` as `evaluate` gives it, and a bool tensor, broadcastable against it, that is True where the
    value depends on an out-of-range lookup. `bad` is None for a graph without lookups.

    `False & bad`, `True | bad` and the branch that a where does not take are not dependences.
    """
    root, sizes = _checked(bound.graph)
    if root is None:
        return program((bound.graph.root,))(env, bound.tensors, bound.literals)[0], None
    literals = (*bound.literals, *(bound.tensors[capture].shape[dim] for capture, dim in sizes))
    return program((bound.graph.root, root))(env, bound.tensors, literals)


def lookup_error(bound: BoundGraph, env: Mapping[Op, torch.Tensor | int | float],
                 lanes: torch.Tensor | None = None) -> LookupOutOfRange:
    """The error for a graph whose value on `env` depends on an out-of-range lookup, to be raised by the caller.

    Names the line, the capture, its shape, the dimension and the range of the offending indices. `lanes` (bool, broadcastable)
    restricts the search to the positions that matter, as does `bad` of `evaluate_checked`.
    """
    _, bad = evaluate_checked(bound, env)
    if bad is not None and lanes is not None:
        bad = bad & lanes
    origin = bound.origin
    for n in bound.graph.nodes:
        if n.op is not Op.LOAD or bad is None:
            continue
        for dim, index in enumerate(program(tuple(n.args))(env, bound.tensors, bound.literals)):
            found = past_ends(index.to(bad.device), bound.tensors[n.attr].shape[dim], bad)
            if found is not None:
                return range_error(bound, n, dim, found)
    return LookupOutOfRange(f"{origin.where()}: {origin.name} looks up a captured tensor out of its range")


def past_ends(index: torch.Tensor, size: int, lanes: torch.Tensor) -> tuple[int, int] | None:
    """The least and the most of the indices in `lanes`, bool that broadcasts with them, that are not in [-size, size); None where
    all are."""
    index, lanes = torch.broadcast_tensors(index, lanes)
    wrong = index[lanes & ((index < -size) | (index >= size))]
    return (int(wrong.min()), int(wrong.max())) if wrong.numel() else None


def range_error(bound: BoundGraph, load: Node, dim: int, found: tuple[int, int]) -> LookupOutOfRange:
    """The error for indices, the least and the most of `found`, of a LOAD in one dimension of its capture."""
    names, shape = bound.origin.capture_names, tuple(bound.tensors[load.attr].shape)
    name = names[load.attr] if load.attr < len(names) else f"capture {load.attr}"
    span = f"index {found[0]}" if found[0] == found[1] else f"indices from {found[0]} to {found[1]}"
    return LookupOutOfRange(
        f"{bound.origin.where(load)}: {bound.origin.name} looks up {name} (shape {shape}) with {span} in dimension {dim}, whose "
        f"size is {shape[dim]}, at a position that is not masked away. Make {name} longer, or guard the lookup: clamp the index, "
        "or mask those positions")
