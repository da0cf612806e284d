"""From a mask to its spans."""
from __future__ import annotations

import numpy as np
import torch

from flexfa4.ir.bound import BoundGraph

from .data import TileData
from .host import on_host
from .refine import Refiner, Work
from .spans import Spans, Tiling, spans_from_states, spans_of_nothing
from .work_spans import WorkSpans, work_spans

# Elements that one build may evaluate to settle tiles: about a second on one core for a ten-op mask. Beyond it a tile that is not
# proven EMPTY or FULL stays PARTIAL.
SETTLE_BUDGET = 1 << 26


def build_spans(bound: BoundGraph, tiling: Tiling, transposed: bool = False, data: TileData | None = None,
                whole_mask: bool = True, budget: int = SETTLE_BUDGET,
                device: torch.device | None = None) -> tuple[Spans, Work]:
    """The spans of a mask, and what it took to build them.

    data: the table of kept tiles, for a mask given as data; whole_mask: the table is all there is to the mask. device: where the
    spans are wanted: they are there or on the CPU, which is the default.
    Captures on another device are copied here with one wait for it (`on_host`).
    Raises LookupOutOfRange where the mask depends on a look-up past the end of a capture.
    """
    if tiling.has_no_positions:
        return spans_of_nothing(tiling, transposed), Work()
    host = on_host(bound)
    if data is None:
        refiner = Refiner(host, tiling, budget)
        return refiner.spans(transposed, device), refiner.work
    states = data.states(data.copy_in(bound, host), tiling)
    if whole_mask:
        return spans_from_states(states, tiling, transposed), Work(tiles=states.size)
    refiner = Refiner(host, tiling, budget)
    states = np.broadcast_to(states, (tiling.Bm, tiling.Hm, *states.shape[2:])).copy()
    flat = states.reshape(-1, *states.shape[2:])
    at = np.nonzero(flat)
    flat[at] = refiner.classify(*at)
    return spans_from_states(states, tiling, transposed), refiner.work


def check_lookups(bound: BoundGraph, tiling: Tiling, data: TileData | None = None, whole_mask: bool = True) -> None:
    """Raises LookupOutOfRange as `build_spans` does. Its work is done only where one look at the whole mask leaves a doubt."""
    if tiling.has_no_positions or not bound.tensors or data is not None and whole_mask:
        return
    host = on_host(bound)
    if Refiner(host, tiling, 0).may_look_past():
        build_spans(bound, tiling, data=data, whole_mask=whole_mask)


def build_work_spans(bound: BoundGraph, tiling: Tiling, budget: int = SETTLE_BUDGET, halved: bool = False) -> WorkSpans:
    """The spans of work tiles of a mask with label tests (`has_label_tests`), on the CPU; captures and errors as above. halved:
    with kinds for two halves of the queries of a tile (`halves`)."""
    return work_spans(on_host(bound), tiling, budget, halved)
