"""Ranges of captured tensors over intervals of indices: tables built once a tensor, read for many rectangles at once."""
from __future__ import annotations

from typing import Sequence

import numpy as np
import torch

from flexfa4.ir import DType, Node

from .device_labels import HostTensors
from .indices import spreads, wrapped
from .interval_values import INF, WHOLE, Interval, Space, either, top
from .labels import LabelPair, LabelTable
from .tables import BlockTable, GridTable, RunTable, runs_of

# A row table of runs pays while runs are this much longer than one element.
_RUN_LENGTH = 8


class Tables:
    """The captured tensors of one analysis, and every table made of them so far."""

    def __init__(self, tensors: Sequence[torch.Tensor], space: Space):
        self.tensors, self.space = tensors, space
        self._made: dict = {}

    def labels(self, pair: LabelPair) -> LabelTable | None:
        """The table of an equality test; None where its labels have no runs to speak of."""
        found = self._made.get(pair, self)               # itself: not made yet
        if found is self:
            found = self._made[pair] = self._labels(pair)
        return found

    def _labels(self, pair: LabelPair) -> LabelTable | None:
        if type(self.tensors) is HostTensors and len(pair.captures) == 1:
            runs = self.tensors.runs(pair.captures[0])
            if runs is not None:
                return LabelTable(pair, runs, tuple(self.tensors[pair.captures[0]].shape), (runs.length,), self.space)
        return LabelTable.make(pair, [self._array(c) for c in pair.captures], self.space)

    def load(self, n: Node, index: list[Interval]) -> Interval:
        """Bounds of a look-up at intervals of indices, with `poison` where one may be out of range."""
        tensor = self.tensors[n.attr]
        if not n.args:
            return self._number(tensor, n.dtype)
        if not tensor.numel():
            return top(n.dtype, True)
        poison, places, spread = False, [], []
        for dim, (arg, at) in enumerate(zip(n.args, index)):
            lo, hi, bad = wrapped(self.space, at, tensor.shape[dim])
            poison = either(either(poison, at.poison), bad)
            places.append((lo, hi))
            if spreads(arg):
                spread.append(dim)
        table = self._table(n.attr, tuple(spread))
        lo, hi = table.bounds(places)
        if n.dtype.is_bool:
            return Interval(lo != 0, hi != 0, False, poison)
        least, most = table.limits
        nan = table.has_nan
        return Interval(lo, hi, nan, poison, least, most)

    def run_starts(self, n: Node) -> np.ndarray | None:
        """Sorted positions at which a new run begins in any row that a LOAD reads along its only spread index; None
        where its table is not made of runs."""
        made = [m for key, m in self._made.items() if isinstance(m, RunTable) and key[0] == n.attr]
        made += [m for m in self._made.values() if isinstance(m, LabelTable) and n in m.pair.loads and len(m.sizes) == 1]
        if not made:
            return None
        runs = made[0].runs
        return np.unique(runs.starts % runs.length) if runs.starts.size > 1 else runs.starts

    def _number(self, tensor: torch.Tensor, dtype: DType) -> Interval:
        value = tensor.detach().cpu().item()
        if dtype.is_float:
            if value != value:
                return Interval(-INF, INF, True)
            whole = int(value) if value.is_integer() and abs(value) <= WHOLE[dtype] else None
            return Interval(value, value, least=whole, most=whole)
        return Interval(value, value) if dtype.is_bool else Interval(value, value, least=value, most=value)

    def _array(self, capture: int) -> np.ndarray:
        """The values on the host, integers in their own type, floats that numpy lacks as float32; no copy where none
        is needed."""
        key = ("array", capture)
        if key not in self._made:
            t = self.tensors[capture]
            t = t if t.is_cpu and not t.requires_grad else t.detach().cpu()
            if t.dtype.is_floating_point:
                t = (t.float() if t.dtype is torch.bfloat16 else t).resolve_neg()
            self._made[key] = t.numpy()
        return self._made[key]

    def _table(self, capture: int, spread: tuple[int, ...]):
        key = (capture, spread)
        if key not in self._made:
            values = self._array(capture)
            values = values.view(np.uint8) if values.dtype == np.bool_ else values
            self._made[key] = self._make(values, spread)
        return self._made[key]

    def _make(self, values: np.ndarray, spread: tuple[int, ...]):
        if len(spread) != 1:
            return GridTable(values, spread, self.space)
        # An axis that a broadcast view repeats is read at 0.
        rows = np.moveaxis(values, spread[0], -1)
        runs = runs_of(rows.reshape(-1, rows.shape[-1]))
        if runs is not None and runs.starts.size * _RUN_LENGTH <= values.size:
            return RunTable(runs, values.shape, spread[0], self.space)
        return BlockTable(values, spread[0], self.space)
