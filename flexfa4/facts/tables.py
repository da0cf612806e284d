"""Range-minimum and -maximum tables over numpy arrays.

RunTable: rows that are constant over long runs (document numbers): one entry a run. BlockTable: any row, a sparse
table over blocks (Bender and Farach-Colton 2000, "The LCA problem revisited", section 3). GridTable: several spread
axes at once, a pyramid of blocks, rounded outwards. `bounds(places)` takes (lo, hi) index arrays for each dimension,
all in range, and returns (lo, hi) arrays.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flexfa4.threads import cached_property

from .interval_values import Space

# Elements of a block of BlockTable.
_BLOCK = 64
_BLOCK_LEVEL = 6
# Elements compared at once with their neighbours, a multiple of 8: what is found of them stays in the cache.
_AT_ONCE = 1 << 18
# Flags from which on it pays to look at eight at a time, and the share of them that are True, up to which.
_LONG = 1 << 16
_MANY = 1 / 64
# Blocks of a GridTable looked at along each axis.
_SPAN = 3


@dataclass(frozen=True, eq=False)
class Runs:
    """Maximal runs of equal elements in the rows of a matrix [rows, length], row after row.

    starts: int64 [n], flat position of each run's first element. values: [n]. size: rows * length.
    """

    starts: np.ndarray
    values: np.ndarray
    size: int
    length: int

    @cached_property
    def of(self) -> np.ndarray:
        """int32 [rows * length], the run of each element."""
        return np.repeat(np.arange(self.starts.size, dtype=np.int32), np.diff(self.starts, append=self.size))

    @cached_property
    def bounds(self) -> np.ndarray:
        """int64 [n + 1]: `starts`, and `size` at the end."""
        found = np.empty(self.starts.size + 1, np.int64)
        found[:-1] = self.starts
        found[-1] = self.size
        return found

    def at(self, positions: np.ndarray) -> np.ndarray:
        """The runs of the elements at given flat positions: for few of them, where `of` would be made for their sake."""
        return self.starts.searchsorted(positions, "right") - 1


def runs_of(matrix: np.ndarray, most_share: float = 0.25) -> Runs | None:
    """The runs of a matrix; None where they are more than a share of the elements, or a value is NaN."""
    length, flat = matrix.shape[1], matrix.reshape(-1)
    starts = _changes(flat, length)
    if starts.size > most_share * flat.size:
        return None
    values = flat[starts]
    if values.dtype.kind == "f" and np.isnan(values).any():
        return None
    return Runs(starts, values, flat.size, length)


def _changes(flat: np.ndarray, length: int) -> np.ndarray:
    """Flat positions at which runs of rows of a length begin, ascending."""
    there = np.empty(min(-(-flat.size // 8) * 8, _AT_ONCE), bool)
    there[0] = True
    found, before = [], 1
    for begin in range(0, flat.size, _AT_ONCE):
        part = flat[begin:begin + _AT_ONCE]
        np.not_equal(part[before:], flat[begin + before - 1:begin + part.size - 1], out=there[before:part.size])
        if flat.size > length:
            there[-begin % length:part.size:length] = True
        if part.size < there.size:
            there[part.size:] = False
        at = _places(there)
        if begin:
            at += begin
        found.append(at)
        before = 0
    return found[0] if len(found) == 1 else np.concatenate(found)


def _places(flags: np.ndarray) -> np.ndarray:
    """Where flags, bool [n] with n a multiple of 8, are True."""
    words = (flags.view(np.uint64) != 0).nonzero()[0] if flags.size >= _LONG else flags
    if words.size > _MANY * flags.size:
        return flags.nonzero()[0]
    here = flags.reshape(-1, 8).take(words, axis=0).reshape(-1).nonzero()[0]
    at = words.take(here >> 3)
    at <<= 3
    here &= 7
    at += here
    return at


class SparseTable:
    """Any idempotent function of a range of a vector, by two overlapping power-of-two ranges."""

    def __init__(self, values: np.ndarray, function: np.ufunc):
        self.function = function
        self.levels = [values]
        while 2 ** len(self.levels) <= values.size:
            below, half = self.levels[-1], 2 ** (len(self.levels) - 1)
            self.levels.append(function(below[:-half], below[half:]))
        # One flat vector, so that ranges of all sizes are read in one gather.
        self.offset = np.cumsum([0, *(level.size for level in self.levels[:-1])])
        self.flat = np.concatenate(self.levels)
        self.log = np.zeros(values.size + 1, np.int64)
        for level in range(1, len(self.levels)):
            self.log[2**level:] = level

    def query(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The function over first..last, both included; last >= first."""
        level = self.log[last - first + 1]
        base = self.offset[level]
        return self.function(self.flat[base + first], self.flat[base + last + 1 - (1 << level)])


