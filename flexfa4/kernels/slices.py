"""Look-ups at affine indices, read as slices along a fragment.

The look-ups bias[h, q - kv + n] or labels[kv] of one fragment lie in a short stretch of memory. Where the whole stretch is inside
the captured tensor, element [i, j] is one load at a constant distance from the stretch's first, without index arithmetic and
clamping, and elements with the same distance (rows and columns that move together) share it.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import cutlass.cute as cute
from cutlass import Boolean, Int32

from flexfa4.emit.emitter import Emitter, Scope
from flexfa4.emit.integers import clamp_index
from flexfa4.facts.affine import affine_forms
from flexfa4.facts.axes import axes
from flexfa4.ir import Node, Op

_TILE = frozenset({Op.B, Op.H})


@dataclass(frozen=True)
class Read:
    """A look-up whose last index is q_coef * q + kv_coef * kv + something of the tile, its other indices of the tile alone."""

    node: Node
    q_coef: int
    kv_coef: int


@dataclass(frozen=True)
class Area:
    """Where a fragment lies in the score matrix: offsets of its rows and columns from the first, known while compiling."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]


def slice_reads(emitter: Emitter, contiguous: Sequence[bool]) -> tuple[Read, ...]:
    """The look-ups of a graph that can be read so. contiguous: whether the last dimension of each capture has stride 1."""
    found = []
    for root in emitter.roots:
        forms, on = affine_forms(root), axes(root)
        for n in on:
            if n.op is not Op.LOAD or not n.args or not contiguous[n.attr]:
                continue
            *others, last = n.args
            form = forms[last]
            static = form is not None and isinstance(form.q_coef, int) and isinstance(form.kv_coef, int)
            if static and form.kv_coef and all(on[a] <= _TILE for a in others):
                found.append(Read(n, form.q_coef, form.kv_coef))
    return tuple(found)


class Stretch:
    """The stretch of one look-up at one fragment."""

    def __init__(self, read: Read, emitter: Emitter, first: Scope, area: Area):
        self.read, self.emitter, self.area, self._loaded = read, emitter, area, {}
        self.node, self.by_row = read.node, read.q_coef != 0
        far = [read.q_coef * r + read.kv_coef * c for r in (min(area.rows), max(area.rows))
               for c in (min(area.columns), max(area.columns))]
        self._least, self._span = min(far), max(far) - min(far) + 1
        *others, last = read.node.args
        tensor = emitter.captures[read.node.attr]
        size = Int32(cute.size(tensor, mode=[len(others)]))
        begin = Int32(first.value_of(last)) + self._least
        self.inside = Boolean(begin >= 0) & Boolean(begin + (self._span - 1) < size)
        at = tuple(clamp_index(first.value_of(a), Int32(cute.size(tensor, mode=[dim])), False) for dim, a in enumerate(others))
        row = tensor[(*at, None)] if others else tensor
        self._memory = cute.make_tensor(row.iterator + begin, cute.make_layout(self._span))

    def at(self, i: int, j: int):
        """The value at row i and column j of the fragment."""
        place = self.read.q_coef * self.area.rows[i] + self.read.kv_coef * self.area.columns[j] - self._least
        if place not in self._loaded:
            self._loaded[place] = self.emitter.from_memory(self.read.node, self._memory[place])
        return self._loaded[place]
