"""Short vectors: what a captured tensor gives when some of its indices are missing, and what is computed from it.

A `View` is lazy: `t[b]` of a 2-d tensor costs nothing until it is indexed again or computed with. Computing with one unrolls it
into at most `LIMIT` scalars (`Lanes`), so that a small dot product or `(topk[b, h, tile] == kv_tile).any()` can be written
as in torch.
"""
from __future__ import annotations

import functools
import math
from typing import Callable, NamedTuple, Sequence

import numpy as np
import torch

from ..ir import DType, Node, cast, const
from ..tensors import TO_TORCH
from .arith import lift
from .recorder import active, refuse
from .tracer import Symbolic, Traced

LIMIT = 512
ELLIPSIS = Ellipsis


class Lanes(Symbolic):
    """A vector (or small array) of traced scalars with a static shape, row-major."""

    __slots__ = ("_shape", "_items", "origin")

    def __init__(self, shape: Sequence[int], items: Sequence[Traced], origin: str | None = None):
        self._shape = torch.Size(shape)
        self._items = list(items)
        self.origin = origin

    @property
    def shape(self) -> torch.Size:
        return self._shape

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def items(self) -> list[Traced]:
        return self._items

    @property
    def dtype(self) -> torch.dtype:
        return self.items[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(self.shape[0]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)})"

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        grid = np.arange(len(self.items)).reshape(self.shape)
        for i in index:
            if isinstance(i, Symbolic):
                raise refuse("a computed vector is indexed with a traced value",
                             "an index into the captured tensor itself, then the computation")
        picked = grid[index]
        flat = [self.items[j] for j in np.ravel(picked)]
        return flat[0] if np.ndim(picked) == 0 else Lanes(picked.shape, flat, self.origin)


class Place:
    """A number of a row, such as t[h][2], that may have been written to in place: `node` is then what it is, and `taken` are the
    traced values that are this number."""

    __slots__ = ("node", "taken")

    def __init__(self):
        self.node: Node | None = None
        self.taken: list[Traced] = []

    def value(self, load: Callable[[], Node], kind: type[Traced] = Traced) -> Traced:
        found = kind(self.node or load())
        self.taken.append(found)
        return found

    def write(self, node: Node) -> None:
        self.node = node
        for taken in self.taken:
            taken.node, taken.number = node, None


class Entry(Traced):
    """A number that was taken out of a row by itself. torch gives a view of the row, so a write to it changes the row."""

    __slots__ = ("place",)


class Row(NamedTuple):
    """The copy that a traced index makes: its numbers, by their places, and the places along the dimensions that plain numbers
    have fixed since."""

    numbers: dict[tuple[int, ...], Place]
    at: dict[int, int]


class View(Lanes):
    """A captured tensor with some indices given. `dims` holds, a tensor dimension, either the index node or a
    range (start, step, size); `order` lists what is left as dimensions of the result: a tensor dimension, or None
    for a unit one. row: that of the last traced index; None for a new one."""

    __slots__ = ("capture", "fixed", "free", "order", "row")

    def __init__(self, capture: int, fixed: dict[int, Node], free: dict[int, tuple[int, int, int]], order: list[int | None],
                 row: Row | None = None):
        self.capture, self.fixed, self.free, self.order, self.row = capture, fixed, free, order, row or Row({}, {})
        self.origin = active().capture_names[capture]
        self._shape = torch.Size([1 if d is None else free[d][2] for d in order])
        self._items = None

    @property
    def dtype(self) -> torch.dtype:
        return TO_TORCH[active().captures[self.capture].dtype]

    @property
    def items(self) -> list[Traced]:
        if self._items is None:
            count = math.prod(self._shape)
            active().shape_read = True
            if count > LIMIT:
                raise missing_index(self)
            self._items = [self._element(i) for i in range(count)]
        return self._items

    def _element(self, flat: int) -> Traced:
        at, where = dict(self.fixed), dict(self.row.at)
        for d in reversed(self.order):
            if d is not None:
                start, step, size = self.free[d]
                where[d] = int(start + step * (flat % size))         # of torch.compile's symbols a number
                at[d] = const(where[d], DType.I64)
                flat //= size
        return self.place(where).value(lambda: active().load(self.capture, in_order(at)))

    def place(self, where: dict[int, int]) -> Place:
        """where: of each dimension that no traced index has fixed."""
        return self.row.numbers.setdefault(in_order(where), Place())

    def __getitem__(self, index):
        return index_view(self, index)


def in_order(at: dict[int, Node | int]) -> tuple:
    return tuple(at[d] for d in sorted(at))


def whole(tensor: torch.Tensor) -> View:
    """A captured tensor with no index given yet."""
    capture = active().capture(tensor)
    return View(capture, {}, {d: (0, 1, n) for d, n in enumerate(tensor.shape)}, list(range(tensor.dim())))


