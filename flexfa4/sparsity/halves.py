"""Spans of work tiles of two halves that see different tiles: kinds tell the two apart, so that a kernel loads a tile once and
leaves out what one of them does not see.

The kind of a run is `Kind` of the upper half of the rows + 4 * that of the lower half, EMPTY for at most one of them.
"""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from .spans import Kind, Spans, row_pointer, run_type

_BITS = 2  # of a kind
_KIND = (1 << _BITS) - 1


def halved(spans: Spans) -> Spans:
    """From spans on the CPU whose query tiles are the halves: those of tiles of twice as many queries."""
    whole = replace(spans, q_tile=2 * spans.q_tile, halved=True)
    mask, tile = np.divmod(np.arange(spans.rows), max(1, spans.q_tiles))
    row_ptr, runs = paired(spans.row_ptr.numpy(), spans.compact.numpy(), mask * whole.q_tiles + tile // 2, tile % 2, whole.rows)
    return replace(whole, row_ptr=torch.from_numpy(row_ptr), compact=torch.from_numpy(runs.astype(run_type(spans.columns))))


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
    """(row_ptr, runs int64 [n, 3]) of `rows` rows, each of two halves. row, side: int64, which row and which half (0 or 1) each
    row of the given runs is."""
    of = np.repeat(np.arange(len(row_ptr) - 1), np.diff(row_ptr))
    begin, end, kind = runs.astype(np.int64).T
    width = int(end.max(initial=0)) + 1
    first = row[of] * width
    kind = kind << _BITS * side[of]
    # Where a kind changes, and by how much; between changes that fall together nothing lies.
    at, change = np.concatenate([first + begin, first + end]), np.concatenate([kind, -kind])
    order = np.argsort(at, kind="stable")
    at, level = at[order], np.cumsum(change[order])
    last = np.concatenate([at[1:] != at[:-1], np.ones(min(1, at.size), bool)])
    at, level = at[last], level[last]
    changed = np.concatenate([np.ones(min(1, at.size), bool), level[1:] != level[:-1]])
    at, level = at[changed], level[changed]
    some = np.flatnonzero(level)
    line, start = np.divmod(at[some], width)
    found = np.stack([start, at[some + 1] - line * width, level[some]], axis=1) if some.size else np.zeros((0, 3), np.int64)
    return row_pointer(line, rows), found


def paired_states(states: torch.Tensor) -> torch.Tensor:
    """uint8 [..., q tiles, kv tiles] of halves: kinds of tiles of twice as many queries, [..., ceil(q tiles / 2), kv tiles]."""
    if states.shape[-2] % 2:
        states = torch.nn.functional.pad(states, (0, 0, 0, 1))
    return states[..., 0::2, :] | states[..., 1::2, :] << _BITS
