"""Finds the GPU kernel of a call, in memory, on the disk or by compiling it, and launches it."""
from __future__ import annotations

import contextlib
import gc
import importlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Callable, Iterator, NamedTuple, Sequence

import torch
from torch import Tensor

from flexfa4.ir.bound import BoundGraph
from flexfa4.plan import STATISTICS, TMA_BYTES, Plan, Signature
from flexfa4.threads import make_lock

from . import capture, native, store
from .lists import NO_MASK, Lists, heads_of, workers_of

_found: dict[Signature | tuple, Callable] = {}
_counts = {"compiled": 0, "loaded": 0}
_lock = make_lock()


_entries: dict[Signature | tuple, str] = {}


def _entry(kind: str, text: Callable[[], str], signature: Signature) -> str:
    return store.key_of(f"{kind} {signature.plan.arch} {text()}")


class Wanted(NamedTuple):
    """A kernel by what it is compiled for. name: its own in this process; kind: which function of the compiler makes it; text:
    what its entry on the disk is named by."""

    name: Signature | tuple
    kind: str
    text: Callable[[], str]
    signature: Signature

    @property
    def entry(self) -> str:
        """The key of its entry on the disk."""
        found = _entries.get(self.name)
        if found is None:
            found = _entries[self.name] = _entry(self.kind, self.text, self.signature)
        return found


def forward_of(signature: Signature) -> Wanted:
    return Wanted(signature, "forward", signature.compile_key, signature)


def combine_of(signature: Signature) -> Wanted:
    """The kernel that combines the parts of split rows. It depends on the plan's tiles, type, packing and out graph."""
    plan = replace(signature.plan, score="", mask="", split=False)
    key = plan.arch, plan.dtype, plan.tiles.rows, plan.tiles.head_dim_v, plan.pack, plan.out
    key += (plan.precise, plan.assume) if plan.out else ()
    return Wanted(("combine", *key), "combine", lambda: repr(key), Signature(plan))


def compiled(signature: Signature) -> Callable:
    """The host function of a forward kernel. Compiles without a GPU; one that was compiled before is found by its signature."""
    return _find(forward_of(signature))


def compiled_combine(signature: Signature) -> Callable:
    """The host function of `combine_of` a signature."""
    return _find(combine_of(signature))


def _find(wanted: Wanted) -> Callable:
    found = _found.get(wanted.name)
    if found is None:
        with _lock:
            found = _found.get(wanted.name)
            if found is None:
                found = _found[wanted.name] = _make(*wanted[1:])
    return found


def is_near(wanted: Wanted) -> bool:
    """Whether a kernel is in memory or on the disk."""
    return wanted.name in _found or store.usable() and store.path_of(wanted.entry).exists()


def _make(kind: str, text: Callable[[], str], signature: Signature) -> Callable:
    """kind: which function of the compiler makes it."""
    kept = store.usable()
    key = _entry(kind, text, signature) if kept else ""
    found = store.load(key) if kept else None
    if found is not None:
        _counts["loaded"] += 1
        return found
    with _no_collections():
        compiler = importlib.import_module("flexfa4.runtime.compiler")
        make = getattr(compiler, kind)
        _counts["compiled"] += 1
        if kept and store.linker() is not None:
            exported = make(signature, runs_here=False)
            found = store.save(key, lambda path: compiler.export(exported, path))
        return make(signature, runs_here=True) if found is None else found


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Python's collector goes through all that torch has imported each time, 0.2 s, and the compiler's many objects call it two
    or three times; it comes after them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def compile_count() -> int:
    """How many kernels this process has compiled itself, and calls have waited for."""
    return _counts["compiled"]


def load_count() -> int:
    """How many kernels this process has found on the disk."""
    return _counts["loaded"]


@dataclass(frozen=True)
class Crew:
    """Who does the work of a launch. workers: CTAs, or pairs of them where the plan has such; counter: int32 [1], zero, from
    which they draw it, or None: worker i takes every workers-th item. argument: turns a tensor into what the compiled function
    takes (an emulated device wraps them), None where it takes tensors."""

    workers: int
    counter: Tensor | None = None
    argument: Callable | None = None


def crew_of(plan: Plan, device: torch.device, items: int) -> Crew:
    """As many CTAs (pairs) as run at once, drawing from the counter of the current stream; a CTA a work item where the plan
    leaves it to the hardware who takes them."""
    workers, counted = workers_for(plan, device, items)
    return Crew(workers, counter_of(device) if counted else None)


