"""Labels of captures on a device: of many, the places where their runs end come to the host.

Tables of labels are made of runs anyway, and the host then reads a few of the labels, which come along, and not all. Where there
are more runs than that has room for, it does.
"""
from __future__ import annotations

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
# Elements from which on the device finds runs sooner than the host, telling it to included. Of 131,072 an H200's host finds them
# sooner: 607 us for a mask of documents, 659 where the device does.
LONG = 1 << 18


@lru_cache(maxsize=256)
def label_captures(graph: Graph) -> frozenset[int]:
    """The captures that a mask reads as labels: in an equality with another element of the same one, along its last dimension."""
    pairs = (label_pair(n) for n in graph.nodes if n.op in (Op.EQ, Op.NE))
    return frozenset(p.captures[0] for p in pairs
                     if p is not None and len(p.captures) == 1 and p.dim == graph.captures[p.captures[0]].rank - 1)


def device_runs(labels: torch.Tensor) -> torch.Tensor | None:
    """The last of each run of labels [..., length] on any device, without waiting for it: int64 [capacity], flat positions; past
    the last run that one again. None for too few labels."""
    if labels.numel() < LONG:
        return None
    flat = labels.detach().reshape(-1)
    change = torch.ne(flat[1:], flat[:-1])
    if labels.ndim > 1:
        change[labels.shape[-1] - 1::labels.shape[-1]] = True
    return torch.nonzero_static(change, size=flat.numel() // _LEAST_RUN, fill_value=flat.numel() - 1).view(-1)


def runs_of_device(last: np.ndarray, labels: np.ndarray) -> Runs | None:
    """The runs of labels, of which `device_runs` found `last`, on the host; None where it may have had no room for all."""
    count = int(last.searchsorted(labels.size - 1)) + 1
    if count >= last.size:
        return None
    starts = np.zeros(count, np.int64)
    np.add(last[:count - 1], 1, out=starts[1:])
    return Runs(starts, labels.reshape(-1).take(starts), labels.size, labels.shape[-1])


@dataclass(frozen=True)
class Copied:
    """What comes to the host of one capture: all of it, and what `device_runs` found."""

    whole: torch.Tensor
    last: torch.Tensor | None


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
            if come is None or come.last is None:
                return None
            self._here(i)
            self._runs[i] = runs_of_device(come.last.numpy(), come.whole.numpy())
        return self._runs[i]

    def _here(self, i: int) -> Copied:
        if self._wait is not None:
            wait, self._wait = self._wait, None
            wait()
        return self._copied[i]
