"""From spans to the records a kernel reads: order the rows, split where it pays, never worse than the natural order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flexfa4.threads import cached_property

from .lpt import lpt_order, natural_order
from .simulate import Timeline, latest_end, makespan, simulate
from .split import Filling, fill
from .work import UNSPLIT, CostModel, Work, WorkTile

# A split must save this many tile units of makespan. On an H200 the combine takes 8 to 15 us and 3 us until it runs, as long as
# 8 to 14 tiles of 128 x 128 at D=128; but a schedule is to be within five tiles of the even share.
SPLIT_GAIN = 3.0
# Work tiles a worker beyond which an order is taken as it is where it is known to end within this share of the bound for all:
# the simulation of an order takes 0.25 us a work tile, 130 ms for 64 heads of a million tokens.
_MANY, _NEAR = 32, 1 / 256
# And where its simulation ends within so many tiles besides.
_TILES = 5.0
# Makespans that differ by less are the same but for rounding.
_SAME = 1e-9


@dataclass(frozen=True, eq=False)
class Schedule:
    """Work tiles in launch order.

    tiles: int32 [n, 6], a `WorkTile` each; costs: float64 [n]. Row i of `combine_rows` (int32 [m, 3]: batch, head, q_tile) was
    split; its partial results are in slots combine_ptr[i] .. combine_ptr[i + 1] (int32 [m + 1]), in ascending KV order.
    `row_total` is the cost of the work before splitting; `strategy` says which order won.
    """

    tiles: np.ndarray
    costs: np.ndarray
    combine_rows: np.ndarray
    combine_ptr: np.ndarray
    workers: int
    row_total: float
    strategy: str

    def __len__(self) -> int:
        return len(self.tiles)

    def __getitem__(self, i: int) -> WorkTile:
        return WorkTile(*self.tiles[i].tolist())

    @property
    def parts(self) -> int:
        """Slots for partial results that the launch needs."""
        return int(self.combine_ptr[-1])

    @cached_property
    def timeline(self) -> Timeline:
        return simulate(self.costs, self.workers)

    @property
    def makespan(self) -> float:
        return self.timeline.makespan

    @property
    def bound(self) -> float:
        """The unsplit work shared evenly: what no schedule beats."""
        return self.row_total / self.workers


def make_schedule(
    work: Work, workers: int, per_section: int | None = None, cost: CostModel = CostModel(), split: bool = True
) -> Schedule:
    """The best of: longest-first inside sections of `per_section` KV heads (all heads in one section where None), the same with
    rows split to fill every worker, and the natural order; the first where rows are many and none of the others can be shorter
    by more than `_NEAR`, be it known at once, or by simulating this one, and then by no more than `_TILES` either. `workers` is
    the number of CTAs (or clusters) resident at once."""
    costs = work.costs(cost)
    total = float(costs.sum())
    order = work.with_queries(lpt_order(work, costs, per_section or max(1, work.batch * work.kv_heads)))
    chosen, strategy, filling = order, "longest first", None
    ordered, even = costs[order], total / workers
    near = (1 + _NEAR) * even if len(order) > _MANY * workers else 0.0
    if latest_end(ordered, workers) <= near or (best := makespan(ordered, workers)) <= min(near, even + _TILES):
        return _unsplit(work, order, costs, workers, strategy, total)
    in_turn = work.with_queries(natural_order(work))
    natural = makespan(costs[in_turn], workers)
    if natural < best * (1 - _SAME):
        best, chosen, strategy = natural, in_turn, "natural"
    if split and best > even + SPLIT_GAIN:
        attempt = fill(work, order, costs, workers, cost)
        if (
            attempt is not None
            and attempt.pieces
            and makespan(_filled_costs(order, costs, attempt), workers) + SPLIT_GAIN <= best
        ):
            chosen, strategy, filling = order, "longest first, split", attempt
    if filling is None:
        return _unsplit(work, chosen, costs, workers, strategy, total)
    tiles, rows, ptr = _split_tiles(work, chosen, filling)
    return Schedule(tiles, _filled_costs(chosen, costs, filling), rows, ptr, workers, total, strategy)


def _unsplit(work: Work, order: np.ndarray, costs: np.ndarray, workers: int, strategy: str, total: float) -> Schedule:
    nothing = np.zeros((0, 3), np.int32), np.zeros(1, np.int32)
    return Schedule(_whole_tiles(work, order), costs[order], *nothing, workers, total, strategy)


def _filled_costs(order: np.ndarray, costs: np.ndarray, filling: Filling) -> np.ndarray:
    return np.concatenate([costs[order[filling.whole]], np.array([p.cost for p in filling.pieces], np.float64)])


def _whole_tiles(work: Work, rows: np.ndarray) -> np.ndarray:
    tiles = np.empty((len(rows), 6), np.int32)
    tiles[:, 0], tiles[:, 1], tiles[:, 2] = work.coordinates(rows)
    tiles[:, 3], tiles[:, 4] = work.kv_bounds(rows)
    tiles[:, 5] = UNSPLIT
    return tiles


def _split_tiles(work: Work, order: np.ndarray, filling: Filling) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records of whole rows and pieces, the rows to combine, and where each row's parts begin."""
    pieces = _whole_tiles(work, np.array([p.row for p in filling.pieces], np.int64))
    pieces[:, 3] = [p.begin for p in filling.pieces]
    pieces[:, 4] = [p.end for p in filling.pieces]
    cut = [i for i, p in enumerate(filling.pieces) if not p.whole]
    cut.sort(key=lambda i: (filling.pieces[i].row, filling.pieces[i].begin))
    pieces[cut, 5] = np.arange(len(cut))
    rows, counts = np.unique([filling.pieces[i].row for i in cut], return_counts=True)
    ptr = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=ptr[1:])
    combine = np.stack(work.coordinates(rows.astype(np.int64)), axis=1).astype(np.int32)
    return np.concatenate([_whole_tiles(work, order[filling.whole]), pieces]), combine.reshape(-1, 3), ptr
