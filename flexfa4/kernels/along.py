"""What is the same along a line of the score matrix, for a warp with a row a thread; conditions as words with a bit a key.

`labels[kv] != 0` has a value a key: a lane computes it for one of 32, and a ballot is the word of all rows. `table[q - kv] != 0`
has one a distance, of which 32 rows and 32 keys have 63: two ballots, which each lane shifts to where its row begins. The
condition is computed as it stands, in its own types, whatever they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import cutlass.cute as cute
from cutlass import Boolean, Int32

from flexfa4.emit.emitter import Emitter, Scope
from flexfa4.emit.values import select
from flexfa4.facts.lines import Line
from flexfa4.ir import Node

from .carried import Fixed

LANES = 32


@dataclass(frozen=True)
class WarpRows(Fixed):
    """The queries of a warp's rows. query: of this lane's; pack: rows that have the same one."""

    query: Int32
    pack: int

    @property
    def count(self) -> int:
        """Queries of a warp."""
        return max(1, LANES // self.pack)

    @property
    def own(self) -> Int32:
        """This lane's query, from the first."""
        return cute.arch.lane_idx() >> self.pack.bit_length() - 1

    def position(self, first_key: Int32, distance: Int32) -> dict[str, Int32]:
        """Where kv - q is `distance` more than between the first key and the last query."""
        past = distance - (self.count - 1)
        on_top = past >= 0
        first_query = self.query - self.own
        return {"q": select(on_top, first_query, first_query - past, Int32),
                "kv": select(on_top, first_key + past, first_key, Int32)}


@dataclass(frozen=True)
class Along(Fixed):
    """Nodes of lines at a stretch of keys. tile: the work item's scope; first: key; made: scopes and ballots so far."""

    emitter: Emitter
    tile: Scope
    rows: WarpRows
    first: Int32
    made: dict = field(default_factory=dict)

    def value(self, n: Node, line: Line, number: int):
        """Of lane i: a column's at key 32 * number + i, a diagonal's at that distance from the least of the warp."""
        if (line, number) not in self.made:
            i = cute.arch.lane_idx() + LANES * number
            at = {"kv": self.first + i} if line is Line.COLUMN else self.rows.position(self.first, i)
            self.made[line, number] = self.emitter.join(self.tile, **at)
        return self.made[line, number].value_of(n)

    def word(self, n: Node, line: Line, number: int) -> Int32:
        """Of keys 32 * number, ... of the stretch: whether the Boolean node holds."""
        if line is Line.COLUMN:
            return self._ballot(n, line, number)
        low, last = self._ballot(n, line, number), self.rows.count - 1
        if last == 0:
            return low
        return shifted(low, self._ballot(n, line, number + 1), last - self.rows.own)

    def _ballot(self, n: Node, line: Line, number: int) -> Int32:
        if (n, number) not in self.made:
            self.made[n, number] = Int32(cute.arch.vote_ballot_sync(Boolean(self.value(n, line, number))))
        return self.made[n, number]


def shifted(low: Int32, high: Int32, by: Int32) -> Int32:
    """Bits by .. by + 31 of two words, by < 32."""
    ptx = "shf.r.wrap.b32 {$w0}, {$r0}, {$r1}, {$r2};"
    return cute.arch.inline_ptx(ptx, write_only_types=[Int32], read_only_args=[low, high, by])
