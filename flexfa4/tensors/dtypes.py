"""Between the IR's element types and torch's."""
from __future__ import annotations

import torch

from flexfa4.errors import UnsupportedError
from flexfa4.ir import DType

TO_TORCH = {
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
}
FROM_TORCH = {theirs: ours for ours, theirs in TO_TORCH.items()}


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch element type of an IR type."""
    return TO_TORCH[dtype]


def dtype_of(dtype: torch.dtype) -> DType:
    """The IR type of a torch element type. Raises UnsupportedError for complex, quantised, 8-bit float types and so on."""
    found = FROM_TORCH.get(dtype)
    if found is None:
        raise UnsupportedError(f"dtype {dtype} is not one that a mod can use; cast to one of {', '.join(map(str, FROM_TORCH))}")
    return found
