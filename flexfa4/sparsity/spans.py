"""Spans: which tiles of the score matrix hold anything, as runs of equal tiles, a row of tiles at a time.

Causal at a million tokens is two runs a row, not a list of every tile: memory grows with the sequence, not with its square.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Sequence

import numpy as np
import torch

from flexfa4.errors import ShapeError
from flexfa4.threads import cached_property

from .host import send


class Kind(IntEnum):
    """What is known of a tile. EMPTY tiles are in no run."""

    EMPTY = 0
    PARTIAL = 1
    FULL = 2


# To look kinds up in: numpy takes its time over an enumeration.
PARTIAL_FULL = np.array((Kind.PARTIAL, Kind.FULL), np.int8)


class Grid:
    """How many tiles lengths make at tile sizes; the last one of each axis may be ragged."""

    q_tile: int
    kv_tile: int
    q_len: int
    kv_len: int

    @property
    def q_tiles(self) -> int:
        return -(-self.q_len // self.q_tile)

    @property
    def kv_tiles(self) -> int:
        return -(-self.kv_len // self.kv_tile)


@dataclass(frozen=True, eq=False)
class Spans(Grid):
    """Runs of tiles in CSR form.

    row_ptr: int32 [rows + 1]. runs: int32 [n, 3], each (begin, end, kind): tiles begin..end-1 are all of that kind; runs of a row
    ascend, are disjoint and maximal. They are held as `compact`, int16 where a row has fewer than 32,768 tiles, and `runs` makes
    them anew at each reading. row = (mb * Hm + mh) * q_tiles + q_tile, and the tiles in its runs are key tiles; in the
    transposed form row = (mb * Hm + mh) * kv_tiles + kv_tile and runs are over query tiles. Bm (Hm) is 1 where the mask ignores
    the batch (head). halved: kinds are those of two halves of the queries (`halves`), for kernels alone. Positions at or past
    q_len and kv_len do not exist: a ragged last tile is FULL if all its real elements are allowed.
    """

    row_ptr: torch.Tensor
    compact: torch.Tensor
    q_tile: int
    kv_tile: int
    q_len: int
    kv_len: int
    Bm: int = 1
    Hm: int = 1
    transposed: bool = False
    halved: bool = False

    def __repr__(self) -> str:
        if self.halved:
            return f"Spans({self.q_len:,} x {self.kv_len:,}, halves of {self.q_tile} queries; {len(self.compact):,} runs)"
        counts = ", ".join(f"{n:,} {kind.name.lower()}" for kind, n in self.counts().items())
        return (f"Spans({self.q_len:,} x {self.kv_len:,} in tiles of {self.q_tile} x {self.kv_tile}, Bm={self.Bm}, Hm={self.Hm}, "
                f"{counts}; {len(self.compact):,} runs{', transposed' if self.transposed else ''}, {self.device})")

    @property
    def runs(self) -> torch.Tensor:
        """int32 [n, 3]."""
        return self.compact.to(torch.int32)

    @property
    def rows(self) -> int:
        return self.Bm * self.Hm * (self.kv_tiles if self.transposed else self.q_tiles)

    @property
    def columns(self) -> int:
        """Tiles along a row."""
        return self.q_tiles if self.transposed else self.kv_tiles

    @property
    def device(self) -> torch.device:
        return self.compact.device

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        return self.row_ptr.nbytes + self.compact.nbytes

    def to(self, device: torch.device | str) -> "Spans":
        """The same spans on another device, from the CPU in one copy, which is not waited for."""
        device = torch.device(device)
        if self.device.type != "cpu" or device.type == "cpu":
            return replace(self, row_ptr=self.row_ptr.to(device), compact=self.compact.to(device))
        there = send(self.row_ptr.numpy(), self.compact.numpy(), device)
        return Spans(*there, self.q_tile, self.kv_tile, self.q_len, self.kv_len, self.Bm, self.Hm, self.transposed, self.halved)

    def row(self, mb: int, mh: int, tile: int) -> list[tuple[int, int, Kind]]:
        """The runs of one row, as Python numbers."""
        per_head = self.kv_tiles if self.transposed else self.q_tiles
        r = ((mb % self.Bm) * self.Hm + mh % self.Hm) * per_head + tile
        begin, end = self.row_ptr[r:r + 2].tolist()
        return [(a, b, Kind(k)) for a, b, k in self.compact[begin:end].tolist()]

    @cached_property
    def mean_keys(self) -> float:
        """Keys in the tiles that a row of tiles holds, on average over the rows that hold any."""
        rows = int((self.row_ptr[1:] > self.row_ptr[:-1]).sum())
        tiles = int((self.compact[:, 1].long() - self.compact[:, 0].long()).sum())
        return tiles * (self.q_tile if self.transposed else self.kv_tile) / max(1, rows)

    def counts(self) -> dict[Kind, int]:
        """Tiles of each kind, over all stored batches and heads."""
        runs = self.compact.cpu().numpy().astype(np.int64)
        length = runs[:, 1] - runs[:, 0]
        partial, full = (int(length[runs[:, 2] == kind].sum()) for kind in (Kind.PARTIAL, Kind.FULL))
        return {Kind.EMPTY: self.rows * self.columns - partial - full, Kind.PARTIAL: partial, Kind.FULL: full}

    def states(self) -> torch.Tensor:
        """The kind of every tile, uint8 [Bm, Hm, q_tiles, kv_tiles] on the CPU, whichever way the spans are stored."""
        runs = self.compact.cpu().numpy().astype(np.int64)
        row = np.repeat(np.arange(self.rows), np.diff(self.row_ptr.cpu().numpy()))
        width = self.columns + 1
        change = np.zeros(self.rows * width, np.int8)
        np.add.at(change, row * width + runs[:, 0], runs[:, 2].astype(np.int8))
        np.add.at(change, row * width + runs[:, 1], -runs[:, 2].astype(np.int8))
        kinds = np.cumsum(change.reshape(self.rows, width), axis=1, dtype=np.int8)[:, :-1].astype(np.uint8)
        kinds = kinds.reshape(self.Bm, self.Hm, -1, self.columns)
        return torch.from_numpy(np.ascontiguousarray(kinds.swapaxes(2, 3) if self.transposed else kinds))


def check_tiles(q_tile: int, kv_tile: int) -> None:
    """Raises ShapeError unless both are positive ints."""
    if type(q_tile) is type(kv_tile) is int and q_tile > 0 and kv_tile > 0:
        return
    if not all(isinstance(x, int) and not isinstance(x, bool) and x >= 1 for x in (q_tile, kv_tile)):
        raise ShapeError(f"q_tile={q_tile!r}, kv_tile={kv_tile!r}: tile sizes are positive numbers of positions")


@dataclass(frozen=True)
class Tiling(Grid):
    """The grid a mask is cut into: lengths and tile sizes in positions, and how many batches and heads are told apart."""

    q_tile: int
    kv_tile: int
    q_len: int
    kv_len: int
    Bm: int = 1
    Hm: int = 1

    @property
    def has_no_positions(self) -> bool:
        return 0 in (self.q_len, self.kv_len, self.Bm)

    def spans(self, row_ptr: np.ndarray, runs: np.ndarray, transposed: bool, device: torch.device | None = None) -> Spans:
        """Spans of the given arrays: over them on the CPU, or on a device, as `Spans.to` brings them there."""
        if device is None or device.type == "cpu":
            arrays = torch.from_numpy(row_ptr), torch.from_numpy(runs)
        else:
            arrays = send(row_ptr, runs, device)
        return Spans(*arrays, self.q_tile, self.kv_tile, self.q_len, self.kv_len, self.Bm, self.Hm, transposed)


def spans_from_states(states: np.ndarray, tiling: Tiling, transposed: bool = False) -> Spans:
    """Spans of a dense map of kinds, uint8 [Bm, Hm, q_tiles, kv_tiles] (any layout)."""
    if transposed:
        states = states.swapaxes(2, 3)
    return tiling.spans(*runs_of_states(states.reshape(-1, states.shape[-1])), transposed)


def runs_of_states(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr, runs), as in Spans, of kinds, uint8 [rows, columns]."""
    rows, columns = states.shape
    # One column of EMPTY at the end closes the last run of a row; a change of kind is then a boundary wherever it is.
    padded = np.zeros((rows, columns + 1), np.uint8)
    padded[:, :-1] = states
    flat = padded.reshape(-1)
    change = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    if flat.size and flat[0]:
        change = np.concatenate([np.zeros(1, change.dtype), change])
    kind = flat[change]
    starts = np.flatnonzero(kind)
    row, begin = np.divmod(change[starts], columns + 1)
    runs = np.empty((starts.size, 3), run_type(columns))
    runs[:, 0] = begin
    # Every run ends at the next change of its own row: at the latest at the closing column.
    runs[:, 1] = change[starts + 1] - row * (columns + 1) if starts.size else 0
    runs[:, 2] = kind[starts]
    return row_pointer(row, rows), runs


