"""numpy arrays as captures.

numpy asks nobody before it turns an index into an integer, so a mod that indexes an array with a traced value is called as a
copy of itself whose arrays are of a subclass that does ask. The user's function, objects and arrays stay untouched.
"""
from __future__ import annotations

import functools
import types

import numpy as np
import torch

from .codes import is_empty
from .lanes import whole
from .recorder import active, capture_name, refuse
from .tracer import Symbolic

_MOST_ITEMS = 64
# Modules, by their first name, whose functions and classes hold no array of the user's.
_FOREIGN = frozenset({"torch", "numpy", "builtins", "math", "functools", "typing", "enum", "dataclasses", "collections"})


class CapturedArray(np.ndarray):
    """An array whose `a[traced]` is a lookup in a tensor that holds a copy of it: a write between the trace and the backward
    pass changes nothing."""

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
            try:
                found = torch.from_numpy(np.array(self, dtype=self.dtype.newbyteorder("="), subok=False))
            except TypeError:
                raise refuse(f"captured numpy array `{name}` has dtype {self.dtype}",
                             f"{name}.astype(...) to a number type, before the call") from None
            rec.arrays[key] = found
            rec.capture(found, name)
        return found


def adopt_arrays(fn, depth: int = 6):
    """`fn`, or where arrays hang on it (closure, defaults, arguments of a partial, attributes of self or of its class, globals
    that it names and what hangs on those) a copy of it that sees them as `CapturedArray`s."""
    new = _Adoption().of(fn, depth)
    return fn if new is None else new


class _Adoption:
    """Finds replacements; None stands for "nothing needs replacing"."""

    def __init__(self):
        self._known: dict[tuple[int, int], object] = {}

    def of(self, value, depth: int):
        if type(value) is np.ndarray:
            return value.view(CapturedArray) if value.ndim else None
        if depth == 0 or value is None or isinstance(value, (bool, int, float, str, torch.Tensor)):
            return None
        key = id(value), depth
        if key not in self._known:
            self._known[key] = None                  # for a value that contains itself
            self._known[key] = self._anew(value, depth - 1)
        return self._known[key]

    def _anew(self, value, depth: int):
        if isinstance(value, types.FunctionType):
            return self._function(value, depth)
        if isinstance(value, types.MethodType):
            owner, inner = self.of(value.__self__, depth), self.of(value.__func__, depth)
            if owner is None and inner is None:
                return None
            return types.MethodType(inner or value.__func__, value.__self__ if owner is None else owner)
        if isinstance(value, functools.partial):
            inner, args, keywords = (self.of(v, depth) for v in (value.func, value.args, value.keywords))
            if inner is args is keywords is None:
                return None
            return functools.partial(inner or value.func, *(args or value.args), **(keywords or value.keywords))
        if isinstance(value, tuple) or type(value) is list:
            return self._sequence(value, depth)
        if isinstance(value, dict):
            new = self._items(dict(list(value.items())[:_MOST_ITEMS]), depth)
            return {**value, **new} if new and type(value) is dict else None
        if isinstance(value, type):
            return self._class(value, depth)
        return None if isinstance(value, types.ModuleType) else self._object(value, depth)

    def _items(self, mapping, depth: int) -> dict:
        """The replacements among a mapping's values."""
        return {k: new for k, v in mapping.items() if (new := self.of(v, depth)) is not None}

    def _sequence(self, value, depth: int):
        new = [self.of(v, depth) for v in value[:_MOST_ITEMS]]
        if all(n is None for n in new):
            return None
        items = [v if n is None else n for v, n in zip(value, [*new, *[None] * (len(value) - len(new))])]
        make = getattr(value, "_make", type(value)) if isinstance(value, tuple) else type(value)
        return make(items)

    def _function(self, fn: types.FunctionType, depth: int):
        if _foreign(fn) and not fn.__closure__:
            return None
        cells = [None if is_empty(c) else self.of(c.cell_contents, depth) for c in fn.__closure__ or ()]
        defaults, keywords = self.of(fn.__defaults__, depth), self.of(fn.__kwdefaults__, depth)
        named = self._globals(fn, depth)
        if not named and defaults is None and keywords is None and all(c is None for c in cells):
            return None
        closure = tuple(c if new is None else types.CellType(new) for c, new in zip(fn.__closure__ or (), cells))
        copy = types.FunctionType(fn.__code__, {**fn.__globals__, **named} if named else fn.__globals__, fn.__name__,
                                  defaults or fn.__defaults__, closure)
        copy.__kwdefaults__ = keywords or fn.__kwdefaults__
        return copy

    def _globals(self, fn: types.FunctionType, depth: int) -> dict:
        named = {n: fn.__globals__[n] for n in fn.__code__.co_names if n in fn.__globals__}
        new = self._items(named, depth)
        for name, value in named.items():
            if isinstance(value, types.ModuleType) and value.__name__.split(".", 1)[0] not in _FOREIGN:
                inner = {n: vars(value)[n] for n in fn.__code__.co_names if n in vars(value)}
                if arrays := self._items(inner, min(depth, 2)):
                    new[name] = types.ModuleType(value.__name__)
                    vars(new[name]).update({**vars(value), **arrays})
        return new

    def _object(self, value, depth: int):
        cls = type(value)
        if _foreign(cls) and not isinstance(value, torch.nn.Module):
            return None
        state = getattr(value, "__dict__", None)
        slots = {d: d.__get__(value) for base in cls.__mro__ if not _foreign(base)
                 for d in base.__dict__.values() if isinstance(d, types.MemberDescriptorType) and _filled(d, value)}
        if not isinstance(state, dict):
            state = {}
        new_class, new_state, new_slots = self.of(cls, depth), self._items(state, depth), self._items(slots, depth)
        if new_class is None and not new_state and not new_slots:
            return None
        try:
            copy = object.__new__(new_class or cls)
        except TypeError:                            # a class written in C
            return None
        for descriptor, held in {**slots, **new_slots}.items():
            descriptor.__set__(copy, held)
        if state:
            copy.__dict__.update({**state, **new_state})
        return copy

    def _class(self, cls: type, depth: int):
        """A subclass in which attributes and methods are replaced. None also for classes that take note of their subclasses."""
        if type(cls) is not type or any("__init_subclass__" in vars(base) for base in cls.__mro__[:-1]):
            return None
        members = {name: held for base in reversed(cls.__mro__) if not _foreign(base) for name, held in base.__dict__.items()}
        new = self._members(members, depth)
        if not new:
            return None
        try:
            return type(cls.__name__, (cls,), {**new, "__module__": cls.__module__, "__slots__": ()})
        except TypeError:                            # a class that takes no subclasses
            return None

    def _members(self, members: dict, depth: int) -> dict:
        new = {}
        for name, held in members.items():
            if isinstance(held, (staticmethod, classmethod)):
                inner = self.of(held.__func__, depth)
                new[name] = None if inner is None else type(held)(inner)
            elif isinstance(held, property):
                inner = self.of(held.fget, depth)
                new[name] = None if inner is None else property(inner, held.fset, held.fdel)
            elif not isinstance(held, type):
                new[name] = self.of(held, depth)
        return {name: n for name, n in new.items() if n is not None}


def _foreign(value) -> bool:
    home = value.__module__
    return isinstance(home, str) and home.split(".", 1)[0] in _FOREIGN


def _filled(descriptor, value) -> bool:
    try:
        descriptor.__get__(value)
    except AttributeError:
        return False
    return True
