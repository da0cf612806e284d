"""Where the documents of a mask lie: runs of equal labels along the queries, and the run of keys with the same label.

Work tiles may start at a document's first row and key. That saves tiles where documents are ragged; where they are short beside
a tile, many share one; where a label comes back later, nothing is gained, and tiles stay on the grid.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flexfa4.facts.labels import LabelTable
from flexfa4.ir.bound import BoundGraph

from .label_runs import row_of, runs_along, sides_of
from .spans import Tiling

# What a work tile costs beside its tiles, in tiles, for the choice alone: the default of `flexfa4.schedule.CostModel.fixed`.
_FIXED = 2.0
# What it costs more, in tiles, to look at the labels of a tile.
_LABELS = 0.5


@dataclass(frozen=True, eq=False)
class Blocks:
    """Rectangles of the score matrix, each cut into tiles from its own first row and key: queries q0 .. q1 - 1 and keys
    k0 .. k1 - 1 of mask row `row` (mb * Hm + mh); int64 [n] each, rows and then queries ascending. Every query is in one block
    of its row, and sees no key outside it."""

    row: np.ndarray
    q0: np.ndarray
    q1: np.ndarray
    k0: np.ndarray
    k1: np.ndarray

    def __len__(self) -> int:
        return self.row.size

    def tiles(self, tiling: Tiling) -> tuple[np.ndarray, np.ndarray]:
        """Tiles of each block along the queries and along the keys."""
        return -((self.q0 - self.q1) // tiling.q_tile), -((self.k0 - self.k1) // tiling.kv_tile)


def blocks_of(bound: BoundGraph, tiling: Tiling, table: LabelTable | None) -> Blocks:
    """The blocks of a mask with an equality of labels (`table`) among its conjuncts: documents, where tiles that start with them
    cost less, else all of a mask row in one."""
    whole = np.array([[0], [tiling.q_len], [0], [tiling.kv_len]])
    rows = np.arange(tiling.Bm * tiling.Hm)
    sides = None if table is None else sides_of(bound, table)
    parts = []
    for b, h in zip(*np.divmod(rows, tiling.Hm)):
        documents = None if sides is None else _documents(bound, table, sides, tiling, int(b), int(h))
        parts.append(whole if documents is None else _worthwhile(documents, whole, tiling))
    return Blocks(np.repeat(rows, [p.shape[1] for p in parts]), *np.concatenate(parts, axis=1))


def _documents(bound: BoundGraph, table: LabelTable, sides, tiling: Tiling, b: int, h: int) -> np.ndarray | None:
    """int64 [4, n] of (q0, q1, k0, k1): the runs of the queries' labels of one mask row, and of the keys with the same label;
    None where a key label comes back, or keys come in another order than queries."""
    row = row_of(bound, table, b, h)
    if row is None:
        return None
    queries, keys = (_runs(table, row, side, length) for side, length in zip(sides, (tiling.q_len, tiling.kv_len)))
    if queries is None or keys is None:
        return None
    q_begin, q_end, q_name = queries
    k_begin, k_end, k_name = keys
    ranked = np.sort(k_name)
    if (ranked[1:] == ranked[:-1]).any():
        return None
    if sides[0] == sides[1] and tiling.q_len == tiling.kv_len:
        return np.stack([q_begin, q_end, q_begin, q_end])
    order = np.argsort(k_name)
    at = np.minimum(np.searchsorted(ranked, q_name), ranked.size - 1)
    there, match = ranked[at] == q_name, order[at]
    # A query document without keys takes no room between its neighbours.
    k1 = np.maximum.accumulate(np.where(there, k_end[match], 0))
    k0 = np.where(there, k_begin[match], k1)
    if (k0[1:] < k1[:-1]).any():
        return None
    return np.stack([q_begin, q_end, k0, k1])


def _runs(table: LabelTable, row: int, side: tuple[int, int], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(begin, end, label) of the runs of labels along one axis; None where it reads past its table."""
    found = runs_along(table, row, side, length)
    if found is None:
        return None
    bounds, first, last = found
    return bounds[:-1], bounds[1:], table.runs.values[first:last]


def _worthwhile(documents: np.ndarray, whole: np.ndarray, tiling: Tiling) -> np.ndarray:
    """Blocks of whole documents, or all in one, whichever costs less before the rest of the mask is looked at."""
    q0, q1, k0, k1 = documents
    size = tiling.kv_tile
    blocks, alone = _gathered(documents, tiling.q_tile)
    rows, columns = -((blocks[0] - blocks[1]) // tiling.q_tile), -((blocks[2] - blocks[3]) // size)
    own = (rows * (_FIXED + columns * np.where(alone, 1.0, 1.0 + _LABELS))).sum()
    begin = np.arange(0, tiling.q_len, tiling.q_tile)
    first = np.searchsorted(q0, begin, side="right") - 1
    last = np.searchsorted(q0, np.minimum(begin + tiling.q_tile, tiling.q_len) - 1, side="right") - 1
    low, high = k0[first], k1[last]
    columns = np.where(high > low, -(-high // size) - low // size, 0)
    # Of one document, the tiles that hold its first and its last key are looked at; of several, all.
    mixed = np.where(first == last, np.minimum((low % size > 0) * 1 + (high % size > 0), columns), columns)
    return blocks if own < (_FIXED + columns + _LABELS * mixed).sum() else whole


def _gathered(documents: np.ndarray, q_tile: int) -> tuple[np.ndarray, np.ndarray]:
    """Documents, but neighbours that fit into one query tile together are one block; and which blocks are one document."""
    q0, q1, k0, k1 = documents
    following = np.searchsorted(q1, q0 + q_tile, side="right")
    if (following <= np.arange(1, q0.size + 1)).all():
        return documents, np.ones(q0.size, bool)
    following = np.maximum(following, np.arange(1, q0.size + 1)).tolist()
    first, at = [], 0
    while at < len(following):
        first.append(at)
        at = following[at]
    first = np.array(first)
    last = np.append(first[1:], q0.size) - 1
    return np.stack([q0[first], q1[last], k0[first], k1[last]]), first == last