def spans_of_masks(found: Sequence[tuple[np.ndarray, np.ndarray]], tiling: Tiling, transposed: bool,
                   device: torch.device | None = None) -> Spans:
    """Spans of all batches and heads, from (row_ptr, runs) of each in turn; device: as in `Tiling.spans`."""
    pointer, runs = found[0]
    for more_pointer, _ in found[1:]:
        pointer = np.concatenate([pointer, pointer[-1] + more_pointer[1:]])
    return tiling.spans(pointer, runs if len(found) == 1 else np.concatenate([r for _, r in found]), transposed, device)


def spans_of_nothing(tiling: Tiling, transposed: bool = False) -> Spans:
    """Spans without runs."""
    rows = tiling.Bm * tiling.Hm * (tiling.kv_tiles if transposed else tiling.q_tiles)
    columns = tiling.q_tiles if transposed else tiling.kv_tiles
    return tiling.spans(np.zeros(rows + 1, np.int32), np.empty((0, 3), run_type(columns)), transposed)


def spans_from_segments(row: np.ndarray, begin: np.ndarray, end: np.ndarray, kind: np.ndarray, tiling: Tiling,
                        transposed: bool = False) -> Spans:
    """Spans of disjoint segments in any order, int64 [n] each; neighbours of one kind are merged."""
    rows = tiling.Bm * tiling.Hm * (tiling.kv_tiles if transposed else tiling.q_tiles)
    columns = tiling.q_tiles if transposed else tiling.kv_tiles
    return tiling.spans(*runs_of_segments(row, begin, end, kind, rows, columns), transposed)


