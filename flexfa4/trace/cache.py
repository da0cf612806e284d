"""`bind`: trace through a cache (see guards)."""
from __future__ import annotations

from ..ir import DType
from ..ir.bound import BoundGraph
from .trace import trace


def bind(fn, kind: str, score_dtype: DType = DType.F32) -> BoundGraph:
    return trace(fn, kind, score_dtype)
