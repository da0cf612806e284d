"""Equality of two look-ups into the same labels (document numbers): decided on labels renamed in order of first appearance.

`==` does not care what labels are called. Renamed by first appearance, labels that arrive in any order become rising
ones, so a tile holds an interval of them; where a label comes back later, a 64-bit signature of each range of runs
tells most such tiles apart too.
"""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flexfa4.ir import DType, Node, Op
from flexfa4.threads import cached_property

from .indices import spreads, wrapped
from .interval_values import Interval, Space, boolean, either, negate
from .tables import Runs, SparseTable, flat_row, runs_of


class LabelPair(NamedTuple):
    """An equality test between element `a` and element `b` of tables of labels, the same row of each.

    loads: the two LOAD nodes. captures: their tables (one where both read the same). dim: the label axis of both.
    """

    loads: tuple[Node, Node]
    captures: tuple[int, ...]
    dim: int


def label_pair(n: Node) -> LabelPair | None:
    """The pair that an EQ or NE compares; None where it is not two look-ups of labels that differ in one index alone."""
    loads = tuple(_label(a) for a in n.args)
    if None in loads:
        return None
    a, b = loads
    if a is b or len(a.args) != len(b.args) or not a.args or a.dtype is not b.dtype:
        return None
    spread = [[d for d, i in enumerate(x.args) if spreads(i)] for x in (a, b)]
    if spread[0] != spread[1] or len(spread[0]) != 1:
        return None
    dim = spread[0][0]
    if any(i is not j for d, (i, j) in enumerate(zip(a.args, b.args)) if d != dim):
        return None
    return LabelPair((a, b), (a.attr,) if a.attr == b.attr else (a.attr, b.attr), dim)


def _label(n: Node) -> Node | None:
    """The look-up under casts that keep different labels different."""
    while n.op is Op.CAST and n.dtype in (DType.I32, DType.I64) and n.args[0].dtype in (DType.U8, DType.I8, DType.I16, DType.I32):
        n = n.args[0]
    return n if n.op is Op.LOAD and (n.dtype.is_int or n.dtype.is_bool) else None


