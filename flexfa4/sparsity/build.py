"""From a mask to its spans."""
from __future__ import annotations

import numpy as np

from flexfa4.ir.bound import BoundGraph

from .cells import settle, tile_cells
from .spans import Spans, Tiling, spans_from_states


def build_spans(bound: BoundGraph, tiling: Tiling, transposed: bool = False) -> Spans:
    """The spans of a mask on the CPU."""
    shape = (tiling.Bm * tiling.Hm, tiling.q_tiles, tiling.kv_tiles)
    row, q, k = (x.reshape(-1) for x in np.indices(shape))
    states = settle(bound, tile_cells(tiling, row, q, k))
    return spans_from_states(states.reshape(tiling.Bm, tiling.Hm, *shape[1:]), tiling, transposed)
