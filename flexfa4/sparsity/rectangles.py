"""Tiles of labels that come back: a run of queries and a run of keys with the same label are a rectangle of the score matrix.

The tiles that rectangles touch hold something, and those that one covers hold nothing else. So an equality of labels in any order
costs a look a run and row of tiles, times how often the labels there come back, and no pair of tiles without a common label is
met. Other terms of the mask cut each row of rectangles as they cut a row of tiles.
"""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flexfa4.threads import cached_property

from .sides import Axis, RunNumbers, Side
from .spans import PARTIAL_FULL, counted, row_pointer, run_type

# (begin, end) of the columns of each row, as `bands` has them: int64 [rows] or int each, None for all before or after.
Bounds = tuple
# Tiles met by rectangles beyond which looking at every tile is as good.
_MOST_MET = 1 << 17
# Numbers without a label, for each run, up to which labels are taken as they are.
_SPARE = 4


class Labels(Side):
    """The labels of positions along an axis, as maximal runs of equal ones. values: [n]; bounds: int64 [n + 1], ascending from 0
    to the length of the axis; begins: without that."""

    def __init__(self, axis: Axis, bounds: np.ndarray, values: np.ndarray):
        self.axis, self.bounds, self.values, self.within = axis, bounds, values, None
        self.begins = bounds[:-1]

    def corners(self, i):
        places = np.array((self.axis.first.take(i), self.axis.last.take(i)))
        return self.values.take(self.begins.searchsorted(places, "right") - 1)

    def rises(self) -> bool:
        return False

    @cached_property
    def numbers(self) -> RunNumbers:
        """The same with a label of its own for each run."""
        return RunNumbers(self.axis, self.bounds)


def labels_at(axis: Axis, values: np.ndarray) -> Labels:
    """From the label of every position, [n]."""
    bounds = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1], [True]]))
    return Labels(axis, bounds, values.take(bounds[:-1]))


def both(a: tuple[Labels, Labels], b: tuple[Labels, Labels]) -> tuple[Labels, Labels]:
    """The labels, (of queries, of keys), that are equal where those of two equalities are."""
    counts, codes = zip(*(codes_of(*sides) for sides in (a, b)))
    found = []
    for k in range(2):
        bounds = np.union1d(a[k].bounds, b[k].bounds)
        first, second = (codes[n][k].take(x[k].begins.searchsorted(bounds[:-1], "right") - 1) for n, x in enumerate((a, b)))
        found.append(Labels(a[k].axis, bounds, first * counts[1] + second))
    return tuple(found)


def codes_of(a: Labels, b: Labels) -> tuple[int, list[np.ndarray]]:
    """How many labels two sides have at most, and the labels of each run as numbers below that."""
    if a.values.dtype.kind in "iu":
        low = min(int(x.values.min()) for x in (a, b))
        count = max(int(x.values.max()) for x in (a, b)) - low + 1
        if count <= _SPARE * (a.values.size + b.values.size):
            return count, [x.values.astype(np.int64) - low for x in (a, b)]
    values, codes = np.unique(np.concatenate([a.values, b.values]), return_inverse=True)
    return values.size, np.split(codes, [a.values.size])


def later(a, b):
    """The greater of two begins, of which None is before all columns."""
    return a if b is None else b if a is None else np.maximum(a, b)


def earlier(a, b):
    """The lesser of two ends, of which None is after all columns."""
    return a if b is None else b if a is None else np.minimum(a, b)


class Segments(NamedTuple):
    """Disjoint segments of rows, flat: tile j of row i is at i << bits | j, with as many bits as the number of columns has. int64
    [n] each."""

    begin: np.ndarray
    end: np.ndarray


def bits_of(columns: int) -> int:
    """The bits of a column in a flat place: one past the last column fits too, so that rows never touch."""
    return int(columns).bit_length()


