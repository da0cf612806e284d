"""The state of a mod as one comparable value, for what was computed from the contents of its captures (a BlockMask).

Tensors count by identity, layout, data pointer and `_version`. What has no version is never equal to anything, itself at another
time included, so that whoever compares builds again: tensors made under inference_mode, numpy arrays, tensors computed inside
the mod from unversioned state. Writes through `.data` change no version and are not seen.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..ir import DType
from ..ir.bound import BoundGraph
from ..ir.graph import Graph
from ..tensors import TensorKey, all_now
from .cache import bind


@dataclass(frozen=True)
class Fingerprint:
    graph: Graph
    literals: tuple[str, ...]
    tensors: tuple[TensorKey, ...]

    def has(self, tensors: tuple | None) -> bool:
        """Whether the tensors of another bound mod of the same graph and literals are the ones here, at the same versions."""
        return all_now(self.tensors, tensors) if tensors else tensors is not None


def fingerprint(fn, kind: str = "mask", score_dtype: DType = DType.F32) -> Fingerprint:
    """State of a mod now: equal fingerprints mean that the mod gives the same values at every position."""
    return fingerprint_of(bind(fn, kind, score_dtype))


def fingerprint_of(bound: BoundGraph) -> Fingerprint:
    """State of a bound mod now: its graph, its literals, and its tensors with their versions."""
    return Fingerprint(bound.graph, tuple(map(repr, bound.literals)), tuple(map(TensorKey, bound.tensors)))
