"""Captured tensors on the host, fetched from a device in one transfer, and spans on a device, sent in one."""
from __future__ import annotations

from dataclasses import replace
from typing import Callable

import torch

from flexfa4.facts.device_labels import HostTensors, device_runs, label_captures, runs_of_device
from flexfa4.ir.bound import BoundGraph

# Where each piece of a buffer starts: a multiple of the largest element, and of what a kernel reads at once.
_ALIGNED = 16


def on_cpu(t: torch.Tensor) -> bool:
    """Whether a tensor is in host memory."""
    return t.device.type == "cpu"


def on_host(bound: BoundGraph, here: Callable[[torch.Tensor], bool] = on_cpu) -> BoundGraph:
    """`bound` with its captures on the CPU, detached. All captures that are not `here` are packed into one buffer of bytes and
    copied at once, labels as their runs, so the device is waited for once; and once more where labels have too many runs."""
    away = [i for i, t in enumerate(bound.tensors) if not here(t)]
    if not away:
        return bound
    found = {i: device_runs(bound.tensors[i]) for i in label_captures(bound.graph).intersection(away)}
    coded = {i: parts for i, parts in found.items() if parts is not None}
    tensors = list(bound.tensors)
    fetched = iter(_fetch([part for i in away for part in coded.get(i, (tensors[i].detach(),))]))
    for i in away:
        if i not in coded:
            tensors[i] = next(fetched)
            continue
        shape = tuple(tensors[i].shape)
        runs = runs_of_device(next(fetched).numpy(), next(fetched).numpy(), shape)
        if runs is not None:
            tensors[i] = runs, shape
    crowded = [i for i in coded if isinstance(tensors[i], torch.Tensor)]
    for i, t in zip(crowded, _fetch([tensors[i].detach() for i in crowded])):
        tensors[i] = t
    return replace(bound, tensors=HostTensors(tensors))


def _fetch(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of one device on the host, by waiting for it once."""
    if not parts:
        return []
    pieces, begins, size = [], [], 0
    for part in parts:
        flat = part.contiguous().reshape(-1).view(torch.uint8)
        gap = -flat.numel() % _ALIGNED
        pieces += [flat, flat.new_empty(gap)] if gap else [flat]
        begins.append(size)
        size += flat.numel() + gap
    buffer = to_host(pieces[0] if len(pieces) == 1 else torch.cat(pieces))
    return [buffer[begin:begin + part.nbytes].view(part.dtype).reshape(part.shape) for begin, part in zip(begins, parts)]


def to_host(buffer: torch.Tensor) -> torch.Tensor:
    """A copy in host memory; waits for the device."""
    if buffer.device.type != "cuda":
        return buffer.cpu()
    # Through pinned memory, which torch keeps for the next time: a copy from pageable memory goes in pieces of 64 KiB.
    found = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
    found.copy_(buffer, non_blocking=True)
    torch.cuda.current_stream(buffer.device).synchronize()
    return found


def to_device(parts: tuple[torch.Tensor, ...], device: torch.device) -> list[torch.Tensor]:
    """CPU tensors on a device, in one copy, which is not waited for."""
    begins, size = [], 0
    for part in parts:
        begins.append(size)
        size += part.nbytes + -part.nbytes % _ALIGNED
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    filled = buffer.numpy()
    for begin, part in zip(begins, parts):
        filled[begin:begin + part.nbytes] = part.numpy().reshape(-1).view("u1")
    there = buffer.to(device, non_blocking=True)
    return [there[begin:begin + part.nbytes].view(part.dtype).view(part.shape) for begin, part in zip(begins, parts)]