def met(rows: Labels, columns: Labels, may: Bounds, must: Bounds) -> tuple[Segments, Segments] | None:
    """(some, full): the tiles with a common label in which the other terms may hold, ascending; and, in any order, those in which
    all labels are one and the other terms hold. may, must: where the other terms may hold and where they certainly do. None where
    too many tiles are met."""
    pairs, bits = _pairs(rows, columns), bits_of(columns.axis.count)
    if pairs is None:
        return None
    row, run = pairs
    begin, end = columns.numbers.touched
    begin, end = flat(bits, *cut(row, begin.take(run), end.take(run), may))
    begin.sort()
    end.sort()
    # Where as many segments have ended as have begun, one that touches no other begins.
    apart = begin[1:] > end[:-1]
    if not apart.all():
        begin, end = np.concatenate([begin[:1], begin[1:][apart]]), np.concatenate([end[:-1][apart], end[-1:]])
    # A row of one label throughout is full where columns are.
    alone = (rows.numbers.lo == rows.numbers.hi).take(row).nonzero()[0]
    row, run = row.take(alone), run.take(alone)
    covered = (x.take(run) for x in columns.numbers.covered)
    both_hold = later(may[0], must[0]), earlier(may[1], must[1])
    return Segments(begin, end), Segments(*flat(bits, *cut(row, *covered, both_hold)))


def flat(bits: int, row: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(begin, end) of segments as flat places."""
    row = row << bits
    return begin | row, end | row


def in_order(segments: Segments) -> Segments:
    """The same ascending."""
    return Segments(np.sort(segments.begin), np.sort(segments.end))


def _pairs(rows: Labels, columns: Labels) -> tuple[np.ndarray, np.ndarray] | None:
    """Rows, and runs of columns with a label that a row has; None where there are too many."""
    order = columns.values.argsort(kind="stable")
    ordered = columns.values.take(order)
    low, high = ordered.searchsorted(rows.values, "left"), ordered.searchsorted(rows.values, "right")
    first, last = rows.numbers.lo, rows.numbers.hi
    length = last - first
    length += 1
    run = counted(first, length)
    count = (high - low).take(run)
    if int(count.sum()) > min(_MOST_MET, rows.axis.count * columns.axis.count):
        return None
    return np.arange(rows.axis.count).repeat(length).repeat(count), order.take(counted(low.take(run), count))


def cut(row: np.ndarray, begin: np.ndarray, end: np.ndarray, bounds: Bounds) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, begin, end) of what is left within bounds."""
    low, high = bounds
    if low is not None:
        begin = np.maximum(begin, low.take(row) if isinstance(low, np.ndarray) else low)
    if high is not None:
        end = np.minimum(end, high.take(row) if isinstance(high, np.ndarray) else high)
    there = (begin < end).nonzero()[0]
    return row.take(there), begin.take(there), end.take(there)


class Runs(NamedTuple):
    """Runs of tiles, rows and columns ascending: (row, begin, end) int64 [n] each, and which are FULL, bool [n]."""

    row: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    full: np.ndarray

    def those(self, full: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, begin, end) of the FULL ones, or of the PARTIAL ones."""
        there = (self.full if full else ~self.full).nonzero()[0]
        return self.row.take(there), self.begin.take(there), self.end.take(there)

    def packed(self, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """(row_ptr, runs), as in Spans."""
        runs = np.empty((self.row.size, 3), run_type(columns))
        runs[:, 0], runs[:, 1], runs[:, 2] = self.begin, self.end, PARTIAL_FULL.take(self.full)
        return row_pointer(self.row, rows), runs


def split(some: Segments, full: Segments, columns: int) -> Runs:
    """Segments that are PARTIAL but for maximal ones inside them that are FULL."""
    # Each place with what begins there: 0 for PARTIAL, 1 for FULL, 2 for a gap. At one place, the last of them is no empty one.
    place = np.concatenate([some.begin, full.end, full.begin, some.end])
    place <<= 2
    count = some.begin.size + full.begin.size
    place[count:] |= 1
    place[count + full.begin.size:] += 1
    place.sort()
    kind = place & 3
    place >>= 2
    at = ((place[:-1] < place[1:]) & (kind[:-1] != 2)).nonzero()[0]
    begin, bits = place.take(at), bits_of(columns)
    low = (1 << bits) - 1
    full = kind.take(at) == 1
    at += 1
    return Runs(begin >> bits, begin & low, place.take(at) & low, full)


def holding(segments: Segments, places: np.ndarray) -> np.ndarray:
    """Which flat places lie in segments that ascend, bool."""
    if not segments.begin.size:
        return np.zeros(places.shape, bool)
    at = segments.begin.searchsorted(places, "right") - 1
    return (at >= 0) & (places < segments.end.take(at, mode="clip"))
