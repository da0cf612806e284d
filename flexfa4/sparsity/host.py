"""Captured tensors on the host, fetched from a device in one transfer."""
from __future__ import annotations

from dataclasses import replace
from typing import Callable

import torch

from flexfa4.ir.bound import BoundGraph


def on_cpu(t: torch.Tensor) -> bool:
    """Whether a tensor is in host memory."""
    return t.device.type == "cpu"


def on_host(bound: BoundGraph, here: Callable[[torch.Tensor], bool] = on_cpu) -> BoundGraph:
    """`bound` with its captures on the CPU, detached. All captures that are not `here` are packed into one buffer of
    bytes and copied at once, so the device is waited for once."""
    away = [i for i, t in enumerate(bound.tensors) if not here(t)]
    if not away:
        return bound
    tensors = list(bound.tensors)
    flat = [tensors[i].detach().contiguous().reshape(-1).view(torch.uint8) for i in away]
    # Each piece starts at a multiple of 8 bytes, as a view of another element type must.
    padded = [torch.nn.functional.pad(f, (0, -f.numel() % 8)) for f in flat]
    buffer = torch.cat(padded).cpu()
    start = 0
    for i, piece, pad in zip(away, flat, padded):
        t = tensors[i]
        tensors[i] = buffer[start:start + piece.numel()].view(t.dtype).reshape(t.shape)
        start += pad.numel()
    return replace(bound, tensors=tuple(tensors))
