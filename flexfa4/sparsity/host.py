"""Captured tensors on the host, fetched from a device with one wait, and spans on a device, sent without one."""
from __future__ import annotations

from typing import Callable

import numpy as np
import torch

from flexfa4.facts.device_labels import Copied, HostTensors, device_runs, label_captures
from flexfa4.ir.bound import BoundGraph
from flexfa4.tensors import stream_on, wait_for


def on_cpu(t: torch.Tensor) -> bool:
    """Whether a tensor is in host memory."""
    return t.device.type == "cpu"


def on_host(bound: BoundGraph, here: Callable[[torch.Tensor], bool] = on_cpu) -> BoundGraph:
    """`bound` with its captures on the CPU, detached. All that are not `here` are copied together, many labels as their runs too;
    the device is waited for once, when one of them is first read."""
    tensors = bound.tensors
    if here is on_cpu and all([t.is_cpu for t in tensors]):
        return bound
    away = [i for i, t in enumerate(tensors) if not here(t)]
    if not away:
        return bound
    labels, parts, places = label_captures(bound.graph), [], {}
    for i in away:
        whole = tensors[i].detach()
        last = device_runs(whole) if i in labels else None
        places[i] = len(parts), last is not None
        parts += [whole] if last is None else [whole, last]
    copies = Copies(parts)
    copied = {i: Copied(copies.tensors[at], copies.tensors[at + 1] if found else None) for i, (at, found) in places.items()}
    return BoundGraph(bound.graph, HostTensors(tensors, copied, copies.wait), bound.literals, bound.origin)


class Copies:
    """Copies in host memory of tensors on devices; from CUDA devices they are under way until `wait`."""

    def __init__(self, parts: list[torch.Tensor]):
        self._streams = {device: stream_on(device) for device in {part.device for part in parts if part.is_cuda}}
        self.tensors = [_copy(part) for part in parts]

    def wait(self) -> None:
        """Until they are there."""
        for device, stream in self._streams.items():
            wait_for(device, stream)


def _copy(part: torch.Tensor) -> torch.Tensor:
    if not part.is_cuda:
        return part.to("cpu", copy=True)
    # Through pinned memory, which torch keeps for the next time: a copy from pageable memory goes in small pieces.
    return torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=True).copy_(part.contiguous(), non_blocking=True)


_TYPES = {np.dtype(np.int16): torch.int16, np.dtype(np.int32): torch.int32}
# Bytes up to which CUDA takes a copy from any memory with the command, so that it needs no pinned memory, which takes 20 us of an
# H200's host.
_WITH_COMMAND = 1 << 16


def send(row_ptr: np.ndarray, runs: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Spans on a device, in one copy, which is not waited for: int32 [rows + 1], and [n, 3] of `runs`' type."""
    # The second part begins at a multiple of 16 bytes, as much as a kernel reads at once.
    rows, begin = row_ptr.size, -(-row_ptr.size // 4) * 4
    size = begin + (runs.nbytes + 3) // 4
    buffer = torch.empty(size, dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda" and 4 * size > _WITH_COMMAND)
    host = buffer.numpy()
    host[:rows] = row_ptr
    host[begin:].view(runs.dtype)[:runs.size] = runs.reshape(-1)
    there = buffer.to(device, non_blocking=True)
    second = there if runs.itemsize == 4 else there.view(_TYPES[runs.dtype])
    return there.as_strided((rows,), (1,)), second.as_strided(runs.shape, (3, 1), begin * (4 // runs.itemsize))
