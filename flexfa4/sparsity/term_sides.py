"""What each term of a mask (`facts/terms.py`) is over the tiles of the queries and over those of the keys."""
from __future__ import annotations

from typing import Iterator

import numpy as np
import torch

from flexfa4.facts.axes import axes
from flexfa4.facts.interval import Analysis
from flexfa4.facts.interval_values import Interval
from flexfa4.facts.labels import LabelPair, LabelTable
from flexfa4.facts.terms import Comparison, OneSided, Parts, Terms, order_of
from flexfa4.interpret import program
from flexfa4.ir import DType, Node, Op
from flexfa4.ir.dtypes import INT_RANGE

from .cells import Cells
from .label_runs import row_of, runs_along, sides_of
from .rectangles import Labels, labels_at
from .sides import Axis, Position, RunNumbers, Side


class Unfit(Exception):
    """A term is not one of an interval of columns in each row."""


class TermSides:
    """The terms of the mask of one batch and head, over given tiles. Iterating gives each term with its sides, which stay in
    `found`."""

    def __init__(self, analysis: Analysis, terms: Terms, q: Axis, kv: Axis, b: int, h: int):
        self.analysis, self.terms, self.q, self.kv, self.b, self.h = analysis, terms, q, kv, b, h
        self._named: dict[tuple, RunNumbers | Labels] = {}
        self.found: list[tuple] = []

    def __iter__(self) -> Iterator[tuple]:
        for term in self.terms.terms:
            self.found.append(self.of(term))
            yield term, self.found[-1]

    def of(self, term) -> tuple | Interval:
        """(query's side, key's side) of a comparison; the interval of a one-sided term, Booleans [3, n]. Unfit where it may be
        NaN or read out of range, or wrap around."""
        if isinstance(term, OneSided):
            return self._interval(self.q if term.axis is not Op.KV else self.kv, term.node)
        if term.bare == (True, True):
            return Position(self.q), Position(self.kv)
        table = None if term.pair is None else self.analysis.tables.labels(term.pair)
        if table is not None:
            loads = term.pair.loads
            if not table.rising:
                return self._coming_back(table)
            return self._labels(self.q, table, loads[term.q_load]), self._labels(self.kv, table, loads[1 - term.q_load])
        return self._sum(self.q, term.q, term.dtype), self._sum(self.kv, term.kv, term.dtype)

    def cells(self, i: np.ndarray, j: np.ndarray) -> Cells:
        """The tiles i of the queries by j of the keys."""
        same = np.zeros(i.size, np.int64)
        return Cells(same + self.b, same + self.h, self.q.first[i], self.q.last[i], self.kv.first[j], self.kv.last[j])

    def equal(self, term: Comparison) -> tuple[Labels, Labels]:
        """(query's side, key's side) of an equality as labels, worked out at every position; Unfit as in `of`."""
        return self._everywhere(self.q, term.q, term.dtype), self._everywhere(self.kv, term.kv, term.dtype)

    def of_pair(self, pair: LabelPair) -> tuple[Labels, Labels]:
        """As `equal`, of the two look-ups of an equality of labels."""
        on = [axes(n)[n] & {Op.Q, Op.KV} for n in pair.loads]
        loads = pair.loads if on[0] == {Op.Q} else pair.loads[::-1]
        if sorted(map(len, on)) != [1, 1] or on[0] == on[1]:
            raise Unfit
        return tuple(self._everywhere(axis, ((1, n),), n.dtype) for axis, n in zip((self.q, self.kv), loads))

    def _everywhere(self, axis: Axis, parts: Parts, dtype: DType) -> Labels:
        self._sum(axis, parts, dtype)
        env = {Op.B: self.b, Op.H: self.h, axis.op: torch.arange(axis.length, device="cpu")}
        bound = self.analysis.bound
        values = program(tuple(n for _, n in parts))(env, bound.tensors, bound.literals)
        total = torch.as_tensor(values[0], device="cpu")
        if dtype in (DType.F16, DType.BF16):
            total = total.float()
        if len(parts) > 1 or parts[0][0] < 0:
            total = sum(torch.as_tensor(x, device="cpu").long() * sign for (sign, _), x in zip(parts, values))
        return labels_at(axis, total.expand(axis.length).numpy())

    def _interval(self, axis: Axis, n: Node) -> Interval:
        """Bounds of a node over tiles and at their ends; Unfit where it may be NaN or read out of range."""
        if n not in axis.known:
            if n.op is Op.SLOT:
                self.analysis.along((n,), {}, axis.known)
            else:
                env = {Op.B: (self.b, self.b), Op.H: (self.h, self.h), axis.op: axis.stacked}
                with np.errstate(all="ignore"):
                    self.analysis.along(order_of(n), env, axis.known)
        found = axis.known[n]
        if found.poison is not False and np.any(found.poison) or found.nan is not False and np.any(found.nan):
            raise Unfit
        return found

    def _sum(self, axis: Axis, parts: Parts, dtype: DType) -> Side:
        added = size = 0
        varying = []
        for sign, n in parts:
            if n.op is axis.op:
                varying.append((sign, n))
                size += axis.length
                continue
            found = self._interval(axis, n)
            if len(parts) > 1 or sign < 0:
                size += _size(found)
            if not found.fixed:
                varying.append((sign, n))
            elif len(parts) > 1:
                added += sign * found.lo
        if dtype.is_int and size > INT_RANGE[dtype][1] // 2:
            raise Unfit
        if len(varying) == 1 and varying[0][1].op is axis.op:
            return Position(axis, added) if varying[0][0] > 0 else -Position(axis, -added)
        return self._bounds_of_sum(axis, parts)

    def _bounds_of_sum(self, axis: Axis, parts: Parts) -> Side:
        lo = hi = least = most = 0
        for sign, n in parts:
            found = self._interval(axis, n)
            lo, hi = (lo + found.lo, hi + found.hi) if sign > 0 else (lo - found.hi, hi - found.lo)
            if found.least is None or least is None:
                least = most = None
                continue
            least, most = (least + found.least, most + found.most) if sign > 0 else (least - found.most, most - found.least)
        return _side(lo, hi, axis.count, None if least is None else (least, most))

    def _labels(self, axis: Axis, table: LabelTable, load: Node) -> Side:
        """The names of labels, which rise, over the tiles of an axis."""
        index = load.args[table.pair.dim]
        if index.op is axis.op and len(load.args) == len(table.sizes) == 1 and table.numbered and axis.length <= table.runs.size:
            key = table, id(axis.first), axis.length
            if key not in self._named:
                self._named[key] = RunNumbers(axis, table.runs.bounds)
            return self._named[key]
        for i in load.args:
            if i.op is not axis.op:
                self._interval(axis, i)
        own = {index: Interval(axis.ends, axis.ends, least=0, most=axis.length - 1)} if index.op is axis.op else {}
        found = table.along(load, {**axis.known, **own})
        if found is None:
            raise Unfit
        within = 0, table.runs.starts.size
        if not own:
            return _side(*found, axis.count, within)
        side = Side(*found[0], found[0], within)
        # Names that rise do so by one, so that a tile of consecutive positions holds all from its first to its last.
        side.dense = True
        return side

    def _coming_back(self, table: LabelTable) -> tuple[Labels, Labels]:
        """(query's side, key's side) of labels whose names do not rise."""
        row, sides = row_of(self.analysis.bound, table, self.b, self.h), sides_of(self.analysis.bound, table)
        if row is None or sides is None:
            raise Unfit
        return tuple(self._labels_in_order(axis, table, row, side) for axis, side in zip((self.q, self.kv), sides))

    def _labels_in_order(self, axis: Axis, table: LabelTable, row: int, side: tuple[int, int]) -> Labels:
        key = table, id(axis.first), axis.length, side
        if key not in self._named:
            found = runs_along(table, row, side, axis.length)
            if found is None:
                raise Unfit
            bounds, first, last = found
            self._named[key] = Labels(axis, bounds, table.runs.values[first:last])
        return self._named[key]


def come_back(sides) -> bool:
    """Whether sides, as of `TermSides.of`, are of labels that come back."""
    return isinstance(sides, tuple) and isinstance(sides[0], Labels)


def _size(x: Interval) -> int:
    """The greatest magnitude of an integer interval."""
    if x.least is None:
        raise Unfit
    return max(abs(x.least), abs(x.most), 1)


def _side(lo, hi, count: int, within: tuple[int, int] | None) -> Side:
    """A Side of bounds that broadcast to [3, n]."""
    lo, hi = (np.broadcast_to(x, (3, count)) for x in (lo, hi))
    exact = (lo[1:] == hi[1:]).all()
    return Side(lo[0], hi[0], lo[1:] if exact else None, within)
