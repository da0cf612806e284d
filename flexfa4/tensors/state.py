"""Whether a tensor is still what it was: by identity, layout, data pointer and version. Writes through `.data` are not seen."""
from __future__ import annotations

import weakref

import torch


def tensor_state(t: torch.Tensor) -> tuple | None:
    """Layout, data pointer and version of a tensor; None where it has no version (inference tensors)."""
    try:
        return t.data_ptr(), t.shape, t.stride(), t.storage_offset(), t.dtype, t._version
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


class TensorKey:
    """One tensor at one version. Equal to another key of the same living tensor object with the same layout and version."""

    __slots__ = ("ref", "state", "place")

    def __init__(self, t: torch.Tensor):
        self.ref = weakref.ref(t)
        self.state = tensor_state(t)
        self.place = id(t)

    def __eq__(self, other) -> bool:
        if not isinstance(other, TensorKey) or self.state is None or self.state != other.state:
            return False
        mine = self.ref()
        return mine is not None and mine is other.ref()

    def __hash__(self) -> int:
        return hash((self.place, self.state))


def all_now(keys, tensors) -> bool:
    """Whether each key is that of its tensor as it is now: `TensorKey(t) == key`, and no key is made."""
    for key, t in zip(keys, tensors):
        if key.ref() is not t or key.state is None or tensor_state(t) != key.state:
            return False
    return True
