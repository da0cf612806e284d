"""Out-of-range lookups of a score or output graph: proven absent once for the whole call, or else looked for in each tile."""
from __future__ import annotations

import torch

from flexfa4.facts.interval import bounds
from flexfa4.interpret.poison import evaluate_checked, lookup_error
from flexfa4.ir import Op
from flexfa4.ir.bound import BoundGraph
from flexfa4.tensors import TensorKey

_KEPT = 256
_proven: dict[tuple, bool] = {}


def proven_safe(bound: BoundGraph, sizes: dict[Op, int]) -> bool:
    """True if no lookup of the graph leaves its tensor for any position; `sizes`: how many values each index leaf takes."""
    if not bound.graph.uses(Op.LOAD):
        return True
    if any(size == 0 for size in sizes.values()):
        return True
    # The proof takes longer than a small call does. It holds for these tensors at these versions.
    key = (bound.graph, tuple(map(repr, bound.literals)), tuple(sizes.items()), tuple(map(TensorKey, bound.tensors)))
    found = _proven.get(key)
    if found is None:
        poison = bounds(bound, {op: (0, size - 1) for op, size in sizes.items()}).poison
        if len(_proven) >= _KEPT:
            _proven.clear()
        found = _proven[key] = not bool(torch.as_tensor(poison, device="cpu").any())
    return found


def evaluate_visible(bound: BoundGraph, env: dict, shape, hidden) -> torch.Tensor:
    """The graph on one tile of the given shape. Raises LookupOutOfRange if a lane that the mask shows depends on a lookup past
    the end of a capture; `hidden` lists what it does not show."""
    value, bad = evaluate_checked(bound, env)
    if bad is not None and bool(bad.any()):
        visible = bad.expand(shape).clone()
        for part in hidden:
            part.fill(visible, False)
        if bool(visible.any()):
            raise lookup_error(bound, env, visible)
    return value
