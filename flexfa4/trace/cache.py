"""`bind`: trace a mod once, and skip the trace while nothing it depends on has changed.

Entries are kept by code object, a few for each, and hold tensors weakly; so closures made anew hit, around other tensors of the
same kind too, and nothing of the user's is kept alive. Thread-safe: what is published is replaced and not edited.
"""
from __future__ import annotations

import types
import weakref
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

import torch

from flexfa4.threads import make_rlock

from ..ir import DType
from ..ir.bound import BoundGraph, Origin
from ..ir.graph import Graph
from .checks import referents
from .guards import TensorPlace, Walk
from .trace import record

_F32 = DType.F32                    # an enumeration's members are slow to look up
ENTRIES_PER_CODE = 16
BINDINGS_PER_ENTRY = 16

_entries: dict[tuple, tuple["Entry", ...]] = {}
_owners: dict[int, tuple[weakref.ref, set[tuple]]] = {}         # by id of a code object, that and the keys of its entries
_lock = make_rlock()        # re-entered where collecting garbage inside it ends a code object's life


@dataclass(eq=False)
class Binding:
    """The tensors that one trace is taken to, held weakly, and the BoundGraph last handed out for them."""

    refs: tuple[weakref.ref, ...]
    last: Callable = lambda: None


@dataclass(eq=False)
class Entry:
    """One trace. Its graph holds for every callable of the same code for which `check` gives tensors and not None, with other
    tensors too where none of their values went into the graph (`movable`). used: the numbers of those that the graph captures."""

    check: Callable[[Callable], tuple[torch.Tensor, ...] | None]
    places: tuple[TensorPlace, ...]
    used: tuple[int, ...]
    movable: bool
    graph: Graph
    literals: tuple
    origin: Origin
    bindings: tuple[Binding, ...]

    def __post_init__(self):
        count = len(self.bindings[0].refs)
        self.all_used = self.used == tuple(range(count))
        self.are = referents(count)

    def _binding(self, tensors: tuple) -> Binding | None:
        """The binding of this trace to tensors that `check` gave, None where there can be none."""
        for binding in self.bindings:
            if self.are(binding.refs, tensors):
                return binding
        return self._bind_to(tensors)

    def _bind_to(self, tensors: tuple) -> Binding | None:
        """To tensors that the trace was not bound to before."""
        # Two captures that were two tensors might be one now, which would be one capture.
        if not self.movable or len(set(map(id, tensors))) != len(tensors):
            return None
        if not all(place.takes(tensors[place.number]) for place in self.places):
            return None
        binding = Binding(tuple(map(weakref.ref, tensors)))
        with _lock:
            self.bindings = (binding, *self.bindings[:BINDINGS_PER_ENTRY - 1])
        return binding

    def captures_of(self, fn) -> tuple[torch.Tensor, ...] | None:
        """The tensors of `bound(fn)`, or None."""
        tensors = self.check(fn)
        if not tensors:
            return tensors
        if not self.are(self.bindings[0].refs, tensors) and self._binding(tensors) is None:
            return None
        return tensors if self.all_used else tuple([tensors[i] for i in self.used])

    def bound(self, fn) -> BoundGraph | None:
        """This trace as one of `fn`; None where it is not."""
        tensors = self.check(fn)
        binding = None if tensors is None else self._binding(tensors)
        if binding is None:
            return None
        bound = binding.last()
        if bound is None:
            bound = BoundGraph(self.graph, tuple([tensors[i] for i in self.used]), self.literals, self.origin)
            binding.last = weakref.ref(bound)
        return bound


Parts = Tuple[Graph, tuple, Tuple[torch.Tensor, ...], Optional[Entry]]


def parts_of(fn, kind: str, made: dict[str, BoundGraph]) -> Parts:
    """(graph, literals, tensors, entry) of `bind(fn, kind)`, in half its time where that was made before and nobody holds it.
    entry: whose `captures_of` says quicker whether the same holds in a later call, None where the mod had to be bound: made[kind]
    is that."""
    code = fn.__code__ if type(fn) is types.FunctionType else _code_of(fn)
    for entry in _entries.get((id(code), kind, _F32), ()):
        captures = entry.captures_of(fn)
        if captures is not None:
            return entry.graph, entry.literals, captures, entry
    bound = made[kind] = bind(fn, kind)
    return *bound.parts, None


