"""What a kernel launch reads besides the inputs, on the device and kept with the mask: spans, and the order of the work."""
from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from flexfa4.plan import Plan
from flexfa4.schedule import FULL, CostModel, Schedule, Work, make_schedule, row_costs, section_kv_heads
from flexfa4.schedule.build import SPLIT_GAIN
from flexfa4.schedule.lpt import L2_BYTES, ranked_rows
from flexfa4.schedule.work import UNSPLIT
from flexfa4.sparsity import Spans
from flexfa4.sparsity.rebuild import FixedSpans
from flexfa4.sparsity.spans import Tiling
from flexfa4.sparsity.work_spans import WorkSpans

from . import capture


@dataclass(frozen=True, eq=False)
class Lists:
    """row_ptr, runs, batch_stride, head_stride, tiles: a mask's spans as `flexfa4.kernels.arguments.Lists` has them, None without
    a mask; halved: theirs; work: int32 [n, 6], None for the natural order. parts: how many pieces rows were split into;
    combine_rows: int32 [m, 4], (batch, head, first query, queries) of a split row, and combine_ptr:
    `flexfa4.schedule.Schedule`'s; None without."""

    row_ptr: Tensor | None = None
    runs: Tensor | None = None
    batch_stride: int = 0
    head_stride: int = 0
    tiles: Tensor | None = None
    work: Tensor | None = None
    parts: int = 0
    combine_rows: Tensor | None = None
    combine_ptr: Tensor | None = None
    halved: bool = False


NO_MASK = Lists()

# Of the work of a mask. What is left are short rows, which come last in a section.
_MOST = 0.75

_made: "weakref.WeakKeyDictionary[Spans | WorkSpans | FixedSpans, dict[tuple, Lists]]" = weakref.WeakKeyDictionary()


def lists_of(spans: Spans | WorkSpans, plan: Plan, query: Tensor, key: Tensor, split: bool = True) -> Lists:
    """The lists of a call whose mask has these spans (on the CPU, at the plan's tiles), on the query's device. Made once for
    each batch and head count, and kept as long as the spans. split: whether rows may be."""
    call = *heads_of(plan, query, key), workers_of(query.device) // plan.ctas, split
    kept = _made.setdefault(spans, {})
    found = kept.get((call, query.device))
    if found is None:
        made = schedule_of(spans, work_of(spans, call[:3]), plan, key, call[3], split)
        with capture.beside(query.device):
            found = kept[call, query.device] = make_lists(spans, made, query.device)
    return found


def fixed_lists(spans: FixedSpans, plan: Plan, query: Tensor, key: Tensor) -> Lists:
    """The lists of a call over spans that are written on the device, its rows longest first whatever they are; none is split.
    Made once for each batch and head count, and kept as long as the spans."""
    call, device = (*heads_of(plan, query, key), section_of(plan, key)), query.device
    kept = _made.setdefault(spans, {})
    if call not in kept:
        per_batch, per_head = _strides(spans.tiling)
        batch, head, rank = ranked_rows(*call[:3], spans.tiling.q_tiles, call[3]).T
        places = (batch % spans.tiling.Bm * spans.tiling.Hm + head % spans.tiling.Hm) * spans.tiling.q_tiles + rank
        # Some order, where the spans are only written when a graph is replayed.
        order = spans.tiling.q_tiles - 1 - rank
        tiles = np.stack([batch, head, order, 0 * rank, 0 * rank + spans.tiling.kv_tiles, 0 * rank + UNSPLIT], axis=1)
        with capture.beside(device):
            places, work = torch.from_numpy(places).to(device), torch.from_numpy(tiles.astype(np.int32)).to(device)
        spans.follow(places, work[:, 2])
        kept[call] = Lists(spans.row_ptr, spans.runs, per_batch, per_head, None, work, halved=spans.halved)
    return kept[call]


def section_of(plan: Plan, key: Tensor, keys: int | None = None) -> int:
    """KV heads whose keys and values stay in L2 together; keys: of a head, where not all count."""
    keys = key.shape[2] if keys is None else keys
    return section_kv_heads(keys, key.shape[3], plan.tiles.head_dim_v, key.element_size(), L2_BYTES[plan.arch])


def schedule_of(spans: Spans | WorkSpans, work: Work, plan: Plan, key: Tensor, workers: int, split: bool = True) -> Schedule:
    """Where rows would be split, larger sections may make that needless: of an outsize document among short ones, its keys are
    all that the rows that come first read."""
    found = make_schedule(work, workers, section_of(plan, key), split=split)
    if found.parts:
        section = section_of(plan, key, most_keys(spans, work))
        if section > section_of(plan, key):
            whole = make_schedule(work, workers, section, split=False)
            return whole if whole.makespan <= found.makespan + SPLIT_GAIN else found
    return found


def most_keys(spans: Spans | WorkSpans, work: Work) -> int:
    """Keys of a head from the first to the last one that the longest rows see, down to those that make up `_MOST` of the work."""
    costs = row_costs(work.row_ptr, work.runs, CostModel(), work.halved)
    costs = np.where(work.row_ptr[1:] > work.row_ptr[:-1], costs, 0.0)
    rows = np.argsort(-costs, kind="stable")
    rows = rows[:1 + int(np.searchsorted(np.cumsum(costs[rows]), _MOST * costs.sum()))]
    rows = rows[costs[rows] > 0]
    begin = work.runs[work.row_ptr[rows], 0] * spans.kv_tile
    end = work.runs[work.row_ptr[rows + 1] - 1, 1] * spans.kv_tile
    if isinstance(spans, WorkSpans):
        first, last = spans.tiles.numpy()[rows, 2:].T
        begin, end = begin + first, np.minimum(end + first, last)
    return int(end.max(initial=1) - begin.min(initial=end.max(initial=1) - 1))


