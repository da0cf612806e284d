"""Where the labels of an equality test lie along the queries and the keys: runs of equal ones, in positions of the axis."""
from __future__ import annotations

import numpy as np

from flexfa4.facts.breaks import number_of, offset_along
from flexfa4.facts.labels import LabelTable
from flexfa4.ir import Op
from flexfa4.ir.bound import BoundGraph


def sides_of(bound: BoundGraph, table: LabelTable) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """For queries and keys: which table their labels are in (0 where both read the same), and what the look-up adds to a
    position. None where one reads at something else."""
    sides = []
    for axis in (Op.Q, Op.KV):
        for which, load in enumerate(table.pair.loads):
            added = offset_along(load.args[table.pair.dim], axis, bound)
            if added is not None:
                sides.append((which if len(table.sizes) == 2 else 0, added))
                break
        else:
            return None
    return tuple(sides)


def row_of(bound: BoundGraph, table: LabelTable, b: int, h: int) -> int | None:
    """Which row of the table a batch and head read."""
    row, load = 0, table.pair.loads[0]
    for dim, (n, size) in enumerate(zip(load.args, table.dims)):
        if dim == table.pair.dim:
            continue
        index = {Op.B: b, Op.H: h}.get(n.op, number_of(n, bound))
        if index is None or not 0 <= index < size:
            return None
        row = row * size + index
    return row


def runs_along(table: LabelTable, row: int, side: tuple[int, int], length: int) -> tuple[np.ndarray, int, int] | None:
    """(bounds, first, last) of the runs of labels at positions 0 .. length - 1 of one axis, as runs first .. last - 1 of the
    table; bounds: where they begin, and the length, int64 [last - first + 1]. None where it reads past its table."""
    which, added = side
    if added < 0 or added + length > table.sizes[which]:
        return None
    begin = row * table.runs.length + (table.sizes[0] if which else 0) + added
    if begin == 0 and length == table.runs.size:
        return table.runs.bounds, 0, table.runs.starts.size
    first, last = table.runs.at(np.array((begin, begin + length - 1))).tolist()
    bounds = table.runs.bounds[first:last + 2] - begin
    bounds[0], bounds[-1] = 0, length
    return bounds, first, last + 1
