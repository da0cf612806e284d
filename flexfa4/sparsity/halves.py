"""Spans of work tiles of two halves that see different tiles: kinds tell the two apart, so that a kernel loads a tile once and
leaves out what one of them does not see.

The kind of a run is `Kind` of the upper half of the rows + 4 * that of the lower half, EMPTY for at most one of them.
"""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from .spans import Kind, Spans, row_pointer, run_type, runs_of_states

_BITS = 2  # of a kind
_KIND = (1 << _BITS) - 1
# Runs paired together: some megabytes for all that is known of them.
_AT_ONCE = 1 << 18
# Tiles a run, up to which it is as good to go over the tiles.
_TILES_A_RUN = 32


def halved(spans: Spans) -> Spans:
    """From spans on the CPU whose query tiles are the halves: those of tiles of twice as many queries."""
    whole = replace(spans, q_tile=2 * spans.q_tile, halved=True)
    mask, tile = np.divmod(np.arange(spans.rows), max(1, spans.q_tiles))
    row_ptr, runs = paired(spans.row_ptr.numpy(), spans.compact.numpy(), mask * whole.q_tiles + tile // 2, tile % 2, whole.rows)
    runs = runs.astype(run_type(spans.columns), copy=False)
    return replace(whole, row_ptr=torch.from_numpy(row_ptr), compact=torch.from_numpy(runs))


def of_halves(kinds):
    """(upper, lower): `Kind`s, of an array or tensor of kinds that tell two halves apart."""
    return kinds & _KIND, kinds >> _BITS


def tiles_seen(runs: np.ndarray, apart: bool) -> tuple[int, int]:
    """Of runs [n, 3] of work tiles of two halves: tiles of half the rows that both work on together, and those of them in which
    keys are hidden. apart: kinds tell the halves apart; otherwise both work on all of them."""
    begin, end, kind = runs.astype(np.int64).T
    seen = hidden = 0
    for own in of_halves(kind) if apart else (kind, kind):
        seen += int((end - begin)[own != Kind.EMPTY].sum())
        hidden += int((end - begin)[(own != Kind.EMPTY) & (own != Kind.FULL)].sum())
    return seen, hidden


def paired(row_ptr: np.ndarray, runs: np.ndarray, row: np.ndarray, side: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr, runs int [n, 3]) of `rows` rows, each of two halves. row, side: int64, which row and which half (0 or 1) each row
    of the given runs is; rows that hold any ascend."""
    there = np.flatnonzero(row_ptr[1:] > row_ptr[:-1])
    line, place = row[there], 2 * row[there] + side[there]
    begin, end = row_ptr[there], row_ptr[there + 1]
    counts, parts, first = np.zeros(rows, np.int64), [np.zeros((0, 3), runs.dtype)], 0
    while first < there.size:
        last = max(first + 1, int(end.searchsorted(begin[first] + _AT_ONCE, "right")))
        last += last < there.size and line[last] == line[last - 1]
        low, high = int(line[first]), int(line[last - 1]) + 1
        of = (place[first:last] - 2 * low).repeat(end[first:last] - begin[first:last])
        part = runs[begin[first]:end[last - 1]]
        width = int(part[:, 1].max()) + 1
        few = part.shape[0] * _TILES_A_RUN < (high - low) * width
        pointer, found = (_by_changes if few else _by_tiles)(of, part, high - low, width)
        counts[low:high] = np.diff(pointer)
        parts.append(found)
        first = last
    pointer = np.zeros(rows + 1, np.int32)
    counts.cumsum(out=pointer[1:])
    return pointer, parts[1] if len(parts) == 2 else np.concatenate(parts)


def _by_changes(place: np.ndarray, runs: np.ndarray, rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr, runs) of `rows` rows, from runs of halves, half `place` % 2 of row `place` // 2 each; width: past all columns."""
    begin, end, kind = runs.astype(np.int64).T
    first = (place >> 1) * width
    kind = kind << _BITS * (place & 1)
    # Where a kind changes, and by how much; between changes that fall together nothing lies.
    at, change = np.concatenate([first + begin, first + end]), np.concatenate([kind, -kind])
    order = np.argsort(at, kind="stable")
    at, level = at[order], np.cumsum(change[order])
    last = np.concatenate([at[1:] != at[:-1], [True]])
    at, level = at[last], level[last]
    changed = np.concatenate([[True], level[1:] != level[:-1]])
    at, level = at[changed], level[changed]
    some = np.flatnonzero(level)
    line, start = np.divmod(at[some], width)
    found = np.empty((some.size, 3), runs.dtype)
    found[:, 0], found[:, 1], found[:, 2] = start, at[some + 1] - line * width, level[some]
    return row_pointer(line, rows), found


def _by_tiles(place: np.ndarray, runs: np.ndarray, rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """As `_by_changes`, where runs are of few tiles each: by way of the kind of every tile."""
    cuts = np.zeros(2 * len(runs) + 2, np.int64)
    cuts[1:-1].reshape(-1, 2)[:] = runs[:, :2] + (place * width)[:, None]
    cuts[-1] = 2 * rows * width
    kinds = np.zeros(2 * len(runs) + 1, np.uint8)
    kinds[1::2] = runs[:, 2]
    kinds = kinds.repeat(np.diff(cuts)).reshape(rows, 2, width)
    pointer, found = runs_of_states(kinds[:, 0] | kinds[:, 1] << _BITS)
    return pointer, found.astype(runs.dtype, copy=False)


def paired_states(states: torch.Tensor) -> torch.Tensor:
    """uint8 [..., q tiles, kv tiles] of halves: kinds of tiles of twice as many queries, [..., ceil(q tiles / 2), kv tiles]."""
    if states.shape[-2] % 2:
        states = torch.nn.functional.pad(states, (0, 0, 0, 1))
    return states[..., 0::2, :] | states[..., 1::2, :] << _BITS
