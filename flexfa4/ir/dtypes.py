"""Element types of the IR, and which operations accept them. Standard library only.

Small integers exist because torch's arithmetic on them wraps; engines that compute in 32 bits wrap after each such op.
"""
from __future__ import annotations

from enum import Enum


class DType(Enum):
    BOOL = "bool"
    U8 = "u8"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"

    __hash__ = object.__hash__         # as in `Op`

    def __repr__(self) -> str:
        return self.value

    @property
    def is_float(self) -> bool:
        return self in FLOATS

    @property
    def is_int(self) -> bool:
        """True for the integer types; bool is not one of them."""
        return self in INT_RANGE

    @property
    def is_bool(self) -> bool:
        return self is DType.BOOL


FLOATS = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})

INT_RANGE = {
    DType.U8: (0, 2**8 - 1),
    DType.I8: (-(2**7), 2**7 - 1),
    DType.I16: (-(2**15), 2**15 - 1),
    DType.I32: (-(2**31), 2**31 - 1),
    DType.I64: (-(2**63), 2**63 - 1),
}

# Width order within a category; torch.result_type of two different categories takes the higher category.
_INT_ORDER = (DType.I8, DType.I16, DType.I32, DType.I64)


def promote(a: DType, b: DType) -> DType:
    """torch.promote_types for the types above (torch docs, "Type promotion"): float beats int beats bool; u8 with a signed
    type widens to the next signed type; f16 with bf16 gives f32."""
    if a is b:
        return a
    if a.is_float or b.is_float:
        if not (a.is_float and b.is_float):
            return a if a.is_float else b
        if DType.F64 in (a, b):
            return DType.F64
        return DType.F32
    if a.is_bool or b.is_bool:
        return b if a.is_bool else a
    if DType.U8 in (a, b):
        other = b if a is DType.U8 else a
        return DType.I16 if other is DType.I8 else other
    return max(a, b, key=_INT_ORDER.index)
