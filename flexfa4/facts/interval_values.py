"""Interval: bounds of one node over many rectangles; Space: the few array functions that the rules need, in numpy or torch."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flexfa4.ir import DType
from flexfa4.ir.dtypes import INT_RANGE

INF = math.inf

# Unit roundoff, doubled: covers one rounding in the type and the rounding of the bound itself in float64.
EPS = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-23, DType.F64: 2.0**-51}
# Smallest normal number: results below it may be flushed to zero.
TINY = {DType.F16: 2.0**-14, DType.BF16: 2.0**-126, DType.F32: 2.0**-126, DType.F64: 2.0**-1022}
LARGEST = {DType.F16: 65504.0, DType.BF16: 3.3895313892515355e38, DType.F32: 3.4028234663852886e38,
           DType.F64: 1.7976931348623157e308}
# Integers up to this size are exact in the type.
WHOLE = {DType.F16: 2**11, DType.BF16: 2**8, DType.F32: 2**24, DType.F64: 2**53}

_TORCH_FLOAT = {DType.F16: torch.float16, DType.BF16: torch.bfloat16, DType.F32: torch.float32, DType.F64: torch.float64}


@dataclass(frozen=True, eq=False)
class Interval:
    """lo <= value <= hi, or NaN where `nan`. Arrays or Python numbers, broadcastable; a bool node has lo "certainly true" and hi
    "possibly true". `poison`: the value may come from an out-of-range look-up.

    least, most: Python ints that bound lo and hi over all rectangles to come, for integers and for floats that hold whole numbers
    exactly (None for other floats and bools). They say, without a look at the arrays, that nothing wraps or rounds.
    """

    lo: Any
    hi: Any
    nan: Any = False
    poison: Any = False
    least: int | None = None
    most: int | None = None

    @property
    def fixed(self) -> bool:
        """One known number everywhere."""
        return isinstance(self.lo, (int, float)) and isinstance(self.hi, (int, float)) and self.lo == self.hi


class Space:
    """Array functions over Python numbers and either numpy arrays (device None) or torch tensors on `device`."""

    def __init__(self, device: torch.device | None):
        self.device = device
        self.host = device is None

    def minimum(self, a, b):
        if self.host:
            return np.minimum(a, b)
        return torch.minimum(*self._pair(a, b))

    def maximum(self, a, b):
        if self.host:
            return np.maximum(a, b)
        return torch.maximum(*self._pair(a, b))

    def where(self, condition, a, b):
        if isinstance(condition, bool):
            return a if condition else b
        if self.host:
            return np.where(condition, a, b)
        return torch.where(condition, *self._pair(a, b))

    def _pair(self, a, b):
        if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
            a = torch.as_tensor(a, device=self.device)
        if not isinstance(a, torch.Tensor):
            a = torch.full((), a, dtype=b.dtype, device=b.device)
        if not isinstance(b, torch.Tensor):
            b = torch.full((), b, dtype=a.dtype, device=a.device)
        return a, b

    def array(self, values: np.ndarray):
        """A host array in this space."""
        return values if self.host else torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def floats(self, x):
        """As float64."""
        if isinstance(x, (bool, int, float)):
            return float(x)
        return x.astype(np.float64) if self.host else x.double()

    def ints(self, x):
        """As int64; floats are truncated."""
        if isinstance(x, (bool, int, float)):
            return int(x)
        return x.astype(np.int64) if self.host else x.long()

    def call(self, name: str, x):
        """A float function of torch's name, on float64."""
        if isinstance(x, (int, float)) or (self.host and name in ("erf", "sigmoid")):
            y = getattr(torch, name)(torch.as_tensor(x, dtype=torch.float64, device="cpu"))
            return y.item() if isinstance(x, (int, float)) else y.numpy()
        if not self.host:
            return getattr(torch, name)(x)
        return getattr(np, {"round": "rint", "atan": "arctan"}.get(name, name))(x)


def negate(x):
    """Logical not of a Python bool or a bool array."""
    return (not x) if isinstance(x, bool) else ~x


def either(a, b):
    """Logical or, where a known False costs nothing."""
    if a is False:
        return b
    return a if b is False else a | b


def boolean(must, may, poison=False) -> Interval:
    return Interval(must, may, False, poison)


def exact(value, dtype: DType) -> Interval:
    """A known number, as the node's type holds it."""
    if dtype.is_bool:
        return Interval(bool(value), bool(value))
    if dtype.is_int:
        low, high = INT_RANGE[dtype]
        value = (int(value) - low) % (high - low + 1) + low
        return Interval(value, value, least=value, most=value)
    value = float(value)
    if dtype is not DType.F64:
        value = torch.tensor(value, dtype=torch.float64, device="cpu").to(_TORCH_FLOAT[dtype]).item()
    if math.isnan(value):
        return Interval(-INF, INF, nan=True)
    whole = int(value) if value.is_integer() and abs(value) <= WHOLE[dtype] else None
    return Interval(value, value, least=whole, most=whole)


def top(dtype: DType, poison=False) -> Interval:
    """Anything of the type."""
    if dtype.is_bool:
        return Interval(False, True, False, poison)
    if dtype.is_int:
        low, high = INT_RANGE[dtype]
        return Interval(low, high, False, poison, low, high)
    return Interval(-INF, INF, True, poison)


def whole(lo, hi, least: int, most: int, dtype: DType, poison) -> Interval | None:
    """The interval of exact whole numbers; for an integer type that they overflow, anything; None for a float type that does not
    hold them exactly."""
    if dtype.is_int:
        low, high = INT_RANGE[dtype]
        return Interval(lo, hi, False, poison, least, most) if low <= least and most <= high else top(dtype, poison)
    if -WHOLE[dtype] <= least and most <= WHOLE[dtype]:
        return Interval(lo, hi, False, poison, least, most)
    return None


def rounded(space: Space, lo, hi, dtype: DType, nan=False, poison=False, ulps: int = 1) -> Interval:
    """Bounds of a float result known to lie in [lo, hi] but for `ulps` roundings in `dtype`. A NaN bound is no bound."""
    eps, tiny, largest = EPS[dtype] * ulps, TINY[dtype], LARGEST[dtype]
    if isinstance(lo, float) and isinstance(hi, float):
        lo, hi = np.float64(lo), np.float64(hi)
    lo, hi = space.floats(lo), space.floats(hi)
    lo = lo - (abs(lo) * eps + tiny)
    hi = hi + (abs(hi) * eps + tiny)
    nan_lo, nan_hi = lo != lo, hi != hi
    # A result past the largest number becomes infinite in the type, so the bound on that side is infinite or no greater.
    lo = space.where(either(nan_lo, lo < -largest), -INF, space.minimum(lo, largest))
    hi = space.where(either(nan_hi, hi > largest), INF, space.maximum(hi, -largest))
    return Interval(lo, hi, nan, poison)
