"""Short ways into torch that its own compilers take in every launch: one check of many tensors, rooms without the dispatcher.

They are not among torch's public names (`torch.compile` stands on them since 2.1); `check_of` gives None and `rooms_on` public
functions where they are missing.
"""
from __future__ import annotations

from typing import Callable, Sequence

import torch
from torch import Tensor

_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_current_device = getattr(torch._C, "_cuda_getDevice", None)          # of builds for CUDA


def check_of(tensors: Sequence[Tensor]) -> Callable[..., bool] | None:
    """A function of as many arguments: whether each is of the class, dtype, device, shape and strides of the tensor in its place,
    wants a gradient only where that did, and is looked on by no other modes, transforms and autocasts than that is now. Holds no
    tensor. None where torch has no such check, and for tensors of which one comes twice."""
    make = getattr(_guards, "TensorGuards", None)
    if make is None:
        return None
    try:
        found = make(*tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
                     dynamic_dims_strides=[list(t.stride()) for t in tensors]).check
        return found if found(*tensors) is True else None
    except (TypeError, RuntimeError, AttributeError):
        return None


def takes_leaves() -> bool:
    """Whether tvm-ffi reads tensors by torch's own exchange functions, which do not mind one that wants a gradient; by DLPack's
    capsules it cannot have those."""
    return hasattr(Tensor, "__dlpack_c_exchange_api__")


def rooms_on(device: torch.device) -> Callable[[], Callable[[tuple, tuple, torch.dtype], Tensor]]:
    """A function that gives, for now, a function (shape, strides, dtype) -> a tensor of `device` that holds anything."""
    def public(shape, strides, dtype):
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    short, index = getattr(_guards, f"_empty_strided_{device.type}", None) or public, device.index
    if device.type != "cuda":
        return lambda: short
    return lambda: short if _current_device() == index else public           # the short way takes the current device


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))
