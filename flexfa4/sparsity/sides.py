"""What one side of a comparison is over the tiles of an axis, and from which tile on it reaches a value.

A side that rises along the keys is searched by bisection. Two need none: the position plus a number, and labels of which none
comes back, which are known by the positions at which their runs begin. There a division by the tile size gives the tile.
"""
from __future__ import annotations

from functools import lru_cache
from typing import Callable

import numpy as np

from flexfa4.facts.interval_values import Interval
from flexfa4.ir import Node, Op
from flexfa4.threads import cached_property

from .spans import Grid

# A sum of two numbers of at most this size, and of one more, does not wrap around in int64.
_LARGE = 1 << 61


class Axis:
    """The `count` tiles along the queries or the keys, `first` and `last` position of each, int64 [n]; and what is known of nodes
    there, as intervals [3, n]: over the tile, at its first and at its last position. number: 0 .. n - 1, of a grid alone.

    tiles: (first, last) of tiles that ascend and are disjoint, one at least, where they are not those of the grid (`on_grid`)."""

    def __init__(self, op: Op, length: int, tile: int, tiles: tuple[np.ndarray, np.ndarray] | None = None):
        self.op, self.tile, self.length, self.on_grid = op, tile, length, tiles is None
        if tiles is None:
            self.first, self.last, self.number = _grid(length, tile)
        else:
            self.first, self.last = tiles
        self.count = self.first.size
        self.known: dict[Node, Interval] = {}

    def like(self, op: Op) -> "Axis":
        """Another axis with the same tiles."""
        twin = object.__new__(Axis)
        twin.__dict__.update(self.__dict__, op=op, known={})
        return twin

    @cached_property
    def ends(self) -> np.ndarray:
        return np.array((self.first, self.last))

    @cached_property
    def stacked(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array((self.first, self.first, self.last)), np.array((self.last, self.first, self.last))

    def begun(self, v: np.ndarray) -> np.ndarray:
        """How many tiles begin before positions v, int64 [m], ascending from 0 to any number past the end."""
        if not self.on_grid:
            return self.first.searchsorted(v)
        found = (v + (self.tile - 1)) // self.tile
        return np.minimum(found, self.count) if v[-1] > self.length else found

    def ended(self, v: np.ndarray) -> np.ndarray:
        """How many tiles have their last position before positions v, as in `begun`."""
        if not self.on_grid:
            return self.last.searchsorted(v)
        found = v // self.tile
        if v[-1] > self.length or self.length % self.tile:
            found[v.searchsorted(self.length):] = self.count
        return found


@lru_cache(maxsize=16)
def _grid(length: int, tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First and last position of the tiles of a grid, and their numbers."""
    first, number = np.arange(0, length, tile), np.arange(-(-length // tile))
    last = first + (tile - 1)
    last[-1] = length - 1
    for found in (first, last, number):
        found.flags.writeable = False
    return first, last, number


def grid_axes(tiling: Grid) -> tuple[Axis, Axis]:
    """(the queries', the keys') of a grid."""
    q = Axis(Op.Q, tiling.q_len, tiling.q_tile)
    return q, q.like(Op.KV) if alike(tiling) else Axis(Op.KV, tiling.kv_len, tiling.kv_tile)


def alike(tiling: Grid) -> bool:
    """Whether a grid cuts queries and keys alike."""
    return tiling.q_len == tiling.kv_len and tiling.q_tile == tiling.kv_tile


class Side:
    """One side of a comparison over n tiles of an axis: least and greatest value `lo` and `hi`, [n].

    corners(i): the values at the first and last position of tiles i, [2, m]; None where they are not known exactly. dense: every
    whole number from lo to hi is a value at some position of the tile. within: Python ints that no value lies outside of; None:
    not known. from_low, from_high: the first tile whose least value is at least the greatest of each tile of another side, or
    whose greatest is at least the other's least (`beyond`: greater), [m], n where there is none: not to be written to. Only for
    sides that rise (`rises`).
    """

    dense = False

    def __init__(self, lo: np.ndarray, hi: np.ndarray, ends: np.ndarray | None, within: tuple[int, int] | None):
        """ends: the values at the first and last position of all tiles, [2, n]."""
        self.lo, self.hi, self.within, self._ends = lo, hi, within, ends

    def __neg__(self) -> "Side":
        return Negated(self)

    def corners(self, i: np.ndarray) -> np.ndarray | None:
        return None if self._ends is None else self._ends.take(i, axis=1)

    def rises(self) -> bool:
        """Whether lo and hi rise from tile to tile."""
        return bool((self.lo[1:] >= self.lo[:-1]).all() and (self.hi[1:] >= self.hi[:-1]).all())

    def from_low(self, other: "Side", beyond: bool) -> np.ndarray:
        return self.lo.searchsorted(other.hi, "right" if beyond else "left")

    def from_high(self, other: "Side", beyond: bool) -> np.ndarray:
        return self.hi.searchsorted(other.lo, "right" if beyond else "left")


class Negated(Side):
    """The negative of a side."""

    def __init__(self, side: Side):
        within = side.within
        super().__init__(-side.hi, -side.lo, None, within and (-within[1], -within[0]))
        self._of, self.dense = side, side.dense

    def __neg__(self) -> Side:
        return self._of

    def corners(self, i):
        found = self._of.corners(i)
        return None if found is None else -found


class Position(Side):
    """The position plus a number."""

    dense = True

    def __init__(self, axis: Axis, added: int = 0):
        self.axis, self.added = axis, added
        self.within = added, added + axis.length - 1

    @cached_property
    def lo(self) -> np.ndarray:
        return self.axis.first + self.added if self.added else self.axis.first

    @cached_property
    def hi(self) -> np.ndarray:
        return self.axis.last + self.added if self.added else self.axis.last

    def corners(self, i):
        return np.array((self.lo.take(i), self.hi.take(i)))

    def rises(self) -> bool:
        return True

    def from_low(self, other, beyond):
        return self._reach(Position._from_low, other, beyond)

    def from_high(self, other, beyond):
        return self._reach(Position._from_high, other, beyond)

    def _reach(self, way: Callable, other: Side, beyond: bool) -> np.ndarray:
        if type(other) is Position and self.axis.on_grid and other.axis.on_grid:
            mine, its = self.axis, other.axis
            return _of_grids(way, (mine.length, mine.tile, self.added), (its.length, its.tile, other.added), beyond)
        return way(self, other, beyond)

    def _from_low(self, other, beyond):
        if not self._exact(other):
            return super().from_low(other, beyond)
        return self._tiles(other, other.hi, self.axis.tile - 1, beyond - self.added + self.axis.tile - 1)

    def _from_high(self, other, beyond):
        if not self._exact(other):
            return super().from_high(other, beyond)
        more, length = beyond - self.added, self.axis.length
        tiles = self._tiles(other, other.lo, 0, more)
        if length % self.axis.tile and other.within[1] + more >= length:
            tiles = np.where(other.lo >= length - more, self.axis.count, tiles)
        return tiles

    def _exact(self, other: Side) -> bool:
        """Whether division is as good as bisection: nothing wraps around."""
        bounds = other.within
        return self.axis.on_grid and bounds is not None and -_LARGE < bounds[0] and bounds[1] < _LARGE \
            and -_LARGE < self.added < _LARGE and other.lo.dtype == np.int64

    def _tiles(self, other: Side, v: np.ndarray, place: int, more: int) -> np.ndarray:
        """The tile of each position v + more, 0 before the first, and n after the last but for positions in a ragged last tile.
        v: the values of the other side at `place` of its tiles, counted from the first position of a whole one."""
        axis, (least, most) = self.axis, other.within
        if isinstance(other, Position) and other.axis.on_grid and other.axis.tile == axis.tile:
            # A tile further on there is one further on here.
            step = (place + other.added + more) // axis.tile
            tiles = other.axis.number + step if step else other.axis.number
            if place and other.axis.length % axis.tile:
                tiles = tiles.copy()
                tiles[-1] = (int(v[-1]) + more) // axis.tile
        else:
            tiles = (v + more) // axis.tile
        if least + more < 0:
            tiles = np.maximum(tiles, 0)
        if most + more >= axis.count * axis.tile:
            tiles = np.minimum(tiles, axis.count)
        return tiles


@lru_cache(maxsize=16)
def _of_grids(way: Callable, mine: tuple[int, int, int], its: tuple[int, int, int], beyond: bool) -> np.ndarray:
    """What positions reach on grids, (length, tile, added) each, which are the same in most builds."""
    found = way(*(Position(Axis(Op.Q, length, tile), added) for length, tile, added in (mine, its)), beyond)
    found.flags.writeable = False
    return found


class RunNumbers(Side):
    """The number of the run, from 0, that a position lies in, of runs that begin at `starts` and of which the last reaches to the
    end of the axis at least. starts: int64 [runs + 1], ascending from 0, with one past the end of the last."""

    dense = True

    def __init__(self, axis: Axis, starts: np.ndarray):
        self._low, self._high = low, high = axis.begun(starts), axis.ended(starts)
        number = np.arange(starts.size - 1)
        self.lo = number.repeat(low[1:] - low[:-1])
        # The last run whose first tile with it as the greatest is this one.
        self.hi = number.repeat(high[1:] - high[:-1])
        self.within = 0, starts.size - 2

    @property
    def touched(self) -> tuple[np.ndarray, np.ndarray]:
        """(first, one past the last) of the tiles with a position of each run."""
        return self._high[:-1], self._low[1:]

    @property
    def covered(self) -> tuple[np.ndarray, np.ndarray]:
        """As `touched`, the tiles of which a run holds all positions; end <= first where there are none."""
        return self._low[:-1], self._high[1:]

    def corners(self, i):
        return np.array((self.lo.take(i), self.hi.take(i)))

    def rises(self) -> bool:
        return True

    def from_low(self, other, beyond):
        return (self._low[1:] if beyond else self._low).take(other.hi)

    def from_high(self, other, beyond):
        return (self._high[1:] if beyond else self._high).take(other.lo)
