"""Coarse to fine: squares of tiles are proven EMPTY or FULL by interval analysis, or cut into sixteen and looked at again."""
from __future__ import annotations

from typing import Callable, Iterator, Protocol

import numpy as np

from .cells import Cells
from .spans import Kind

# An undecided square is cut into this many parts along each axis.
FAN = 4
_CHILD_I, _CHILD_J = (x.reshape(1, -1) for x in np.indices((FAN, FAN)))
# Squares looked at together: their arrays stay in the last-level cache.
BATCH = 1 << 17
# Squares that one build looks at, some ten seconds' work: beyond, squares that are undecided are not cut, and PARTIAL.
MOST_SQUARES = 1 << 23
# Squares of a first attempt, where another way is left: a tenth of a second at most.
FEW_SQUARES = 1 << 18

# Of n squares of one size: the grid each lies in, and its place there along the queries and along the keys, int64 [n].
Places = tuple[np.ndarray, np.ndarray, np.ndarray]


class Grids(Protocol):
    """Grids of tiles that are walked."""

    def cells(self, grid: np.ndarray, i: np.ndarray, j: np.ndarray, size: int) -> Cells:
        """Squares of size x size tiles, cut short where their grid ends."""

    def there(self, grid: np.ndarray, i: np.ndarray, j: np.ndarray, size: int) -> np.ndarray:
        """Which of the squares begin within their grid, bool [n]."""

    def emit(self, grid: np.ndarray, i: np.ndarray, j: np.ndarray, size: int, kind: Kind) -> None:
        """Takes the kind of squares, FULL or PARTIAL."""


def walk(grids: Grids, size: int, places: Places, refiner, attempt: bool = False) -> bool:
    """Finds the kinds of all tiles in squares of size x size tiles. attempt: gives up, and says so by False, where there are more
    than `FEW_SQUARES` to look at."""
    judge, settler, work = refiner.judge, refiner.settler, refiner.work
    if attempt and places[0].size > FEW_SQUARES:
        return False
    level, left = [places], (min(FEW_SQUARES, MOST_SQUARES) if attempt else MOST_SQUARES) - places[0].size
    while level:
        undecided = [found for part in level for found in _looked(grids, size, part, judge, settler)]
        open_ = sum(part[0].size for part, _ in undecided)
        if open_ and open_ * FAN * FAN > left:
            if attempt:
                return False
            # Squares that may read out of range are looked into whatever the budget, so that a bad look-up is never missed.
            for part, bad in undecided:
                work.over_budget += int(np.count_nonzero(~bad)) * size * size
                grids.emit(*(x[~bad] for x in part), size, Kind.PARTIAL)
            undecided = [(tuple(x[bad] for x in part), bad) for part, bad in undecided if bad.any()]
        size //= FAN
        level = [_cut(grids, part, size) for part, _ in undecided]
        left -= sum(part[0].size for part in level)
    return True


def _looked(grids: Grids, size: int, places: Places, judge: Callable, settler) -> Iterator[tuple[Places, np.ndarray]]:
    """(undecided squares, which of them may read out of range) of one size; of single tiles none is left."""
    for first in range(0, places[0].size, BATCH):
        part = tuple(x[first:first + BATCH] for x in places)
        cells = grids.cells(*part, size)
        empty, full, poison = judge(cells)
        grids.emit(*(x[full] for x in part), size, Kind.FULL)
        undecided = np.flatnonzero(~(empty | full))
        if not undecided.size:
            continue
        part = tuple(x[undecided] for x in part)
        bad = np.broadcast_to(poison, len(cells))[undecided]
        if size > 1:
            yield part, bad
            continue
        kinds = settler.kinds(cells.take(undecided), poison if poison is False else bad)
        for kind in (Kind.PARTIAL, Kind.FULL):
            here = kinds == kind
            grids.emit(*(x[here] for x in part), 1, kind)


def _cut(grids: Grids, places: Places, size: int) -> Places:
    """The squares of size x size tiles in larger ones."""
    grid, i, j = places
    found = (np.repeat(grid, FAN * FAN), (i[:, None] * FAN + _CHILD_I).reshape(-1), (j[:, None] * FAN + _CHILD_J).reshape(-1))
    inside = grids.there(*found, size)
    return found if inside.all() else tuple(x[inside] for x in found)