def runs_of_segments(row: np.ndarray, begin: np.ndarray, end: np.ndarray, kind: np.ndarray, rows: int,
                     columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr, runs) of `rows` rows with at most `columns` tiles, from segments as `spans_from_segments` takes them, kinds at
    most 3."""
    bits = int(columns).bit_length()
    if int(rows).bit_length() + 2 * bits + 2 <= 63:
        # One integer a segment sorts several times faster than an indirect sort.
        key = np.sort((((row << bits | begin) << bits | end) << 2) | kind)
        low = (1 << bits) - 1
        kind, end, begin, row = key & 3, key >> 2 & low, key >> (2 + bits) & low, key >> (2 + 2 * bits)
    else:
        order = np.lexsort((begin, row))
        row, begin, end, kind = row[order], begin[order], end[order], kind[order]
    return runs_in_order(*joined(row, begin, end, kind), rows, columns)


def joined(row: np.ndarray, begin: np.ndarray, end: np.ndarray, kind: np.ndarray) -> tuple[np.ndarray, ...]:
    """(row, begin, end, kind) of disjoint segments in order, neighbours of one kind made one."""
    apart = (row[1:] != row[:-1]) | (begin[1:] != end[:-1]) | (kind[1:] != kind[:-1])
    if apart.all():
        return row, begin, end, kind
    first, last = np.ones(row.size, bool), np.ones(row.size, bool)
    first[1:], last[:-1] = apart, apart
    return row[first], begin[first], end[last], kind[first]


def runs_in_order(row: np.ndarray, begin: np.ndarray, end: np.ndarray, kind: np.ndarray, rows: int,
                  columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr, runs) of segments that are the runs: in order of rows and columns, disjoint and maximal."""
    runs = np.empty((row.size, 3), run_type(columns))
    runs[:, 0], runs[:, 1], runs[:, 2] = begin, end, kind
    return row_pointer(row, rows), runs


def run_type(columns: int) -> type:
    """The integer type that runs of so many columns are held in."""
    return np.int16 if columns < 2**15 else np.int32


def row_pointer(row: np.ndarray, rows: int) -> np.ndarray:
    """int32 [rows + 1]: where the entries of each row begin, of entries whose rows ascend."""
    pointer = np.zeros(rows + 1, np.int32)
    np.bincount(row, minlength=rows).cumsum(dtype=np.int32, out=pointer[1:])
    return pointer


def counted(first: np.ndarray | int, count: np.ndarray) -> np.ndarray:
    """first, first + 1, ... of each, as many as its count, one after another."""
    end = count.cumsum()
    return np.arange(int(end[-1]) if end.size else 0) + (first - end + count).repeat(count)