class LabelTable:
    """Runs of labels with their new names, and which range of names a range of positions holds."""

    def __init__(self, pair: LabelPair, runs: Runs, dims: tuple[int, ...], sizes: tuple[int, ...], space: Space):
        self.pair, self.runs, self.dims, self.sizes = pair, runs, dims, sizes
        self.space = space
        # Of labels in one row of which none comes back, each run is a label of its own, and its number is its name.
        self.numbered = runs.length == runs.size and _distinct(runs.values)
        # Runs are maximal: where a label of a row comes twice, it comes back after another one, and names fall.
        self.rising = self.numbered or (runs.length != runs.size and self._rise())

    @cached_property
    def low(self) -> SparseTable:
        return SparseTable(self.names, np.minimum)

    @cached_property
    def high(self) -> SparseTable:
        return SparseTable(self.names, np.maximum)

    @cached_property
    def marks(self) -> SparseTable:
        return SparseTable(np.uint64(1) << (self.names & 63).astype(np.uint64), np.bitwise_or)

    @cached_property
    def names(self) -> np.ndarray:
        """int32 [n]: the labels of runs as numbers in the order of first appearance."""
        runs = self.runs
        if self.numbered:
            return np.arange(runs.starts.size, dtype=np.int32)
        return _by_first_appearance(runs.values, runs.starts // runs.length)

    def _rise(self) -> bool:
        """Whether names rise along each row."""
        row = self.runs.starts // self.runs.length
        return bool(((self.names[1:] >= self.names[:-1]) | (row[1:] != row[:-1])).all())

    @classmethod
    def make(cls, pair: LabelPair, arrays: list[np.ndarray], space: Space) -> "LabelTable | None":
        if len(arrays) == arrays[0].ndim == 1:
            array = arrays[0]
            runs = runs_of(array[None]) if array.size else None
            return None if runs is None else cls(pair, runs, array.shape, array.shape, space)
        rows = [np.moveaxis(a, pair.dim, -1) for a in arrays]
        if not all(a.size for a in arrays) or len({r.shape[:-1] for r in rows}) != 1:
            return None
        joined = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=-1)
        runs = runs_of(joined.reshape(-1, joined.shape[-1]))
        if runs is None:
            return None
        return cls(pair, runs, arrays[0].shape, tuple(r.shape[-1] for r in rows), space)

    def compare(self, n: Node, known: dict[Node, Interval]) -> Interval:
        """Bounds of the EQ or NE node, from those of the indices of its two look-ups."""
        poison, found = False, []
        for side, load in enumerate(self.pair.loads):
            table = side if len(self.sizes) == 2 else 0
            names, bad = self._range(load, table, known)
            poison = either(poison, bad)
            found.append(names)
        (a_lo, a_hi, a_marks), (b_lo, b_hi, b_marks) = found
        must, may = (a_lo == b_hi) & (a_hi == b_lo), (a_lo <= b_hi) & (b_lo <= a_hi)
        if a_marks is not None:
            may = may & ((a_marks & b_marks) != 0)
        return boolean(must, may, poison) if n.op is Op.EQ else boolean(negate(may), negate(must), poison)

    def along(self, load: Node, known: dict[Node, Interval]) -> tuple[np.ndarray, np.ndarray] | None:
        """(least, greatest) name of what one of the two look-ups reads over few intervals, where names rise; None where they do
        not, or where it may read out of range."""
        places, poison = self._places(load, self.pair.loads.index(load) if len(self.sizes) == 2 else 0, known)
        if not self.rising or np.any(poison):
            return None
        lo, hi = places
        first = self.names[self.runs.at(lo)]
        return first, first if hi is lo else self.names[self.runs.at(hi)]

    def _range(self, load: Node, table: int, known: dict[Node, Interval]) -> tuple:
        """((least name, greatest name, signature), may be out of range) of what a look-up reads."""
        (lo, hi), poison = self._places(load, table, known)
        first, last = self.runs.of[lo], self.runs.of[hi]
        if self.rising:
            return (self.names[first], self.names[last], None), poison
        first, last = np.broadcast_arrays(first, last)
        return (self.low.query(first, last), self.high.query(first, last), self.marks.query(first, last)), poison

    def _places(self, load: Node, table: int, known: dict[Node, Interval]) -> tuple:
        """((least, greatest) flat position, may be out of range) of what a look-up reads."""
        poison, places = False, []
        for dim, (index, size) in enumerate(zip(load.args, self.dims)):
            size = self.sizes[table] if dim == self.pair.dim else size
            lo, hi, bad = wrapped(self.space, known[index], size)
            poison = either(either(poison, known[index].poison), bad)
            places.append((lo, hi))
        lo, hi = places[self.pair.dim]
        shift = self.sizes[0] if table else 0
        if len(self.dims) > 1:
            shift = shift + flat_row(places, self.dims, self.pair.dim) * self.runs.length
        if not isinstance(shift, int) or shift:
            lo, hi = lo + shift, hi + shift
        return (lo, hi), poison


def _distinct(values: np.ndarray) -> bool:
    """Whether no value comes twice."""
    if not (values[1:] <= values[:-1]).nonzero()[0].size:
        return True
    ordered = np.sort(values)
    return not (ordered[1:] == ordered[:-1]).nonzero()[0].size


def _by_first_appearance(values: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Numbers 0, 1, ... for the distinct (row, value) pairs in the order in which they first appear."""
    _, code = np.unique(values, return_inverse=True)
    key = row * (int(code.max()) + 1) + code
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int32)          # of half the size, names of many tiles are compared in half the time
    rank[np.argsort(first, kind="stable")] = np.arange(first.size)
    return rank[inverse]
