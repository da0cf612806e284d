"""Which captured tensor was written between a call and its backward pass: torch notices, and names a shape alone."""
from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from typing import Iterator, NamedTuple, Sequence

from torch import Tensor

from flexfa4.errors import ChangedCaptureError
from flexfa4.ir.bound import BoundGraph, Origin

_call = threading.local()


class Seen(NamedTuple):
    """Captured tensors as a call had them. origins: of its mods, each with how many captures it has; states: of each capture a
    weak reference and the version."""

    origins: tuple[tuple[Origin, int], ...]
    states: tuple[tuple[weakref.ref, int], ...]


def origins_of(bounds: Sequence[BoundGraph | None]) -> tuple[tuple[Origin, int], ...]:
    """What `see` takes of mods."""
    return tuple([(b.origin, len(b.tensors)) for b in bounds if b is not None])


@contextmanager
def calling(bounds: Sequence[BoundGraph | None]) -> Iterator[None]:
    """Around a call of the registered op, which is not told whose captures it gets: `origins_now` says it there."""
    _call.origins = origins_of(bounds)
    try:
        yield
    finally:
        _call.origins = None


def origins_now() -> tuple[tuple[Origin, int], ...] | None:
    """Of the mods of the call that this thread is in; None in a compiled graph."""
    return getattr(_call, "origins", None)


def kept(captures: Sequence[Tensor]) -> list[Tensor]:
    """The captures of a call as its backward pass can have them: autograd keeps no tensor that torch.inference_mode made."""
    return [t.clone() if t.is_inference() else t for t in captures]


def see(origins: tuple[tuple[Origin, int], ...] | None, captures: Sequence[Tensor]) -> Seen | None:
    """The captures of a call as they are now, for `saved`; None where nobody says whose they are."""
    return Seen(origins, tuple([(weakref.ref(t), t._version) for t in captures])) if origins else None


def saved(ctx, seen: Seen | None) -> tuple[Tensor, ...]:
    """`ctx.saved_tensors`. Raises ChangedCaptureError where torch refuses them since a capture was written."""
    try:
        return ctx.saved_tensors
    except RuntimeError as error:
        if seen is None or "modified by an inplace operation" not in str(error):
            raise
        names = [(origin, i) for origin, count in seen.origins for i in range(count)]
        for (origin, i), (ref, version) in zip(names, seen.states):
            tensor = ref()
            if tensor is not None and tensor._version != version:
                name = origin.capture_names[i] if i < len(origin.capture_names) else f"capture {i}"
                raise ChangedCaptureError(
                    f"{origin.where()}: {origin.name} captures {name}, which has been modified by an inplace operation after the "
                    f"call and before its backward pass (version {version} then, {tensor._version} now): write it after "
                    f"backward(), or let the mod capture {name}.clone()") from error
        raise
