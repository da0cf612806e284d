"""What a score graph adds to the score, in a row of scores in registers: in units of the exponent, with the scale.

`score - slope[h] * (q - kv)` takes two instructions for two scores: the distance is a number that grows by a constant from key to
key, so that slope * distance of a pair of keys is one packed FMA and its sum with the scaled scores another. What is added to a
whole row is left to the maximum and the exponent.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

from ..carried import Fixed
from ..hooks import RowHooks
from ..slices import Area


@dataclass(frozen=True)
class Additions(Fixed):
    """At one tile of a row. begin: for the whole row; step: from column to column; None for 0."""

    begin: Float32 | None
    step: Float32 | None

    @staticmethod
    def of(rows: RowHooks, first: Int32, columns: int) -> Additions:
        """first: the tile's first key."""
        added = rows.added(first, Area((0,), tuple(range(columns))))
        return Additions(added.begin[0] if added.begin else None, added.step)

    @property
    def by_column(self) -> bool:
        """Whether columns differ: the scaled scores then exist before the maximum (`add`)."""
        return self.step is not None

    def of_row(self, value: Float32) -> Float32:
        """With what `add` leaves to the maximum and the exponent."""
        return value if self.begin is None or self.by_column else value + self.begin

    def add(self, s: cute.Tensor, scale: Float32, offset) -> None:
        """s becomes s * scale and what is added; `offset` columns of the tile come before it."""
        # Steps from the tile's own beginning: from 0 they are the same for all tiles, and would be kept, out of registers.
        start = self.begin + self.step * Float32(offset)
        first = start, start + self.step
        for j in range(0, cute.size(s), 2):
            more = first if j == 0 else _fma((self.step, self.step), (Float32(j), Float32(j)), first)
            s[j], s[j + 1] = _fma((s[j], s[j + 1]), (scale, scale), more)


def _fma(a: tuple, b: tuple, c: tuple) -> tuple:
    return cute.arch.fma_packed_f32x2(a, b, c, rnd="rn")