def index_view(view: View, index) -> Traced | View:
    """`view[index]` for integers, traced integers, slices with Python bounds, None and `...`."""
    index = index if isinstance(index, tuple) else (index,)
    consuming = sum(1 for i in index if i is not None and i is not ELLIPSIS)
    if consuming > view.ndim:
        raise refuse(f"`{view.origin}` has {len(view.fixed) + len(view.free)} dimensions and is given more indices than that",
                     f"{view.ndim} of them here")
    fixed, free, order, at = dict(view.fixed), dict(view.free), [], 0
    row = Row(view.row.numbers, dict(view.row.at))
    for i in index:
        if i is None:
            order.append(None)
            continue
        if i is ELLIPSIS:
            skip = view.ndim - consuming
            order.extend(view.order[at:at + skip])
            at += skip
            continue
        d = view.order[at]
        at += 1
        if isinstance(i, slice):
            order.append(_sliced(view, free, d, i))
        elif d is None:
            if isinstance(i, Symbolic) or i not in (0, -1):
                raise refuse("an index into a dimension of size 1 that was added with None", "0")
        else:
            start, step, size = extent = free.pop(d)
            fixed[d] = _index_node(view, extent, d, i)
            i = lift(i)
            if isinstance(i, Traced):
                row = None                             # a traced index copies
            elif row is not None:
                row.at[d] = int(start + step * (i if i >= 0 else i + size))
    order.extend(view.order[at:])
    if order:
        return View(view.capture, fixed, free, order, row)
    load = functools.partial(active().load, view.capture, in_order(fixed))
    if row is None:
        return Traced(load())
    place = view.place(row.at)
    entry = place.value(load, Entry)
    entry.place = place
    return entry


def _sliced(view: View, free: dict, d: int | None, i: slice) -> int | None:
    if any(isinstance(p, (Symbolic, torch.Tensor)) for p in (i.start, i.stop, i.step)):
        raise refuse(f"a slice of `{view.origin}` with a traced bound: its length would depend on the position",
                     "a comparison on the index instead")
    if d is None:
        return None
    start, step, size = free[d]
    chosen = range(size)[i]
    if chosen.step < 0:
        raise refuse(f"a negative slice step of `{view.origin}`", "torch.flip before the call")
    free[d] = (start + step * chosen.start, step * chosen.step, len(chosen))
    return d


def _index_node(view: View, extent: tuple[int, int, int], d: int, i) -> Node:
    start, step, size = extent
    if isinstance(i, bool):
        raise refuse(f"a bool as index of `{view.origin}`", "torch.where(condition, t[1], t[0]), or an integer")
    if isinstance(i, Lanes):
        raise refuse(f"a vector as index of `{view.origin}`", "one number an index")
    i = lift(i)
    if not isinstance(i, Traced):
        if isinstance(i, float):
            raise refuse(f"the float {i} as index of `{view.origin}`", "an integer")
        active().shape_read = True
        if not -size <= i < size:
            raise refuse(f"index {i} is out of range for dimension {d} of `{view.origin}`, which has size {size}",
                         f"an index from {-size} to {size - 1}")
        return active().literal(start + step * (i % size) if (start, step) != (0, 1) else i, DType.I64)
    dtype = i.node.dtype
    if dtype.is_float:
        raise refuse(f"a {i.dtype} index into `{view.origin}`", "an integer index: x.long()")
    if dtype.is_bool or dtype is DType.U8:
        raise refuse(f"a {i.dtype} index into `{view.origin}` (torch takes that as a mask over the tensor)",
                     "x.long() as the index")
    if size != active().tensors[view.capture].shape[d] or step != 1:
        raise refuse(f"a traced index into a slice of `{view.origin}`", "the slice outside the mod, then the index")
    return cast(i.node, DType.I64)


def missing_index(x: Lanes):
    """The refusal of a vector where one number is wanted, naming the capture."""
    shape = tuple(x.shape)
    if isinstance(x, View):
        total = len(x.fixed) + len(x.free)
        return refuse(f"`{x.origin}` has {total} dimensions and {len(x.fixed)} of them are indexed, which leaves a vector of "
                      f"shape {shape} instead of one number: an index is missing",
                      f"{x.origin}[{', '.join(['...'] * total)}] with every index")
    name = f" (from `{x.origin}`, one index is missing)" if x.origin else ""
    return refuse(f"a vector of shape {shape}{name} where one number is wanted", "every index of the captured tensor")


def elementwise(handler: Callable, args: tuple, kwargs: dict):
    """`handler` applied lane by lane, with torch's broadcasting."""
    vectors = [a for a in (*args, *kwargs.values()) if isinstance(a, Lanes)]
    try:
        shape = torch.broadcast_shapes(*(v.shape for v in vectors))
    except RuntimeError:
        raise refuse(f"vectors of shapes {[tuple(v.shape) for v in vectors]} do not broadcast", "one number each") from None
    if math.prod(shape) > LIMIT:
        raise missing_index(next((v for v in vectors if isinstance(v, View)), vectors[0]))
    spread = {id(v): _spread(v, shape) for v in vectors}
    count = math.prod(shape)
    items = [handler(*(spread[id(a)][i] if isinstance(a, Lanes) else a for a in args),
                     **{k: spread[id(a)][i] if isinstance(a, Lanes) else a for k, a in kwargs.items()}) for i in range(count)]
    return Lanes(shape, items, next((v.origin for v in vectors if v.origin), None))


def _spread(v: Lanes, shape) -> list[Traced]:
    items = v.items
    grid = np.broadcast_to(np.arange(len(items)).reshape(v.shape), shape)
    return [items[i] for i in grid.ravel()]
