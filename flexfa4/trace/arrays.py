"""numpy arrays as captures.

numpy asks nobody before it turns an index into an integer, so a mod that indexes an array with a traced value is called as a
copy of itself whose arrays are of a subclass that does ask. The user's function and arrays stay untouched.
"""
from __future__ import annotations

import functools
import types

import numpy as np
import torch

from .lanes import whole
from .recorder import active, capture_name, refuse
from .tracer import Symbolic


class CapturedArray(np.ndarray):
    """An array whose `a[traced]` is a lookup in a tensor that shares its memory."""

    def __getitem__(self, index):
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(p, Symbolic) for p in parts):
            return whole(self._tensor())[index]
        return super().__getitem__(index)

    def __setitem__(self, index, value):
        raise refuse("assignment into a numpy array (a write to a captured array): positions run in parallel and in any order",
                     "a new value in the mod, or the write before the call")

    def _tensor(self) -> torch.Tensor:
        rec = active()
        key = (self.__array_interface__["data"], self.shape, self.strides, self.dtype.str)
        found = rec.arrays.get(key)
        if found is None:
            name = capture_name(self)
            plain = self.view(np.ndarray)
            if not plain.flags.writeable or any(s < 0 for s in plain.strides) or not plain.dtype.isnative:
                plain = np.array(plain, dtype=plain.dtype.newbyteorder("="))
            try:
                found = torch.from_numpy(plain)
            except TypeError:
                raise refuse(f"captured numpy array `{name}` has dtype {self.dtype}",
                             f"{name}.astype(...) to a number type, before the call") from None
            rec.arrays[key] = found
            rec.capture(found, name)
        return found


def adopt_arrays(fn, depth: int = 4):
    """`fn`, or where arrays hang on it (closure, defaults, globals it names, partial's arguments, attributes of self) a copy
    of it that sees them as `CapturedArray`s."""
    new = _adopt(fn, depth)
    return fn if new is None else new


def _adopt(value, depth: int):
    """The replacement of a value, or None where nothing needs replacing."""
    if type(value) is np.ndarray:
        return value.view(CapturedArray) if value.ndim else None
    if depth == 0:
        return None
    if isinstance(value, types.FunctionType):
        return _adopt_function(value, depth - 1)
    if isinstance(value, types.MethodType):
        owner, inner = _adopt(value.__self__, depth - 1), _adopt(value.__func__, depth - 1)
        if owner is None and inner is None:
            return None
        return types.MethodType(inner or value.__func__, value.__self__ if owner is None else owner)
    if isinstance(value, functools.partial):
        inner, args, keywords = (_adopt(v, depth - 1) for v in (value.func, value.args, value.keywords))
        if inner is args is keywords is None:
            return None
        return functools.partial(inner or value.func, *(args or value.args), **(keywords or value.keywords))
    if type(value) in (tuple, list):
        new = [_adopt(v, depth - 1) for v in value[:64]]
        if all(n is None for n in new):
            return None
        return type(value)([v if n is None else n for v, n in zip(value, [*new, *[None] * (len(value) - len(new))])])
    if type(value) is dict:
        new = {k: n for k, v in list(value.items())[:64] if (n := _adopt(v, depth - 1)) is not None}
        return {**value, **new} if new else None
    return _adopt_object(value, depth - 1)


def _adopt_function(fn: types.FunctionType, depth: int):
    if (fn.__module__ or "").split(".", 1)[0] in ("torch", "numpy") and not fn.__closure__:
        return None
    cells = [_adopt(c.cell_contents, depth) if not _empty(c) else None for c in fn.__closure__ or ()]
    defaults, keywords = _adopt(fn.__defaults__, depth), _adopt(fn.__kwdefaults__, depth)
    named = {n: new for n in fn.__code__.co_names if n in fn.__globals__
             and (new := _adopt_global(fn.__globals__[n], depth)) is not None}
    if not named and defaults is None and keywords is None and all(c is None for c in cells):
        return None
    closure = tuple(c if new is None else types.CellType(new) for c, new in zip(fn.__closure__ or (), cells))
    copy = types.FunctionType(fn.__code__, {**fn.__globals__, **named} if named else fn.__globals__, fn.__name__,
                              defaults or fn.__defaults__, closure)
    copy.__kwdefaults__ = keywords or fn.__kwdefaults__
    return copy


def _adopt_global(value, depth: int):
    return _adopt(value, min(depth, 1)) if isinstance(value, (np.ndarray, types.FunctionType)) else None


def _empty(cell) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return True
    return False


def _adopt_object(value, depth: int):
    cls = type(value)
    plain = not isinstance(value, (type, types.ModuleType, torch.Tensor, torch.nn.Module))
    if not plain or not isinstance(getattr(value, "__dict__", None), dict):
        return None
    if cls.__module__.split(".", 1)[0] in ("torch", "numpy", "builtins"):
        return None
    new = {k: n for k, v in value.__dict__.items() if (n := _adopt(v, min(depth, 2))) is not None}
    if not new:
        return None
    copy = object.__new__(cls)
    copy.__dict__.update(value.__dict__)
    copy.__dict__.update(new)
    return copy
