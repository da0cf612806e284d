"""Staged scalars: the register type of every IR type, conversions between them, and a select that also takes static values.

bool -> Boolean; 8-, 16- and 32-bit integers -> Int32, wrapped after each op; i64 -> Int32 where the value provably fits, Int64
otherwise; every float -> Float32 (f16 and bf16 are rounded after each op, f64 is computed in f32).
"""
from __future__ import annotations

import math
import struct

import cutlass
from cutlass import BFloat16, Boolean, Float16, Float32, Int32, Int64, Uint8, Uint32, Uint64

from flexfa4.ir import DType
from flexfa4.ir.dtypes import INT_RANGE

# Element type of a captured tensor in memory. Bool tensors are passed as bytes.
MEMORY_TYPE = {
    DType.BOOL: Uint8, DType.U8: Uint8, DType.I8: cutlass.Int8, DType.I16: cutlass.Int16, DType.I32: Int32, DType.I64: Int64,
    DType.F16: Float16, DType.BF16: BFloat16, DType.F32: Float32, DType.F64: cutlass.Float64,
}

_HALVES = {DType.F16: Float16, DType.BF16: BFloat16}


def is_static(value) -> bool:
    """Whether a value is a number known while compiling."""
    return isinstance(getattr(value, "value", value), (bool, int, float))


def static_number(value):
    return getattr(value, "value", value)


def select(condition, a, b, kind):
    """`a` where the condition holds, else `b`, as `kind`; both are of that kind."""
    if is_static(condition):
        return a if static_number(condition) else b
    if kind is Boolean:
        return Boolean((condition & Boolean(a)) | (~condition & Boolean(b)))
    return kind(cutlass.select_(condition, kind(a), kind(b)))


def as_int(value, kind):
    """An integer or Boolean as Int32 or Int64 (truncating)."""
    if isinstance(value, Boolean):
        return select(value, kind(1), kind(0), kind)
    return value if isinstance(value, kind) else kind(value)


def as_float(value):
    if isinstance(value, Boolean):
        return select(value, Float32(1.0), Float32(0.0), Float32)
    return value if isinstance(value, Float32) else Float32(value)


def unsigned(value):
    return Uint64(value) if isinstance(value, Int64) else Uint32(value)


def wrap(value, dtype: DType):
    """An Int32 reduced to the range of a small type, as torch's arithmetic on it wraps."""
    if is_static(value):
        low, high = INT_RANGE[dtype]
        return Int32((static_number(value) - low) % (high - low + 1) + low)
    if dtype is DType.U8:
        return value & 255
    if dtype is DType.I8:
        return (value << 24) >> 24
    if dtype is DType.I16:
        return (value << 16) >> 16
    raise ValueError(f"{dtype!r} is no small integer type")


def round_half(value, dtype: DType):
    """A Float32 rounded to f16 or bf16 and back; others as they are."""
    half = _HALVES.get(dtype)
    if half is None:
        return value
    return Float32(rounded_number(static_number(value), dtype)) if is_static(value) else Float32(half(value))


def rounded_number(value: float, dtype: DType) -> float:
    """A Python number rounded to f16 or bf16, to nearest even; what does not fit becomes infinite."""
    if dtype is DType.F16:
        try:
            return struct.unpack("<e", struct.pack("<e", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    if not math.isfinite(value):
        return value
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]
