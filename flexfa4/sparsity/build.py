"""From a mask to its spans."""
from __future__ import annotations

from typing import Callable

import numpy as np
import torch

from flexfa4.facts.device_labels import fetch_labels, fits
from flexfa4.ir.bound import BoundGraph

from .bands import band_spans, refuse
from .data import TileData
from .host import on_cpu, on_host
from .refine import Refiner, Work
from .spans import Spans, Tiling, spans_from_states, spans_of_nothing
from .work_spans import WorkSpans, work_spans

# Elements that one build may evaluate to settle tiles: about a second on one core for a ten-op mask. Beyond it a tile that is not
# proven EMPTY or FULL stays PARTIAL.
SETTLE_BUDGET = 1 << 26


def spans_from_device(bound: BoundGraph, tiling: Tiling, transposed: bool,
                      here: Callable[[torch.Tensor], bool] = on_cpu) -> tuple[Spans, Work] | None:
    """As `build_spans`, from a few numbers a tile that the device of the captures has worked out, and waiting for it once; None
    where captures are `here`, where the mask is more than comparisons of positions and of labels, and where those numbers leave
    a tile open."""
    if not bound.tensors or all(map(here, bound.tensors)) or not fits(bound):
        return None
    tables = fetch_labels(bound, ((tiling.q_tile, tiling.q_len), (tiling.kv_tile, tiling.kv_len)))
    if tables is None:
        return None
    refiner = Refiner(bound, tiling, 0)
    refiner.analysis.tables.give_labels(tables)
    found = band_spans(refiner.analysis, tiling, transposed, refuse, refiner.work)
    return None if found is None else (found, refiner.work)


def build_spans(bound: BoundGraph, tiling: Tiling, transposed: bool = False, data: TileData | None = None,
                whole_mask: bool = True, budget: int = SETTLE_BUDGET) -> tuple[Spans, Work]:
    """The spans of a mask on the CPU, and what it took to build them.

    data: the table of kept tiles, for a mask given as data; whole_mask: the table is all there is to the mask.
    Labels on another device are worked out there (`spans_from_device`); else captures there are copied here, all in one transfer.
    Raises LookupOutOfRange where the mask depends on a look-up past the end of a capture.
    """
    if tiling.has_no_positions:
        return spans_of_nothing(tiling, transposed), Work()
    if data is None:
        found = spans_from_device(bound, tiling, transposed)
        if found is not None:
            return found
        refiner = Refiner(on_host(bound), tiling, budget)
        return refiner.spans(transposed), refiner.work
    states = data.states(tiling)
    if whole_mask:
        return spans_from_states(states, tiling, transposed), Work(tiles=states.size)
    refiner = Refiner(on_host(bound), tiling, budget)
    states = np.broadcast_to(states, (tiling.Bm, tiling.Hm, *states.shape[2:])).copy()
    flat = states.reshape(-1, *states.shape[2:])
    at = np.nonzero(flat)
    flat[at] = refiner.classify(*at)
    return spans_from_states(states, tiling, transposed), refiner.work


def build_work_spans(bound: BoundGraph, tiling: Tiling, budget: int = SETTLE_BUDGET) -> WorkSpans:
    """The spans of work tiles of a mask with label tests (`has_label_tests`), on the CPU; captures and errors as above."""
    return work_spans(on_host(bound), tiling, budget)