def workers_for(plan: Plan, device: torch.device, items: int) -> tuple[int, bool]:
    """(CTAs or pairs of a launch, whether they draw their work from a counter)."""
    return (min(items, workers_of(device) // plan.ctas), True) if is_counted(plan) else (items, False)


def is_counted(plan: Plan) -> bool:
    """Whether CTAs draw their work from a counter."""
    return not _by_hardware(plan)


def _by_hardware(plan: Plan) -> bool:
    return plan.arch == "sm100" and plan.tiles.scheduler == "clc"


_counters: dict[tuple, Tensor] = {}


def stream_of(device: torch.device) -> int | None:
    """The current stream, None while it is captured."""
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    # CUDA captures no default stream, and is not asked about it: 0.3 us.
    return stream if stream == 0 or not torch._C._cuda_isCurrentStreamCapturing() else None


def counter_of(device: torch.device) -> Tensor:
    """Every launch leaves the counter at zero, so launches of one stream share it. A captured graph may run on any stream, at
    the same time as others, and gets one of its own, which each replay sets to zero."""
    stream = stream_of(device)
    if stream is None:
        return torch.zeros(1, dtype=torch.int32, device=device)
    found = _counters.get((device, stream))
    if found is None:
        found = _counters[device, stream] = torch.zeros(1, dtype=torch.int32, device=device)
    return found


def work_items(plan: Plan, query: Tensor, key: Tensor, lists: Lists) -> int:
    if lists.work is not None:
        return lists.work.shape[0]
    batch, heads, _ = heads_of(plan, query, key)
    return -(-query.shape[2] // plan.q_tile) * batch * heads


class Prepared(NamedTuple):
    """A kernel and those of its arguments that stay from call to call. combine: None where no rows are split. of_out: how many of
    the captures and slots, the last ones, are those of the out graph. room: for how many parts of rows a launch has memory.
    counted: CTAs draw their work from a counter."""

    plan: Plan
    function: Callable
    combine: Callable | None
    of_out: tuple[int, int]
    lists: Lists
    workers: int
    counted: bool

    @property
    def room(self) -> int:
        """A kernel that splits rows is given memory where none of this call are split too."""
        return max(self.lists.parts, int(self.plan.split))


# By the identity of the plan, which `engine.choose` keeps: hashing a plan takes longer than the rest of the look-up.
_functions: dict[tuple, tuple[Plan, Callable, Callable | None, tuple[int, int]]] = {}


def _launch_key(plan: Plan, lists: Lists, counted: bool, contiguous: tuple[bool, ...]) -> tuple:
    return (id(plan), lists.row_ptr is None, lists.work is None, lists.tiles is not None, lists.parts > 0, counted, contiguous,
            lists.halved)


def is_prepared(plan: Plan, lists: Lists, counted: bool, contiguous: tuple[bool, ...]) -> bool:
    """Whether `prepare` knows the kernel of such a launch."""
    return _launch_key(plan, lists, counted, contiguous) in _functions


def scheduled(plan: Plan, counted: bool) -> Plan:
    """The plan of a kernel whose CTAs draw their work from a counter, or take every so many."""
    if plan.arch != "sm100" or _by_hardware(plan):
        return plan
    return replace(plan, tiles=_tiles_drawing(plan.tiles, "counter" if counted else "static"))


@lru_cache(maxsize=64)
def _tiles_drawing(tiles, scheduler: str):
    return replace(tiles, scheduler=scheduler)


def signature_of(plan: Plan, lists: Lists, counted: bool, contiguous: tuple[bool, ...]) -> Signature:
    """Which kernel a launch takes. contiguous: which captures have stride 1 in their last dimension."""
    split = plan.split or lists.parts > 0
    whole = scheduled(plan if plan.split == split else replace(plan, split=split), counted)
    return Signature(whole, lists.row_ptr is not None, lists.work is not None, counted, contiguous, lists.tiles is not None,
                     lists.halved)


def prepare(plan: Plan, lists: Lists, workers: int, counted: bool, contiguous: tuple[bool, ...]) -> Prepared:
    """Compiles where the kernel is nowhere. The rest: as `signature_of` takes them."""
    key = _launch_key(plan, lists, counted, contiguous)
    found = _functions.get(key)
    if found is None:
        signature = signature_of(plan, lists, counted, contiguous)
        graph, combine = signature.graphs[2], compiled_combine(signature) if lists.parts else None
        of_out = (0, 0) if graph is None else (len(graph.captures), len(graph.slots))
        found = _functions[key] = plan, compiled(signature), combine, of_out
    return Prepared(*found, lists, workers, counted)


def span_arguments(lists: Lists) -> tuple | None:
    return None if lists.row_ptr is None else (lists.row_ptr, lists.runs, lists.batch_stride, lists.head_stride, lists.tiles)


def launch(prepared: Prepared, tensors: tuple, scale: float, values: tuple, counter: Tensor | None,
           argument: Callable | None = None) -> None:
    """tensors: q, k, v as TMA takes them, and the out and lse to write. values: (captures, slots), a tuple or None each.
    argument: see `Crew`."""
    lists = prepared.lists
    query, key, _, out, lse = tensors
    if capture.active(query.device):
        capture.keep(lists)
    parts = None
    if prepared.room:
        shape = prepared.room, prepared.plan.tiles.rows
        parts = tuple(out.new_empty((*shape, n), dtype=torch.float32) for n in (out.shape[3], STATISTICS))
    given = tensors, scale, (span_arguments(lists), lists.work, parts, counter), prepared.workers, *values
    prepared.function(*(given if argument is None else _wrapped(given, argument)))
    if prepared.combine is not None:
        packed = heads_in_a_tile(prepared.plan, query, key)
        given = parts, lists.combine_rows, lists.combine_ptr, out, lse, packed, *values_of_out(prepared, values)
        prepared.combine(*(given if argument is None else _wrapped(given, argument)))


def heads_in_a_tile(plan: Plan, query: Tensor, key: Tensor) -> int:
    return query.shape[1] // heads_of(plan, query, key)[1]


def values_of_out(prepared: Prepared, values: tuple) -> tuple:
    """Those of the output graph; values: as `launch` takes them."""
    return tuple([given[-n:] if n else None for given, n in zip(values, prepared.of_out)])


def _wrapped(given, argument: Callable):
    if isinstance(given, tuple):
        return tuple([_wrapped(x, argument) for x in given])
    return argument(given) if isinstance(given, Tensor) else given


def forward(plan: Plan, tensors: Sequence[Tensor], scale: float, bounds: Sequence[BoundGraph | None], lists: Lists = NO_MASK,
            crew: Crew | None = None, settle: Callable | None = None) -> tuple[Tensor, Tensor]:
    """(out, lse) of q, k, v by the kernel of `plan`, on the current stream. bounds: score, mask and out, those that the plan
    has. crew: default `crew_of` the query's device. settle: takes the plan, the lists, and `signature_of`'s other arguments;
    gives (plan, lists) of a kernel that is there, first, where that of the plan is not."""
    query, key, value = tensors
    query, key, value = aligned(query), aligned(key), aligned(value)
    captures, slots = _values(bounds, query.device)
    contiguous = tuple([t.stride(-1) == 1 for t in captures])
    out = new_out(query, (*query.shape[:3], value.shape[3]))
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    with capture.relaxed(query.device):
        if settle is not None:
            plan, lists = settle(plan, lists, crew.counter is not None if crew else is_counted(plan), contiguous)[:2]
        crew = crew or crew_of(plan, query.device, work_items(plan, query, key, lists))
        prepared = prepare(plan, lists, crew.workers, crew.counter is not None, contiguous)
        launch(prepared, (query, key, value, out, lse), scale, (captures or None, slots or None), crew.counter, crew.argument)
    return out, lse


def new_out(query: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """Room for an output like query, whose rows are padded to what TMA can write."""
    padded = padded_columns(shape[3], query.element_size())
    out = query.new_empty((*shape[:3], padded))
    return out if padded == shape[3] else out[..., :shape[3]]


def out_strides(shape: tuple[int, int, int, int], element_bytes: int) -> tuple[int, ...]:
    """Those of `new_out`."""
    padded = padded_columns(shape[3], element_bytes)
    return native.contiguous((*shape[:3], padded))


def padded_columns(columns: int, element_bytes: int) -> int:
    step = TMA_BYTES // element_bytes
    return -(-columns // step) * step


def aligned(t: Tensor) -> Tensor:
    """`t` [B, H, S, D] itself where TMA can read it: last stride 1, a base and other strides of whole 16 bytes; else a copy."""
    t = t.resolve_neg()
    step = TMA_BYTES // t.element_size()
    batch, head, row, column = t.stride()
    t = t.detach() if t.requires_grad else t
    if column == 1 and t.data_ptr() % TMA_BYTES == 0:
        # step is a power of two: it divides all of them where it divides their union of bits.
        if (batch | head | row) % step == 0:
            return t
        if all(stride % step == 0 for stride, size in zip((batch, head, row), t.shape) if size > 1):
            # A dimension of extent 1 may have any stride: give it one that TMA takes.
            return t.as_strided(t.shape, tuple(s if s % step == 0 else step for s in (batch, head, row)) + (1,))
    columns = t.shape[3]
    room = torch.empty((*t.shape[:3], padded_columns(columns, t.element_size())), dtype=t.dtype, device=t.device)[..., :columns]
    return room.copy_(t)


def _values(bounds: Sequence[BoundGraph | None], device: torch.device) -> tuple[tuple, tuple]:
    """Captures and literals of score, mask, out as kernel arguments."""
    captures, slots = [], []
    for bound in bounds:
        if bound is None:
            continue
        for t in bound.tensors:
            # Of a conjugate's imaginary part the memory holds the negative.
            t = (t.detach() if t.requires_grad else t).resolve_neg()
            if t.device != device:
                with capture.beside(device):
                    t = t.to(device)
                if capture.active(device):
                    capture.keep(t)
            captures.append(as_argument(t))
        slots.extend(slots_of(bound))
    return tuple(captures), tuple(slots)


def as_argument(capture: Tensor) -> Tensor:
    """A captured tensor as the kernel takes it: bools as bytes, a 0-d tensor as one element."""
    if capture.dtype is torch.bool:
        capture = capture.view(torch.uint8)
    return capture.reshape(1) if capture.dim() == 0 else capture


def slots_of(bound: BoundGraph) -> list[int | float]:
    """The literals of a graph as the kernel takes them."""
    return [int(x) if isinstance(x, bool) else x for x in bound.literals]