def _limits(values: np.ndarray) -> tuple[int | None, int | None]:
    """Least and greatest element as Python ints; (None, None) for floats."""
    if values.dtype.kind == "f":
        return None, None
    return int(values.min()), int(values.max())


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64, copy=False)


def flat_row(places: list, dims: tuple[int, ...], spread: int):
    """The row of a matrix [rows, length] that the indices other than `spread` point to (row-major over the other dimensions)."""
    row = 0
    for dim, size in enumerate(dims):
        if dim != spread:
            row = row * size + places[dim][0]
    return row


class RunTable:
    has_nan = False

    def __init__(self, runs: Runs, dims: tuple[int, ...], spread: int, space: Space):
        self.runs, self.dims, self.spread = runs, dims, spread
        values = _wide(runs.values)
        self.limits = _limits(values)
        self.values = values
        fall = values[1:] < values[:-1]
        if len(dims) > 1:
            # Rows are read one at a time: a fall from one row to the next does not matter.
            fall &= runs.starts[1:] % runs.length != 0
        self.rising = not fall.any()
        if not self.rising:
            self.low, self.high = SparseTable(values, np.minimum), SparseTable(values, np.maximum)

    def bounds(self, places: list):
        lo, hi = places[self.spread]
        if len(self.dims) > 1:
            base = flat_row(places, self.dims, self.spread) * self.runs.length
            lo, hi = lo + base, hi + base
        first, last = self.runs.of[lo], self.runs.of[hi]
        if self.rising:
            return self.values[first], self.values[last]
        first, last = np.broadcast_arrays(first, last)
        return self.low.query(first, last), self.high.query(first, last)


class BlockTable:
    """A sparse table over blocks of 64 elements; ranges shorter than two blocks are read from element-wise levels,
    made on demand."""

    def __init__(self, values: np.ndarray, spread: int, space: Space):
        self.dims, self.spread = values.shape, spread
        rows = np.moveaxis(values, spread, -1)
        self.length = rows.shape[-1]
        flat = np.ascontiguousarray(rows).reshape(-1, self.length)
        self.has_nan = bool(flat.dtype.kind == "f" and np.isnan(flat).any())
        self.limits = _limits(flat)
        self.sides = [_Side(flat, function, self.has_nan) for function in (np.minimum, np.maximum)]

    def bounds(self, places: list):
        lo, hi = places[self.spread]
        row = flat_row(places, self.dims, self.spread)
        lo, hi, row = np.broadcast_arrays(lo, hi, row)
        return tuple(side.query(row, lo, hi) for side in self.sides)


