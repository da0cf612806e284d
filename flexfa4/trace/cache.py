"""`bind`: trace a mod once, and skip the trace while nothing it depends on has changed.

Entries are kept by code object, a few for each, and hold tensors weakly; so closures made anew around the same tensors hit, and
nothing of the user's is kept alive. Thread-safe: an entry is immutable once published, lists are replaced and not edited.
"""
from __future__ import annotations

import threading
import types
import weakref
from dataclasses import dataclass, field

import torch

from ..ir import DType
from ..ir.bound import BoundGraph, Origin
from ..ir.graph import Graph
from .guards import Guard, Walk
from .trace import record

ENTRIES_PER_CODE = 16

_entries: dict[tuple, tuple["Entry", ...]] = {}
_owners: dict[int, weakref.ref] = {}
_lock = threading.RLock()        # re-entered where collecting garbage inside it ends a code object's life


@dataclass(eq=False)
class Entry:
    guards: tuple[Guard, ...]
    graph: Graph
    literals: tuple
    origin: Origin
    tensors: tuple[weakref.ref, ...]
    float_type: torch.dtype
    last: list = field(default_factory=lambda: [lambda: None])     # weak reference to the BoundGraph last handed out

    def matches(self, fn) -> bool:
        registers = [fn]
        try:
            for guard in self.guards:
                if not guard(registers):
                    return False
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError):
            return False
        return torch.get_default_dtype() is self.float_type

    def bound(self) -> BoundGraph | None:
        found = self.last[0]()
        if found is None:
            tensors = tuple(ref() for ref in self.tensors)
            if any(t is None for t in tensors):
                return None
            found = BoundGraph(self.graph, tensors, self.literals, self.origin)
            self.last[0] = weakref.ref(found)
        return found


def bind(fn, kind: str, score_dtype: DType = DType.F32) -> BoundGraph:
    """`trace(fn, kind, score_dtype)`, skipped while the mod is unchanged (code, closures, defaults, globals, attributes, and the
    captured tensors' identities; their contents are read at run time). The same BoundGraph object is handed out while anyone
    holds it. Raises TraceError as `trace` does.

    A mod that computes tensors inside itself, or holds state that cannot be checked (numpy arrays, objects with `__getattr__`),
    is traced on every call. Writes through `.data` to a tensor whose value was folded by `int(t)` or `.item()` are not seen.
    """
    code = _code_of(fn)
    key = (id(code), kind, score_dtype)
    for entry in _entries.get(key, ()):
        if entry.matches(fn):
            found = entry.bound()
            if found is not None:
                return found
    return _bind_anew(fn, kind, score_dtype, code, key)


def _bind_anew(fn, kind: str, score_dtype: DType, code, key: tuple) -> BoundGraph:
    walk = Walk(fn) if code is not None else None      # before the trace: a mod that changes its own state must not pass later
    bound, recorder = record(fn, kind, score_dtype)
    if walk is None or walk.unversioned or recorder.used_derived or recorder.loose:
        return bound
    refs = [walk.tensors.get(id(t)) for t in bound.tensors]
    if any(ref is None for ref in refs):
        return bound
    guards = [*walk.guards, *(walk.shaped if recorder.shape_read else ()), *(walk.strict if recorder.folded else ())]
    entry = Entry(tuple(guards), bound.graph, bound.literals, bound.origin, tuple(refs), torch.get_default_dtype())
    entry.last[0] = weakref.ref(bound)
    with _lock:
        owner = _owners.get(key[0])
        if owner is None or owner() is not code:
            _owners[key[0]] = weakref.ref(code, _forgetter(key[0]))
        _entries[key] = (entry, *_entries.get(key, ())[:ENTRIES_PER_CODE - 1])
    return bound


def _forgetter(code_id: int, entries=_entries, owners=_owners, lock=_lock):
    """The callback for the death of a code object; it needs no module globals, which are gone when the interpreter shuts down."""
    def forget(_) -> None:
        with lock:
            owners.pop(code_id, None)
            for key in [k for k in list(entries) if k[0] == code_id]:
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
