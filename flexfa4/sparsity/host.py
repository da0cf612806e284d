"""Captured tensors on the host, fetched from a device with one wait, and spans on a device, sent without one."""
from __future__ import annotations

from typing import Callable

import numpy as np
import torch

from flexfa4.facts.device_labels import HostTensors, device_runs, label_captures, runs_of_device
from flexfa4.ir.bound import BoundGraph


def on_cpu(t: torch.Tensor) -> bool:
    """Whether a tensor is in host memory."""
    return t.device.type == "cpu"


def on_host(bound: BoundGraph, here: Callable[[torch.Tensor], bool] = on_cpu) -> BoundGraph:
    """`bound` with its captures on the CPU, detached. All that are not `here` are copied together, labels as their runs, so the
    device is waited for once; and once more where labels have too many runs."""
    away = [i for i, t in enumerate(bound.tensors) if not here(t)]
    if not away:
        return bound
    tensors = list(bound.tensors)
    labels = label_captures(bound.graph)
    coded = {i: parts for i in away if i in labels and (parts := device_runs(tensors[i])) is not None}
    whole = [i for i in away if i not in coded]
    fetched = iter(fetch([part for parts in coded.values() for part in parts] + [tensors[i].detach() for i in whole]))
    crowded = []
    for i in coded:
        shape = tuple(tensors[i].shape)
        runs = runs_of_device(next(fetched).numpy(), next(fetched).numpy(), shape)
        if runs is None:
            crowded.append(i)
        else:
            tensors[i] = runs, shape
    for i in whole:
        tensors[i] = next(fetched)
    if crowded:
        for i, t in zip(crowded, fetch([tensors[i].detach() for i in crowded])):
            tensors[i] = t
    return BoundGraph(bound.graph, HostTensors(tensors), bound.literals, bound.origin)


def fetch(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of tensors of one device in host memory; waits for the device once."""
    device = parts[0].device
    if device.type != "cuda":
        return [part.to("cpu", copy=True) for part in parts]
    # Through pinned memory, which torch keeps for the next time: a copy from pageable memory goes in small pieces.
    found = []
    for part in parts:
        host = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
        found.append(host.copy_(part.contiguous(), non_blocking=True))
    torch.cuda.current_stream(device).synchronize()
    return found


def send(row_ptr: np.ndarray, runs: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Spans on a device, in one copy, which is not waited for: int32 [rows + 1], and [n, 3] of `runs`' type."""
    # The second part begins at a multiple of 16 bytes, as much as a kernel reads at once.
    begin = -(-row_ptr.size // 4) * 4
    buffer = torch.empty(begin + (runs.nbytes + 3) // 4, dtype=torch.int32, pin_memory=device.type == "cuda")
    host = buffer.numpy()
    host[:row_ptr.size] = row_ptr
    host[begin:].view(runs.dtype)[:runs.size] = runs.reshape(-1)
    there = buffer.to(device, non_blocking=True)
    second = there.view(torch.from_numpy(runs).dtype)
    return there[:row_ptr.size], second.as_strided(runs.shape, (3, 1), begin * (4 // runs.itemsize))