def _strides(rows: Spans | WorkSpans | Tiling) -> tuple[int, int]:
    """From a batch, and from a head, to the next one in the rows of spans; 0 where they share them."""
    return rows.Hm * rows.q_tiles if rows.Bm > 1 else 0, rows.q_tiles if rows.Hm > 1 else 0


def make_lists(spans: Spans | WorkSpans | None, schedule: Schedule | None, device: torch.device | str = "cpu",
               grid: tuple[int, int] | None = None) -> Lists:
    """schedule: None for the natural order, which WorkSpans do not have. grid: (queries of a work tile, queries), for a schedule
    without spans."""
    found = Lists()
    if spans is not None:
        # The kernel may read one record of a list that holds none.
        runs = spans.runs if len(spans.runs) else torch.zeros(1, 3, dtype=torch.int32, device="cpu")
        per_batch, per_head = _strides(spans)
        tiles = spans.tiles.to(device) if isinstance(spans, WorkSpans) else None
        found = Lists(spans.row_ptr.to(device), runs.to(device), per_batch, per_head, tiles, halved=spans.halved)
    if schedule is not None:
        found = replace(found, work=torch.from_numpy(schedule.tiles).to(device))
        if schedule.parts:
            rows = torch.from_numpy(_positions(spans, schedule.combine_rows, grid))
            found = replace(found, parts=schedule.parts, combine_rows=rows.to(device),
                            combine_ptr=torch.from_numpy(schedule.combine_ptr).to(device))
    return found


def _positions(spans: Spans | WorkSpans | None, rows: np.ndarray, grid: tuple[int, int] | None) -> np.ndarray:
    """(batch, head, first query, queries) of work rows (batch, head, q_tile): int32 [m, 4]."""
    batch, head, tile = rows.T
    if isinstance(spans, WorkSpans):
        row = ((batch if spans.Bm > 1 else 0) * spans.Hm + (head if spans.Hm > 1 else 0)) * spans.q_tiles + tile
        first, end = spans.tiles.numpy()[row, :2].T
    else:
        height, q_len = grid if spans is None else (spans.q_tile, spans.q_len)
        first = tile * height
        end = np.minimum(first + height, q_len)
    return np.stack([batch, head, first, end - first], axis=1).astype(np.int32)


def heads_of(plan: Plan, query: Tensor, key: Tensor) -> tuple[int, int, int]:
    """(batch, query heads, key heads) as work items count them: query heads that share a query tile are one."""
    heads, kv_heads = query.shape[1], key.shape[1]
    return query.shape[0], heads // min(heads // kv_heads, plan.pack), kv_heads


def work_of(spans: Spans | WorkSpans, heads: tuple[int, int, int]) -> Work:
    """heads: `heads_of` a call."""
    present = spans.present if isinstance(spans, WorkSpans) else None
    return Work(spans.row_ptr.cpu().numpy(), spans.runs.cpu().numpy(), *heads, spans.Bm, spans.Hm, present, spans.halved)


def dense_lists(plan: Plan, query: Tensor, key: Tensor) -> Lists:
    """The lists of a call without a mask: rows in natural order, unless they are too few for the device and are split."""
    rows, heads = -(-query.shape[2] // plan.q_tile), heads_of(plan, query, key)
    workers = workers_of(query.device) // plan.ctas
    if rows * heads[0] * heads[1] >= 2 * workers:
        return NO_MASK
    return _dense(plan, query, key, workers, True)


def dense_lists_for(plan: Plan, query: Tensor, key: Tensor) -> Lists:
    """The same for a kernel that has been chosen: one that splits rows reads a list of them all, another one splits none."""
    return _dense(plan, query, key, workers_of(query.device) // plan.ctas, False) if plan.split else NO_MASK


def _dense(plan: Plan, query: Tensor, key: Tensor, workers: int, needed: bool) -> Lists:
    """needed: only where rows are split."""
    kv_tiles = -(-key.shape[2] // plan.tiles.kv_tile)
    return _made_dense((plan.q_tile, query.shape[2]), kv_tiles, heads_of(plan, query, key), workers, query.device, needed)


@lru_cache(maxsize=256)
def _made_dense(grid: tuple[int, int], kv_tiles: int, heads: tuple[int, int, int], workers: int, device: torch.device,
                needed: bool) -> Lists:
    """grid: as `make_lists` takes it."""
    schedule = dense_schedule((-(-grid[1] // grid[0]), kv_tiles), heads, workers)
    with capture.beside(device):
        return make_lists(None, schedule, device, grid) if schedule.parts or not needed else NO_MASK


def dense_schedule(tiles: tuple[int, int], heads: tuple[int, int, int], workers: int) -> Schedule:
    """Of a call without a mask; tiles: (query, key) tiles."""
    q_tiles, kv_tiles = tiles
    runs = np.tile(np.array([[0, kv_tiles, FULL]], np.int32), (q_tiles, 1))
    return make_schedule(Work(np.arange(q_tiles + 1, dtype=np.int32), runs, *heads), workers)


@lru_cache(maxsize=None)
def workers_of(device: torch.device) -> int:
    """CTAs that run at once: one an SM."""
    return torch.cuda.get_device_properties(device).multi_processor_count