def bind(fn, kind: str, score_dtype: DType = _F32) -> BoundGraph:
    """`trace(fn, kind, score_dtype)`, skipped while the mod is unchanged (code, closures, defaults, globals, attributes; class,
    type, shape and device of the captured tensors; their contents are read at run time). For the same tensors the same BoundGraph
    object is handed out while anyone holds it. Raises TraceError as `trace` does.

    A mod that computes tensors inside itself, or holds state that cannot be checked (numpy arrays, objects with `__getattr__`),
    is traced on every call. Writes through `.data` to a tensor whose value was folded by `int(t)` or `.item()` are not seen.
    """
    return traced(fn, kind, score_dtype)[0]


def traced(fn, kind: str, score_dtype: DType = _F32) -> tuple[BoundGraph, Entry | None]:
    """`bind`, and the trace that is kept of it, None where there is none: its `captures_of(fn)` says soonest what holds later."""
    code = fn.__code__ if type(fn) is types.FunctionType else _code_of(fn)
    key = (id(code), kind, score_dtype)
    for entry in _entries.get(key, ()):
        found = entry.bound(fn)
        if found is not None:
            return found, entry
    return _bind_anew(fn, kind, score_dtype, code, key)


def _bind_anew(fn, kind: str, score_dtype: DType, code, key: tuple) -> tuple[BoundGraph, Entry | None]:
    walk = Walk(fn) if code is not None else None      # before the trace: a mod that changes its own state must not pass later
    bound, recorder = record(fn, kind, score_dtype)
    if walk is None or walk.unversioned or recorder.used_derived or recorder.loose:
        return bound, None
    numbers = {key: i for i, key in enumerate(walk.tensors)}
    used = tuple(numbers.get(id(t)) for t in bound.tensors)
    if None in used:
        return bound, None
    walk.guards.demand(0, "{now}() is {dtype}", now=torch.get_default_dtype, dtype=torch.get_default_dtype())
    more = [*([walk.shaped()] if recorder.shape_read else ()), *([walk.strict()] if recorder.folded else ())]
    check = walk.guards.check(walk.first_places, *more)
    first = Binding(tuple(walk.tensors.values()), weakref.ref(bound))
    entry = Entry(check, tuple(walk.places), used, not recorder.folded, bound.graph, bound.literals, bound.origin,
                  (first,))
    with _lock:
        owner, keys = _owners.get(key[0], (None, set()))
        if owner is None or owner() is not code:
            _owners[key[0]] = weakref.ref(code, _forgetter(key[0])), keys
        keys.add(key)
        _entries[key] = (entry, *_entries.get(key, ())[:ENTRIES_PER_CODE - 1])
    return bound, entry


def _forgetter(code_id: int, entries=_entries, owners=_owners, lock=_lock):
    """The callback for the death of a code object; it needs no module globals, which are gone when the interpreter shuts down."""
    def forget(_) -> None:
        with lock:
            _, keys = owners.pop(code_id, (None, ()))
            for key in keys:
                entries.pop(key, None)
    return forget


def _code_of(fn) -> types.CodeType | None:
    """The code object that entries of a callable are filed under; any callable that shares it is told apart by the guards."""
    code = getattr(fn, "__code__", None)
    if code is not None:
        return code
    for _ in range(8):
        if hasattr(fn, "func") and hasattr(fn, "keywords"):
            fn = fn.func
        elif isinstance(fn, types.MethodType):
            fn = fn.__func__
        elif isinstance(fn, torch.nn.Module):
            fn = type(fn).forward
        elif not isinstance(fn, types.FunctionType) and hasattr(type(fn), "__call__"):
            fn = type(fn).__call__
        else:
            break
    code = getattr(fn, "__code__", None)
    return code if isinstance(code, types.CodeType) else None
