"""Labels of captures on a device: what a mask needs of them tile by tile, worked out there in plain torch, in one transfer.

Only for labels of which none comes back after another: each run of equal ones then is a label of its own, and the number of its
run serves as its name.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import torch

from flexfa4.ir import Op
from flexfa4.ir.bound import BoundGraph

from .labels import LabelPair
from .terms import Comparison, terms_of

Tiles = tuple[int, int]      # (tile, length)


@dataclass(frozen=True, eq=False)
class TileLabels:
    """Stands for a LabelTable of one capture [n], of which the names at the ends of tiles are all that is known."""

    pair: LabelPair
    sizes: tuple[int]
    known: dict[Tiles, np.ndarray]

    def at_ends(self, tile: int, length: int, ends: np.ndarray, side: int) -> np.ndarray | None:
        """The names at the first and last position of each tile, int64 [2, tiles]."""
        return self.known.get((tile, length))


def fits(bound: BoundGraph) -> bool:
    """True if the look-ups of a mask are equalities of labels at q and kv, each pair in one capture of one dimension."""
    terms = terms_of(bound.graph)
    if terms is None:
        return False
    pairs = [t.pair for t in terms.terms if isinstance(t, Comparison) and t.pair is not None]
    loads = {load for pair in pairs for load in pair.loads}
    plain = all(len(pair.captures) == 1 and len(load.args) == 1 and load.args[0].op in (Op.Q, Op.KV)
                for pair in pairs for load in pair.loads)
    return bool(pairs) and plain and all(n in loads for n in bound.graph.nodes if n.op is Op.LOAD)


def fetch_labels(bound: BoundGraph, axes: Sequence[Tiles]) -> dict[LabelPair, TileLabels] | None:
    """The labels of a mask that `fits`, at the tiles of both axes, by waiting for the device once; None where a label comes back
    in some capture, or a capture is shorter than an axis."""
    pairs = {t.pair for t in terms_of(bound.graph).terms if isinstance(t, Comparison) and t.pair is not None}
    captures = sorted({pair.captures[0] for pair in pairs})
    axes = tuple(dict.fromkeys(axes))
    if any(bound.tensors[c].numel() < max(length for _, length in axes) for c in captures):
        return None
    with torch.no_grad():
        parts = [part for c in captures for part in run_ends(bound.tensors[c], axes)]
        fetched = torch.cat(parts).cpu().numpy()
    tables, at = {}, 0
    for c in captures:
        known = {}
        for tile, length in axes:
            count = 2 * -(-length // tile)
            known[tile, length] = fetched[at:at + count].reshape(2, -1)
            at += count
        if not fetched[at]:
            return None
        at += 1
        tables.update({pair: TileLabels(pair, (bound.tensors[c].numel(),), known) for pair in pairs if pair.captures == (c,)})
    return tables


def run_ends(labels: torch.Tensor, axes: Sequence[Tiles]) -> list[torch.Tensor]:
    """For labels [n] on any device: the number of the run at the first and last position of each tile of each axis, int32
    [2 * tiles], and last, int32 [1], whether no label comes back. Never waits for the device."""
    run = torch.zeros(labels.numel(), dtype=torch.int32, device=labels.device)
    torch.cumsum(labels[1:] != labels[:-1], 0, dtype=torch.int32, out=run[1:])
    found = []
    for tile, length in axes:
        first = run[0:length:tile]
        last = torch.cat([run[tile - 1:length - 1:tile][:first.numel() - 1], run[length - 1:length]])
        found += [first, last]
    ordered = labels.sort().values
    distinct = (ordered[1:] != ordered[:-1]).sum(dtype=torch.int32)
    return [*found, (distinct == run[-1]).int().reshape(1)]
