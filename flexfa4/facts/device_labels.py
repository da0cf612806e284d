"""Labels of captures on a device: they come to the host as their runs, where each ends and what label it has.

That is all of them, in a few bytes a document: tables of labels are made of runs anyway, and where an element is asked for, the
runs are written out again. Which label comes back is the host's to see.
"""
from __future__ import annotations

import math
from functools import lru_cache
from typing import Iterator, Sequence

import numpy as np
import torch

from flexfa4.ir import Graph, Op

from .labels import label_pair
from .tables import Runs

# Elements of a run, on average, below which labels are no shorter as runs; and elements that are copied as they are.
_LEAST_RUN = 16
_SHORT = 1 << 12


@lru_cache(maxsize=256)
def label_captures(graph: Graph) -> frozenset[int]:
    """The captures that a mask reads as labels: in an equality with another element of the same one, along its last dimension."""
    pairs = (label_pair(n) for n in graph.nodes if n.op in (Op.EQ, Op.NE))
    return frozenset(p.captures[0] for p in pairs
                     if p is not None and len(p.captures) == 1 and p.dim == graph.captures[p.captures[0]].rank - 1)


def device_runs(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(last, values) of the runs of labels [..., length] on any device, without waiting for it: int64 [capacity], the flat
    position at which each run ends, and the labels there; past the last run that one again. None for too few labels."""
    if labels.numel() <= _SHORT:
        return None
    flat = labels.detach().reshape(-1)
    change = torch.ne(flat[1:], flat[:-1])
    if labels.ndim > 1:
        change[labels.shape[-1] - 1::labels.shape[-1]] = True
    end = flat.numel() - 1
    last = torch.nonzero_static(change, size=flat.numel() // _LEAST_RUN, fill_value=end).view(-1)
    return last, flat.index_select(0, last)


def runs_of_device(last: np.ndarray, values: np.ndarray, shape: Sequence[int]) -> Runs | None:
    """What `device_runs` found, on the host; None where it may have had no room for all."""
    size = math.prod(shape)
    count = int(last.searchsorted(size - 1)) + 1
    if count >= last.size:
        return None
    starts = np.zeros(count, np.int64)
    np.add(last[:count - 1], 1, out=starts[1:])
    return Runs(starts, values[:count], size, shape[-1])


class HostTensors:
    """Captured tensors on the host, of which some are known by their runs, given as (runs, shape), and written out when asked
    for."""

    def __init__(self, tensors: Sequence[torch.Tensor | tuple[Runs, Sequence[int]]]):
        self._tensors = list(tensors)
        self._coded = {i: t for i, t in enumerate(tensors) if isinstance(t, tuple)}

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> torch.Tensor:
        t = self._tensors[i]
        if isinstance(t, tuple):
            runs, shape = t
            t = self._tensors[i] = torch.from_numpy(runs.values.repeat(np.diff(runs.bounds))).reshape(shape)
        return t

    def coded(self, i: int) -> tuple[Runs, Sequence[int]] | None:
        """(runs along the last dimension, shape) of tensor i, where it came as them."""
        return self._coded.get(i)
