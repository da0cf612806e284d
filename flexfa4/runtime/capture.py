"""First calls while a CUDA graph is captured: what a call makes for later ones is made beside the capture, not in it.

Loading a kernel and bringing lists to the device are no part of what a graph replays, and CUDA forbids them on a stream that is
captured. They happen on a stream of their own, with this thread in the relaxed capture mode, and are finished when the launch is
captured. Nobody says when a graph is gone, so lists that one has captured are kept as long as the process.
"""
from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from typing import Iterator

import torch

from flexfa4.errors import UnsupportedError
from flexfa4.ir.bound import BoundGraph

_RELAXED = 2                           # CU_STREAM_CAPTURE_MODE_RELAXED of cuda.h
_kept: dict[int, object] = {}


def active(device: torch.device) -> bool:
    """Whether the current stream is captured."""
    return device.type == "cuda" and torch._C._cuda_isCurrentStreamCapturing()


def keep(what) -> None:
    """For the graph that is captured; once an object."""
    _kept[id(what)] = what


@contextlib.contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """While a graph is captured: the current stream is one that is not, and is waited for at the end. Else nothing."""
    if not active(device):
        yield
        return
    with relaxed(device), torch.cuda.stream(_side_stream(device)):
        yield
        torch.cuda.current_stream(device).synchronize()


def refuse_contents(bound: BoundGraph) -> None:
    """Raises UnsupportedError where the tiles of a mask are to be found from tensors on a GPU while a graph is captured: they may
    be what the graph itself computes, which no one knows yet."""
    if any(active(t.device) for t in bound.tensors):
        about = bound.origin
        raise UnsupportedError(f"{about.where()}: which tiles {about.name} keeps depends on tensors that it closes over, and "
                               "cannot be found out while a CUDA graph is captured: call flex_attention once with this mask and "
                               "these shapes before the capture, or pass block_mask=mask.reserve(), whose tiles the graph "
                               "finds itself")


@contextlib.contextmanager
def relaxed(device: torch.device) -> Iterator[None]:
    """While a graph is captured: this thread may load kernels."""
    if not active(device):
        yield
        return
    mode = ctypes.c_int(_RELAXED)
    _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