class _Side:
    """One of the two bounds of a BlockTable."""

    def __init__(self, matrix: np.ndarray, function: np.ufunc, has_nan: bool):
        if has_nan:
            matrix = np.where(np.isnan(matrix), np.inf if function is np.minimum else -np.inf, matrix)
        self.function, self.length = function, matrix.shape[1]
        self.blocks = -(-self.length // _BLOCK)
        # Padding repeats the last element of a row, which belongs to its last block anyway.
        pad = self.blocks * _BLOCK - self.length
        padded = np.pad(matrix, ((0, 0), (0, pad)), mode="edge") if pad else matrix
        self.width = padded.shape[1]
        self.levels = {0: padded.reshape(-1)}
        coarse = function.reduce(padded.reshape(-1, _BLOCK), axis=1)
        self.block_table = SparseTable(coarse, function)

    def query(self, row, lo, hi):
        start, end = row * self.width + lo, row * self.width + hi
        aligned = ((lo & (_BLOCK - 1)) == 0) & (((hi + 1) & (_BLOCK - 1) == 0) | (hi == self.length - 1))
        if np.all(aligned):
            return _wide(self.block_table.query(start // _BLOCK, end // _BLOCK))
        level = np.minimum(np.frexp(hi - lo + 1.0)[1] - 1, _BLOCK_LEVEL)
        result = np.empty(lo.shape, self.levels[0].dtype)
        for at in np.unique(level):
            here = level == at
            table = self._level(int(at))
            result[here] = self.function(table[start[here]], table[end[here] + 1 - (1 << int(at))])
        inner_first, inner_last = start // _BLOCK + 1, end // _BLOCK - 1
        inner = inner_first <= inner_last
        if inner.any():
            result[inner] = self.function(result[inner], self.block_table.query(inner_first[inner], inner_last[inner]))
        return _wide(result)

    def _level(self, level: int) -> np.ndarray:
        """The function over 2**level elements from each one (shorter at the very end, which no query asks for)."""
        if level not in self.levels:
            below, half = self._level(level - 1), 1 << (level - 1)
            above = below.copy()
            above[:-half] = self.function(below[:-half], below[half:])
            self.levels[level] = above
        return self.levels[level]


class GridTable:
    """Several spread axes (or none): blocks of 2**level along each, rounded outwards to at most three blocks an axis."""

    def __init__(self, values: np.ndarray, spread: tuple[int, ...], space: Space):
        self.spread = spread
        self.has_nan = bool(values.dtype.kind == "f" and np.isnan(values).any())
        self.limits = _limits(values)
        clean = [np.where(np.isnan(values), sign * np.inf, values) for sign in (1, -1)] if self.has_nan else [values, values]
        start = (0,) * len(spread)
        self.made = {(start, 0): clean[0], (start, 1): clean[1]}

    def bounds(self, places: list):
        if not self.spread:
            at = tuple(lo for lo, _ in places)
            return tuple(_wide(np.asarray(self.made[(), side][at])) for side in (0, 1))
        shape = np.broadcast_shapes(*(np.shape(x) for place in places for x in place))
        wide = [tuple(np.broadcast_to(x, shape).reshape(-1) for x in place) for place in places]
        # The coarsest level at which the interval still needs no more than three blocks: 2**level >= (length - 1) / 2.
        levels = np.stack([np.maximum(np.frexp(np.maximum(hi - lo, 0) / (_SPAN - 1.0))[1], 0)
                           for lo, hi in (wide[d] for d in self.spread)])
        result = [np.empty(wide[0][0].size, np.float64 if self.made[(0,) * len(self.spread), 0].dtype.kind == "f" else np.int64)
                  for _ in range(2)]
        for level in np.unique(levels, axis=1).T:
            here = np.flatnonzero((levels == level[:, None]).all(axis=0))
            part = [(lo[here], hi[here]) for lo, hi in wide]
            for side in (0, 1):
                result[side][here] = self._read(tuple(int(x) for x in level), side, part)
        return tuple(r.reshape(shape) for r in result)

    def _read(self, level: tuple[int, ...], side: int, places: list) -> np.ndarray:
        function = (np.minimum, np.maximum)[side]
        table = self._level(level, side)
        choices = [[lo] for lo, _ in places]
        for dim, step in zip(self.spread, level):
            first, last = places[dim][0] >> step, places[dim][1] >> step
            choices[dim] = [first, np.minimum(first + 1, last), last]
        total = None
        for at in np.ndindex(*(len(c) for c in choices)):
            found = table[tuple(c[i] for c, i in zip(choices, at))]
            total = found if total is None else function(total, found)
        return total

    def _level(self, level: tuple[int, ...], side: int) -> np.ndarray:
        key = (level, side)
        if key not in self.made:
            axis = max(range(len(level)), key=lambda i: level[i])
            finer = self._level(tuple(x - (i == axis) for i, x in enumerate(level)), side)
            self.made[key] = _halve(finer, self.spread[axis], (np.minimum, np.maximum)[side])
        return self.made[key]


def _halve(values: np.ndarray, axis: int, function: np.ufunc) -> np.ndarray:
    """Pairs of neighbours along an axis reduced to one; a last odd one stays."""
    even = values[(slice(None),) * axis + (slice(0, None, 2),)]
    odd = values[(slice(None),) * axis + (slice(1, None, 2),)]
    if odd.shape[axis] == even.shape[axis]:
        return function(even, odd)
    result = even.copy()
    inner = (slice(None),) * axis + (slice(0, odd.shape[axis]),)
    result[inner] = function(even[inner], odd)
    return result
