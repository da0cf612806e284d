"""Labels of captures on a device: of many, their runs come to the host, where each ends and what label it has.

That is all of them, in a few bytes a document: tables of labels are made of runs anyway. Which label comes back is the host's to
see. Labels of more runs than that has room for, and single elements, are read from a copy of all labels, which comes along.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from flexfa4.ir import Graph, Op

from .labels import label_pair
from .tables import Runs

# Elements of a run, on average, below which labels are no shorter as runs.
_LEAST_RUN = 16
# Elements from which on the device finds runs sooner than the host, telling it to included.
LONG = 1 << 18


@lru_cache(maxsize=256)
def label_captures(graph: Graph) -> frozenset[int]:
    """The captures that a mask reads as labels: in an equality with another element of the same one, along its last dimension."""
    pairs = (label_pair(n) for n in graph.nodes if n.op in (Op.EQ, Op.NE))
    return frozenset(p.captures[0] for p in pairs
                     if p is not None and len(p.captures) == 1 and p.dim == graph.captures[p.captures[0]].rank - 1)


def device_runs(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(last, values) of the runs of labels [..., length] on any device, without waiting for it: int64 [capacity], the flat
    position at which each run ends, and the labels there; past the last run that one again. None for too few labels."""
    if labels.numel() < LONG:
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


@dataclass(frozen=True)
class Copied:
    """What comes to the host of one capture: all of it, and what `device_runs` found."""

    whole: torch.Tensor
    runs: tuple[torch.Tensor, torch.Tensor] | None


class HostTensors(Sequence):
    """Captured tensors on the host. Those that are `copied`, by number, are there after `wait`, which is called once and no
    sooner than one of them is asked for."""

    def __init__(self, tensors: Sequence[torch.Tensor], copied: Mapping[int, Copied], wait: Callable[[], None]):
        self._tensors, self._copied, self._wait = tensors, copied, wait
        self._runs: dict[int, Runs | None] = {}

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, i: int) -> torch.Tensor:
        return self._here(i).whole if i in self._copied else self._tensors[i]

    def runs(self, i: int) -> Runs | None:
        """The runs of tensor i along its last dimension, where they came along."""
        if i not in self._runs:
            come = self._copied.get(i)
            if come is None or come.runs is None:
                return None
            last, values = (part.numpy() for part in self._here(i).runs)
            self._runs[i] = runs_of_device(last, values, come.whole.shape)
        return self._runs[i]

    def _here(self, i: int) -> Copied:
        if self._wait is not None:
            wait, self._wait = self._wait, None
            wait()
        return self._copied[i]
