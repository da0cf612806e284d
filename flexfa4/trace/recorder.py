"""The state of one trace: captured tensors, literal slots, source lines. One trace at a time per thread."""
from __future__ import annotations

import math
import sys
import threading
import traceback
import types
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from ..errors import TraceError
from ..ir import Capture, DType, Node, Op, const, node
from ..ir.dtypes import INT_RANGE
from ..tensors import FROM_TORCH

_HERE = str(Path(__file__).resolve().parent)
_TORCH = str(Path(torch.__file__).resolve().parent)
_NUMPY = str(Path(np.__file__).resolve().parent)
_SKIP = (_HERE, _TORCH, _NUMPY)
_APPLY = torch.autograd.Function.apply.__func__.__code__
_state = threading.local()


class Recorder:
    """Collects what one call of a mod uses.

    `used_derived`: a captured tensor was computed inside the mod from real tensors, so the trace holds for one call only.
    `shape_read`: a length or the device of a captured tensor shaped the graph or a literal.
    `loose`: something of a captured tensor was read that no guard follows (`.grad`, `.stride()`, `repr(t)`).
    `at`, `names`: where what is recorded stands in the user's code, and what its tensors are called there (by id), for a mod that
    is not running itself but was recorded before.
    `differentiable`: the result may have a gradient: a mask's has none.
    `grad_mode`: whether gradients were being recorded when the mod was called.
    `outermost`: the code that calls the mod: frames beyond it are not the mod's.
    `folded`: a captured tensor's values were read on the host (`.item()`, `int(t)`), so the trace holds for this version.
    """

    def __init__(self, name: str, differentiable: bool = True):
        self.name = name
        self.differentiable = differentiable
        self.grad_mode = torch.is_grad_enabled()
        self.outermost: types.CodeType | None = None
        self.tensors: list[torch.Tensor] = []
        self.captures: list[Capture] = []
        self.capture_names: list[str] = []
        self.literals: list[bool | int | float] = []
        self.slots: list[DType] = []
        self.lines: dict[Node, int] = {}
        self.kept: list[torch.Tensor] = []
        self.made: set[int] = set()
        self.writable: set[int] = set()
        self.used_derived = False
        self.folded = False
        self.shape_read = False
        self.loose = False
        self.arrays: dict[tuple, torch.Tensor] = {}
        self.own_gradient_allowed = False
        self.at: tuple[str, int] | None = None
        self.names: dict[int, str] = {}
        self._index: dict[int, int] = {}

    def note_derived(self, result: torch.Tensor, sources) -> None:
        """A tensor computed inside the mod. Writing to it is fine unless it shares memory with one from outside."""
        self.kept.append(result)
        self.made.add(id(result))
        for source in sources:
            if isinstance(source, torch.Tensor) and id(source) not in self.writable and _shares(source, result):
                return
        self.writable.add(id(result))

    def literal(self, value: bool | int | float, dtype: DType, static: bool = False) -> Node:
        """A Python number as a node of `dtype`: a CONST where it is structure (0, 1, True, False, or `static`), else a new
        runtime slot, never merged with another of the same value."""
        if dtype.is_int:
            check_range(value, dtype)
        if static or isinstance(value, bool) or (value == 0 and math.copysign(1.0, value) > 0) or value == 1:
            return const(value, dtype)
        self.literals.append(bool(value) if dtype.is_bool else int(value) if dtype.is_int else _rounded(float(value), dtype))
        self.slots.append(dtype)
        return node(Op.SLOT, (), dtype, len(self.slots) - 1)

    def capture(self, tensor: torch.Tensor, name: str | None = None) -> int:
        """Index of a captured tensor; the same object is one capture."""
        found = self._index.get(id(tensor))
        if found is not None:
            return found
        dtype = FROM_TORCH.get(tensor.dtype)
        name = name or capture_name(tensor)
        if dtype is None:
            raise refuse(f"captured tensor {name} has dtype {tensor.dtype}",
                         "bool, uint8, int8..int64, float16, bfloat16, float32 or float64: cast it before the call")
        if tensor.is_nested or tensor.layout is not torch.strided:
            raise refuse(f"captured tensor {name} is {'nested' if tensor.is_nested else f'of layout {tensor.layout}'}",
                         "a strided tensor, such as .to_dense() of a sparse one, made before the call")
        if type(tensor).__name__ == "DTensor":
            raise refuse(f"captured tensor {name} is a DTensor", f"its local part: {name}.to_local()")
        self._index[id(tensor)] = len(self.tensors)
        self.used_derived |= id(tensor) in self.made
        self.tensors.append(tensor)
        self.captures.append(Capture(dtype, tensor.dim()))
        self.capture_names.append(name)
        return len(self.tensors) - 1

    def load(self, index: int, args: tuple[Node, ...]) -> Node:
        n = node(Op.LOAD, args, self.captures[index].dtype, index)
        if n not in self.lines:
            self.lines[n] = _line()
        return n


