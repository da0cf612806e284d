"""torch's promotion rule for 0-d tensors mixed with Python numbers."""
from __future__ import annotations

from functools import reduce

import torch

from ..ir import DType, promote
from ..tensors import FROM_TORCH

HALVES = frozenset({DType.F16, DType.BF16})


def default_float() -> DType:
    """What int / int gives: torch.get_default_dtype()."""
    return FROM_TORCH[torch.get_default_dtype()]


def result_dtype(strong: list[DType], weak: list[bool | int | float]) -> DType:
    """torch.result_type of 0-d tensors (`strong`) and Python numbers (`weak`).

    A Python number decides only when its category (bool < int < float) is higher than that of every tensor; then it counts
    as int64 or as the default float type. With no tensor at all the numbers decide alone (torch.where(c, 1, 0) is int64).
    """
    base = reduce(promote, strong) if strong else DType.BOOL
    for value in weak:
        if isinstance(value, float):
            if not base.is_float:
                base = default_float()
        elif not isinstance(value, bool) and base.is_bool:
            base = DType.I64
    return base


def as_float(dtype: DType) -> DType:
    """The type that a float-only op (exp, true division, ...) computes an operand of this type in."""
    return dtype if dtype.is_float else default_float()
