"""What a score graph adds to the score, in a row of scores in registers: in units of the exponent, with the scale.

`score - slope[h] * (q - kv)` takes two instructions for two scores: the distance is a number that grows by a constant from key to
key, so that slope * distance of a pair of keys is one packed FMA and its sum with the scaled scores another. What is added to a
whole row is left to its LSE.

`score + table[h, clip(kv - q)]`, or any other function of the distance, has 255 values in a tile of 128 x 128. The threads of a
query tile compute two each, and read them from shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import cutlass.cute as cute
from cutlass import Float32, Int32

from flexfa4.emit.values import select
from flexfa4.facts.lines import Line

from ..added import Split
from ..carried import Fixed
from ..hooks import RowHooks
from ..slices import Area


@dataclass(frozen=True)
class LineTable(Fixed):
    """The values of a tile's columns or diagonals (`Split.line`). words: float32 in shared memory, of the softmax warps of one
    query tile, two a thread. shape: queries and keys of a tile; thread: of the warps, one a row; query: of the thread's row,
    from the tile's first; barrier: a named one of these warps.

    Word i of diagonals is that of kv - q = i - (queries - 1) from the tile's corner. The place is the statistics', so it is
    filled when the correction has read them, and all have read it before one writes a statistic."""

    split: Split
    words: cute.Tensor
    shape: tuple[int, int]
    thread: Int32
    query: Int32
    barrier: Int32

    @property
    def diagonal(self) -> bool:
        return self.split.line is Line.DIAGONAL

    @property
    def count(self) -> int:
        queries, keys = self.shape
        return queries + keys - 1 if self.diagonal else keys

    @property
    def over_lse(self) -> bool:
        """Whether it reaches into the place of the LSE."""
        return 2 * self.count > cute.size(self.words)

    def fill(self, rows: RowHooks, first_query: Int32, first_key: Int32) -> None:
        """Of the tile with these first positions. A value is computed at a position of the tile that has it."""
        threads = cute.size(self.words) // 2
        for first in range(0, self.count, threads):
            i = self.thread + first
            if self.diagonal:
                off = i - (self.shape[0] - 1)
                query, key = select(off < 0, -off, Int32(0), Int32), select(off < 0, Int32(0), off, Int32)
            else:
                query, key = Int32(0), i
            self.words[i] = rows.on_line(first_query + query, first_key + key)

    def synchronise(self) -> None:
        cute.arch.barrier(barrier_id=self.barrier, number_of_threads=cute.size(self.words) // 2)

    def row(self, offset, columns: int) -> cute.Tensor:
        """The values of the thread's row from column `offset` of the tile on."""
        first = self.shape[0] - 1 - self.query + offset if self.diagonal else offset
        return cute.make_tensor(self.words.iterator + first, cute.make_layout(columns))


@dataclass(frozen=True)
class Additions(Fixed):
    """At one tile of a row. begin: for the whole row; step: from column to column; table: the rest; None for 0."""

    begin: Float32 | None
    step: Float32 | None
    table: LineTable | None

    @staticmethod
    def of(rows: RowHooks, first: Int32, columns: int, table: LineTable | None) -> Additions:
        """first: the tile's first key."""
        added = rows.added(first, Area((0,), tuple(range(columns))))
        return Additions(added.begin[0] if added.begin else None, added.step, table)

    @property
    def tabled(self) -> bool:
        return self.table is not None and self.table.split.kept is None

    @property
    def by_column(self) -> bool:
        """Whether columns differ: the scaled scores then exist before the maximum (`add`)."""
        return self.step is not None or self.tabled

    @property
    def of_row(self) -> Float32 | None:
        """What `add` leaves to the row's end: it is the same for all of its scores."""
        return self.begin if self.step is None else None

    def kept(self, offset) -> Callable[[int], Float32] | None:
        """Column after `offset` -> the value of `Split.kept`."""
        if self.table is None or self.tabled:
            return None
        values = self.table.row(offset, self.table.shape[1])
        return lambda j: values[j]

    def add(self, s: cute.Tensor, scale: Float32, offset) -> None:
        """s becomes s * scale and what is added; `offset` columns of the tile come before it."""
        columns = cute.size(s)
        values = self.table.row(offset, columns) if self.tabled else None
        if self.step is not None:
            # Steps from the tile's own beginning: from 0 they are the same for all tiles, and would be kept, out of registers.
            start = self.begin + self.step * Float32(offset)
            first = start, start + self.step
        for j in range(0, columns, 2):
            more = (values[j], values[j + 1]) if self.tabled else None
            if self.step is not None:
                steps = first if j == 0 else _fma((self.step, self.step), (Float32(j), Float32(j)), first)
                more = steps if more is None else cute.arch.add_packed_f32x2(more, steps, rnd="rn")
            s[j], s[j + 1] = _fma((s[j], s[j + 1]), (scale, scale), more)


def _fma(a: tuple, b: tuple, c: tuple) -> tuple:
    return cute.arch.fma_packed_f32x2(a, b, c, rnd="rn")
