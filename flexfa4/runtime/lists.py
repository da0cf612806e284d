"""What a kernel launch reads besides the inputs, on the device and kept with the mask: spans, and the order of the work."""
from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from flexfa4.plan import Plan
from flexfa4.schedule import Work, make_schedule, section_kv_heads
from flexfa4.schedule.lpt import L2_BYTES
from flexfa4.sparsity import Spans


@dataclass(frozen=True, eq=False)
class Lists:
    """row_ptr, runs, batch_stride, head_stride: a mask's spans as `flexfa4.kernels.arguments.Lists` has them, None without a
    mask; work: int32 [n, 6], None for the natural order."""

    row_ptr: Tensor | None = None
    runs: Tensor | None = None
    batch_stride: int = 0
    head_stride: int = 0
    work: Tensor | None = None


NO_MASK = Lists()

_made: "weakref.WeakKeyDictionary[Spans, dict[tuple, Lists]]" = weakref.WeakKeyDictionary()


def lists_of(spans: Spans, plan: Plan, query: Tensor, key: Tensor) -> Lists:
    """The lists of a call whose mask has these spans (on the CPU, at the plan's tiles), on the query's device. Made once for
    each batch and head count, and kept as long as the spans."""
    key_bytes = key.shape[2] * (key.shape[3] + plan.tiles.head_dim_v) * key.element_size()
    call = (query.shape[0], query.shape[1], key.shape[1], key_bytes, query.device)
    kept = _made.setdefault(spans, {})
    if call not in kept:
        per_section = section_kv_heads(key.shape[2], key.shape[3], plan.tiles.head_dim_v, key.element_size(), L2_BYTES[plan.arch])
        kept[call] = make_lists(spans, work_list(spans, call[:3], per_section, workers_of(query.device)), query.device)
    return kept[call]


def make_lists(spans: Spans, work: Tensor | None, device: torch.device | str = "cpu") -> Lists:
    # The kernel may read one record of a list that holds none.
    runs = spans.runs if len(spans.compact) else torch.zeros(1, 3, dtype=torch.int32)
    per_batch = spans.Hm * spans.q_tiles if spans.Bm > 1 else 0
    per_head = spans.q_tiles if spans.Hm > 1 else 0
    return Lists(spans.row_ptr.to(device), runs.to(device), per_batch, per_head, None if work is None else work.to(device))


def work_list(spans: Spans, heads: tuple[int, int, int], per_section: int, workers: int) -> Tensor:
    """int32 [n, 6] on the CPU; heads: (batch, query heads, key heads)."""
    work = Work(spans.row_ptr.cpu().numpy(), spans.runs.cpu().numpy(), *heads, spans.Bm, spans.Hm)
    return torch.from_numpy(make_schedule(work, workers, per_section, split=False).tiles)


@lru_cache(maxsize=None)
def workers_of(device: torch.device) -> int:
    """CTAs that run at once: one an SM."""
    return torch.cuda.get_device_properties(device).multi_processor_count
