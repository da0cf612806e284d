"""Tiles of labels that come back: a run of queries and a run of keys with the same label are a rectangle of the score matrix.

The tiles that rectangles touch hold something, and those that one covers hold nothing else. So an equality of labels in any order
costs a look a run and row of tiles, times how often the labels there come back, and no pair of tiles without a common label is
met. Other terms of the mask cut each row of rectangles as they cut a row of tiles.
"""
from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from .sides import Axis, Side
from .spans import Kind, counted, row_pointer, run_type

# (begin, end) of the columns of each row, as `bands` has them: int64 [rows] or int each, None for all before or after.
Bounds = tuple
# Tiles met by rectangles beyond which looking at every tile is as good.
_MOST_MET = 1 << 17
# Numbers without a label, for each run, up to which labels are taken as they are.
_SPARE = 4


class Labels(Side):
    """The labels of positions along an axis, as maximal runs of equal ones. values: [n]; begins: int64 [n] from 0, ascending."""

    def __init__(self, axis: Axis, begins: np.ndarray, values: np.ndarray):
        self.axis, self.begins, self.values, self.within = axis, begins, values, None
        self.ends = np.empty_like(begins)
        self.ends[:-1], self.ends[-1] = begins[1:], axis.length

    def corners(self, i):
        places = np.array((self.axis.first.take(i), self.axis.last.take(i)))
        return self.values.take(self.begins.searchsorted(places, "right") - 1)

    def rises(self) -> bool:
        return False

    @cached_property
    def touched(self) -> tuple[np.ndarray, np.ndarray]:
        """(first, one past the last) of the tiles with a position of each run."""
        return self.axis.ended(self.begins), self.axis.begun(self.ends)

    @cached_property
    def covered(self) -> tuple[np.ndarray, np.ndarray]:
        """As `touched`, the tiles of which a run holds all positions; end < first where there are none."""
        return self.axis.begun(self.begins), self.axis.ended(self.ends)


def labels_at(axis: Axis, values: np.ndarray) -> Labels:
    """From the label of every position, [n]."""
    begins = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return Labels(axis, begins, values.take(begins))


def both(a: tuple[Labels, Labels], b: tuple[Labels, Labels]) -> tuple[Labels, Labels]:
    """The labels, (of queries, of keys), that are equal where those of two equalities are."""
    counts, codes = zip(*(codes_of(*sides) for sides in (a, b)))
    found = []
    for k in range(2):
        begins = np.union1d(a[k].begins, b[k].begins)
        first, second = (codes[n][k].take(x[k].begins.searchsorted(begins, "right") - 1) for n, x in enumerate((a, b)))
        found.append(Labels(a[k].axis, begins, first * counts[1] + second))
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
    row, begin, end = _cut(*_rows_of(*pairs, rows.touched, columns.touched), may)
    row <<= bits
    begin, end = begin | row, end | row
    begin.sort()
    end.sort()
    # Where as many segments have ended as have begun, one that touches no other begins.
    apart = begin[1:] > end[:-1]
    some = Segments(np.concatenate([begin[:1], begin[1:][apart]]), np.concatenate([end[:-1][apart], end[-1:]]))
    both_hold = later(may[0], must[0]), earlier(may[1], must[1])
    row, begin, end = _cut(*_rows_of(*pairs, rows.covered, columns.covered), both_hold)
    row <<= bits
    return some, Segments(begin | row, end | row)


def in_order(segments: Segments) -> Segments:
    """The same ascending."""
    return Segments(np.sort(segments.begin), np.sort(segments.end))


def _pairs(rows: Labels, columns: Labels) -> tuple[np.ndarray, np.ndarray] | None:
    """Runs of rows and of columns with the same label; None where they have too many tiles."""
    order = columns.values.argsort(kind="stable")
    ordered = columns.values.take(order)
    low, high = ordered.searchsorted(rows.values, "left"), ordered.searchsorted(rows.values, "right")
    count = high - low
    first, end = rows.touched
    if int((count * (end - first)).sum()) > min(_MOST_MET, rows.axis.count * columns.axis.count):
        return None
    return np.arange(count.size).repeat(count), order.take(counted(low, count))


def _rows_of(a: np.ndarray, b: np.ndarray, rows: tuple, columns: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, begin, end): the columns of runs b in each row of runs a. rows, columns: (first, end) tiles of all runs."""
    first, begin, end = rows[0].take(a), columns[0].take(b), columns[1].take(b)
    count = np.maximum(rows[1].take(a) - first, 0)
    count[begin >= end] = 0
    return counted(first, count), begin.repeat(count), end.repeat(count)


def _cut(row: np.ndarray, begin: np.ndarray, end: np.ndarray, bounds: Bounds) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, begin, end) of what is left within bounds."""
    low, high = bounds
    if low is None and high is None:
        return row, begin, end
    if low is not None:
        begin = np.maximum(begin, low.take(row) if isinstance(low, np.ndarray) else low)
    if high is not None:
        end = np.minimum(end, high.take(row) if isinstance(high, np.ndarray) else high)
    there = (begin < end).nonzero()[0]
    return row.take(there), begin.take(there), end.take(there)


def without(whole: Segments, part: Segments) -> Segments:
    """What is left of segments without others inside them, ascending."""
    begin, end = np.concatenate([whole.begin, part.end]), np.concatenate([part.begin, whole.end])
    begin.sort()
    end.sort()
    there = (begin < end).nonzero()[0]
    return Segments(begin.take(there), end.take(there))


def within(segments: Segments, bounds: Bounds, columns: int) -> Segments:
    """What is left of segments between bounds of their rows."""
    bits = bits_of(columns)
    low = (1 << bits) - 1
    row, begin, end = _cut(segments.begin >> bits, segments.begin & low, segments.end & low, bounds)
    row <<= bits
    return Segments(begin | row, end | row)


def holding(segments: Segments, places: np.ndarray) -> np.ndarray:
    """Which flat places lie in segments that ascend, bool."""
    if not segments.begin.size:
        return np.zeros(places.shape, bool)
    at = segments.begin.searchsorted(places, "right") - 1
    return (at >= 0) & (places < segments.end.take(at, mode="clip"))


def places_in(segments: Segments, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of all tiles of segments."""
    bits = bits_of(columns)
    places = counted(segments.begin, segments.end - segments.begin)
    return places >> bits, places & ((1 << bits) - 1)


def runs_of(full: Segments, partial: Segments, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr, runs), as in Spans, of FULL and PARTIAL segments that are maximal and disjoint."""
    bits = bits_of(columns)
    low, count = (1 << bits) - 1, full.begin.size
    begin, end = np.concatenate([full.begin, partial.begin]), np.concatenate([full.end, partial.end])
    begin <<= 1
    begin[:count] |= 1
    begin.sort()
    end.sort()
    runs = np.empty((begin.size, 3), run_type(columns))
    runs[:, 2] = (begin & 1) + int(Kind.PARTIAL)
    begin >>= 1
    np.bitwise_and(begin, low, out=runs[:, 0], casting="unsafe")
    np.bitwise_and(end, low, out=runs[:, 1], casting="unsafe")
    return row_pointer(begin >> bits, rows), runs
