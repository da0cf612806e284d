"""The deterministic backward: work tiles are KV tiles, and each adds its part of dQ to a query tile in a fixed order.

The order of addition is the launch order of the KV tiles, kept by a counter a query tile. A worker whose turn has not come
stalls, and so does everybody behind it. Longest first is a poor choice for a causal mask: the long KV tiles all start on the
same query tiles. Shortest first, walking the query tiles from the diagonal on, staggers them: KV tile j starts on query tile j,
which no earlier one touched, and finds each further query tile one step done (the deterministic mode of FlashAttention-4
launches shortest first). `simulate_deterministic` counts the stalls.
"""
from __future__ import annotations

from dataclasses import dataclass
from heapq import heapreplace

import numpy as np

from .lpt import balanced_sections
from .work import FULL, CostModel, Work


@dataclass(frozen=True)
class DeterministicBackward:
    """Makespan, and the share of it that workers spent waiting for a turn."""

    makespan: float
    stalled: float


def shortest_first(work: Work, costs: np.ndarray, per_section: int) -> np.ndarray:
    """int32 [rows]: a permutation of the work rows of a transposed mask (`q_tiles` counts KV tiles there). Sections of heads in
    order, costs ascending inside a head, ties by KV tile descending (for a causal mask the order in which rows get
    longer). The heads of a section advance side by side: only KV tiles of one head wait for each other.
    """
    heads = work.batch * work.heads
    group = work.heads // work.kv_heads
    section = np.repeat(balanced_sections(work.batch * work.kv_heads, per_section), group)
    rows = np.arange(work.rows, dtype=np.int32).reshape(heads, work.q_tiles)[:, ::-1]
    by_cost = np.argsort(costs[rows], axis=1, kind="stable")
    ranked = np.take_along_axis(rows, by_cost, axis=1)
    parts = [ranked[section == s].T.reshape(-1) for s in range(int(section.max(initial=-1)) + 1)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def simulate_deterministic(work: Work, order: np.ndarray, workers: int, cost: CostModel = CostModel(),
                           descending: bool = False) -> DeterministicBackward:
    """List scheduling of `order` where tile (row, t) may start only after every earlier row of the same head in the order has
    done its tile t. Rows walk their tiles descending or ascending. Time per tile as in the cost model, the fixed part first.

    Python over every tile: for studies and tests, not for a launch.
    """
    ready: dict[int, np.ndarray] = {}
    free = [0.0] * workers
    stalled = finish = 0.0
    heads = work.coordinates(order.astype(np.int64))
    for row_head, mask_row in zip((heads[0] * work.heads + heads[1]).tolist(), work.mask_rows(order.astype(np.int64)).tolist()):
        tiles, rates = _tiles(work, mask_row, cost)
        if descending:
            tiles, rates = tiles[::-1], rates[::-1]
        gate = ready.setdefault(row_head, np.zeros(int(work.runs[:, 1].max(initial=0))))
        # end_i = max(end_{i-1}, gate_i) + rate_i, solved at once: subtract the work done so far, then a running maximum.
        done = np.cumsum(rates)
        begin = free[0] + cost.fixed
        ends = np.maximum.accumulate(np.maximum(gate[tiles], begin) - (done - rates)) + done if len(tiles) else done
        gate[tiles] = ends
        end = float(ends[-1]) if len(tiles) else begin
        stalled += end - begin - float(rates.sum())
        finish = max(finish, end)
        heapreplace(free, end)
    return DeterministicBackward(finish, stalled / (workers * finish) if finish else 0.0)


def _tiles(work: Work, mask_row: int, cost: CostModel) -> tuple[np.ndarray, np.ndarray]:
    """The tiles of a row, ascending, and the cost of each."""
    runs = work.runs[work.row_ptr[mask_row]:work.row_ptr[mask_row + 1]]
    if len(runs) == 0:
        return np.zeros(0, np.int64), np.zeros(0)
    tiles = np.concatenate([np.arange(b, e) for b, e, _ in runs.tolist()])
    return tiles, np.repeat(np.where(runs[:, 2] == FULL, cost.full, cost.partial), runs[:, 1] - runs[:, 0])
