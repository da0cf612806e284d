"""The state of a mod as one comparable value, for what was computed from the contents of its captures (a BlockMask).

Tensors count by identity, layout, data pointer and `_version`. What has no version is never equal to anything, itself at another
time included, so that whoever compares builds again: tensors made under inference_mode, numpy arrays, tensors computed inside
the mod from unversioned state. Writes through `.data` change no version and are not seen.
"""
from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

from ..ir import DType
from ..ir.bound import BoundGraph
from ..ir.graph import Graph
from .cache import bind
from .guards import tensor_state


class TensorKey:
    """One tensor at one version. Equal to another key of the same living tensor object with the same layout and version."""

    __slots__ = ("ref", "state", "_hash")

    def __init__(self, t: torch.Tensor):
        self.ref = weakref.ref(t)
        self.state = tensor_state(t)
        self._hash = hash((id(t), self.state))

    def __eq__(self, other) -> bool:
        if not isinstance(other, TensorKey) or self.state is None or self.state != other.state:
            return False
        mine = self.ref()
        return mine is not None and mine is other.ref()

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Fingerprint:
    graph: Graph
    literals: tuple[str, ...]
    tensors: tuple[TensorKey, ...]


def fingerprint(fn, kind: str = "mask", score_dtype: DType = DType.F32) -> Fingerprint:
    """State of a mod now: equal fingerprints mean that the mod gives the same values at every position."""
    return fingerprint_of(bind(fn, kind, score_dtype))


def fingerprint_of(bound: BoundGraph) -> Fingerprint:
    """State of a bound mod now: its graph, its literals, and its tensors with their versions."""
    return Fingerprint(bound.graph, tuple(map(repr, bound.literals)), tuple(map(TensorKey, bound.tensors)))