# The least numbers that round to infinity: half a unit of the last place beyond the largest.
_OVERFLOW = {DType.F16: 65520.0, DType.BF16: 2.0 ** 128 * (1 - 2.0 ** -9), DType.F32: 2.0 ** 128 * (1 - 2.0 ** -25)}


def _rounded(value: float, dtype: DType) -> float:
    """Infinite where the type has no larger number, as torch takes a Python number beside a tensor."""
    return math.copysign(math.inf, value) if abs(value) >= _OVERFLOW.get(dtype, math.inf) else value


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a is b:
        return True
    try:
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return True


def check_range(value: int | float, dtype: DType) -> None:
    low, high = INT_RANGE[dtype]
    if not low <= value <= high:
        raise refuse(f"the number {value} does not fit {dtype!r}, the type of the other operand",
                     "a cast of that operand first, such as x.long()")


def active() -> Recorder:
    """The recorder of the trace that is running in this thread."""
    found = getattr(_state, "recorder", None)
    if found is None:
        raise refuse("a traced value is used outside the mod that made it",
                     "the whole computation inside the mod; it must not store its arguments")
    return found


def refuse_own_gradient(is_float: bool) -> None:
    """Refuses values whose gradient is not that of the formula: made inside a torch.autograd.Function, whose own backward would
    be ignored, or (floats) where the mod itself has switched gradients off."""
    recorder = active()
    if recorder.own_gradient_allowed:
        return
    frame, outermost = sys._getframe(3), recorder.outermost        # beyond Traced, and what of this package made one
    while frame is not None:
        code = frame.f_code
        if code is _APPLY:
            raise refuse("a torch.autograd.Function in a mod: its backward would be replaced by the derivative of its forward",
                         "its forward as plain torch functions")
        if code is outermost:
            break
        frame = frame.f_back
    if is_float and recorder.grad_mode and recorder.differentiable and not torch.is_grad_enabled():
        raise refuse("torch.no_grad() or inference_mode() in a mod: a mod's gradient is exact everywhere",
                     "a captured tensor that is detached, or the call itself under torch.no_grad()")


class recording:
    """Makes a recorder the active one for the duration of a `with` block; nests."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder

    def __enter__(self) -> Recorder:
        self.previous = getattr(_state, "recorder", None)
        _state.recorder = self.recorder
        return self.recorder

    def __exit__(self, *exc) -> None:
        _state.recorder = self.previous


def user_frame():
    """The innermost frame that is not this package's, torch's or numpy's: the user's line."""
    frame = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=1024)
def is_user_file(filename: str) -> bool:
    return not filename.startswith(_SKIP)


def raised_at(error: Exception, beside: str = "") -> tuple[str, int] | None:
    """(file, line) of the innermost frame of `error` that is the user's; frames of the file `beside` are not."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename) and frame.filename != beside:
            return frame.filename, frame.lineno
    return None


def _line() -> int:
    recorder = getattr(_state, "recorder", None)
    if recorder is not None and recorder.at:
        return recorder.at[1]
    frame = user_frame()
    return frame.f_lineno if frame is not None else 0


def place() -> str:
    """"file:line" of the user's code that is being traced."""
    recorder = getattr(_state, "recorder", None)
    if recorder is not None and recorder.at:
        return f"{recorder.at[0]}:{recorder.at[1]}"
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "unknown place"


def refuse(what: str, instead: str, where: str | None = None) -> TraceError:
    """The one form of every refusal: place, what was met, what to write instead."""
    return TraceError(f"{where or place()}: {what}. Write instead: {instead}.")


def capture_name(tensor) -> str:
    """The name under which the user's code refers to a tensor or array, found in the frames that are running; else its shape."""
    recorder = getattr(_state, "recorder", None)
    if recorder is not None and id(tensor) in recorder.names:
        return recorder.names[id(tensor)]
    frame = user_frame()
    depth = 0
    while frame is not None and depth < 4:
        if is_user_file(frame.f_code.co_filename):
            found = _name_in(frame, tensor)
            if found:
                return found
            depth += 1
        frame = frame.f_back
    shape = "nested" if getattr(tensor, "is_nested", False) else f"of shape {tuple(tensor.shape)}"
    return f"{type(tensor).__name__} {shape}"


def _name_in(frame, tensor) -> str | None:
    local = frame.f_locals
    for name, value in local.items():
        if value is tensor:
            return name
    named = {n: frame.f_globals[n] for n in frame.f_code.co_names if n in frame.f_globals}
    for name, value in named.items():
        if value is tensor:
            return name
    for name, value in [*local.items(), *named.items()]:
        inner = getattr(value, "__dict__", None)
        if isinstance(inner, dict):
            for group in (inner, inner.get("_parameters"), inner.get("_buffers")):
                # a module of Python may define anything under these names
                for key, item in group.items() if isinstance(group, dict) else ():
                    if item is tensor:
                        return f"{name}.{key}"
        elif isinstance(value, (list, tuple, dict)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                if item is tensor:
                    return f"{name}[{key!r}]"
        for key in getattr(type(value), "__slots__", ()):
            if isinstance(key, str) and getattr(value, key, None) is tensor:
                return f"{name}.{key}"
    return None
