"""What a graph needs of the key alone, or of the distance alone, computed once a warp: a lane computes it for one key or two
distances, and all lanes read what they need of them.

Where a thread owns a row of scores, every lane of a warp needs the same labels[kv] of the same keys. Loaded by each lane for each
key, a label costs a load and the clamping of its index; through shared memory a quarter of a load. A function of q - kv has 63
values where 32 rows meet 32 keys; a lane reads those of its row, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from flexfa4.emit.emitter import Emitter, Scope
from flexfa4.emit.values import select
from flexfa4.facts.lines import Line
from flexfa4.ir import Node
from flexfa4.plan.hoist import frontier

from .along import LANES, Along
from .bits import halves, joined
from .carried import Fixed

WORDS = 2  # of each key at most: they are registers
# Of shared memory, for the distances between 32 rows and 32 keys.
ROOM = 64


@dataclass(frozen=True)
class Spread(Fixed):
    """shared: int32 [32] in shared memory, aligned to 16 bytes, of this warp alone, [ROOM] for distances too; None where there is
    no room, and nothing is spread. count: keys at a time, a multiple of 4."""

    shared: cute.Tensor | None
    count: int

    def key(self, first: Int32) -> Int32:
        """The key of this lane, of keys first, first + 1, ...; lanes past the count have the last."""
        lane = cute.arch.lane_idx()
        return first + select(lane < self.count, lane, Int32(self.count - 1), Int32)

    def values(self, emitter: Emitter, lane: Scope, wanted: frozenset[Node]) -> dict[Node, list]:
        """The values for all keys of those of the wanted nodes that need nothing else of an element. lane: a scope at `key`."""
        chosen, words = [], 0
        if self.shared is None:
            return {}
        for n in frontier(emitter.roots, lane.axes):
            if n in wanted:
                words += self.words_of(emitter, n)
                if words <= WORDS:
                    chosen.append(n)
        return {n: self.spread(lane.value_of(n), cute.arch.lane_idx()) for n in chosen}

    def lines(self, along: Along, wanted: Sequence[tuple[Node, Line]]) -> dict[Node, list]:
        """The values of nodes of lines for all keys of a stretch."""
        if self.shared is None:
            return {}
        return {n: self._of_line(along, n, line) for n, line in wanted}

    def _of_line(self, along: Along, n: Node, line: Line) -> list:
        if line is Line.COLUMN:
            return self.spread(along.value(n, line, 0), cute.arch.lane_idx())
        before = along.rows.count - 1
        places = range(-(-(self.count + before) // LANES))
        return self._exchanged([along.value(n, line, i) for i in places], cute.arch.lane_idx(), before - along.rows.own)

    def words_of(self, emitter: Emitter, n: Node) -> int:
        return 2 if n.dtype.is_int and emitter.int_type(n) is Int64 else 1

    def spread(self, value, lane: Int32) -> list:
        """The values of all lanes."""
        return self._exchanged([value], lane, 0)

    def _exchanged(self, values: list, lane: Int32, begin) -> list:
        """Of the values of all lanes, then the next value of all lanes, ..., `count` from place `begin` on."""
        kind = type(values[0])
        if kind is Boolean:
            words = self._words([select(v, Int32(1), Int32(0), Int32) for v in values], lane, begin)
            return [Boolean(w != 0) for w in words]
        if kind is Int64:
            low, high = (self._words(list(half), lane, begin) for half in zip(*map(halves, values)))
            return [joined(*pair) for pair in zip(low, high)]
        return [of_word(w, kind) for w in self._words([as_word(v) for v in values], lane, begin)]

    def _words(self, words: list[Int32], lane: Int32, begin) -> list[Int32]:
        cute.arch.sync_warp()
        for i, word in enumerate(words):
            self.shared[LANES * i + lane] = word
        cute.arch.sync_warp()
        found = cute.make_rmem_tensor(self.count, Int32)
        place = self.shared.iterator if isinstance(begin, int) else self.shared.iterator + begin
        cute.autovec_copy(cute.make_tensor(place, cute.make_layout(self.count)), found)
        return [found[j] for j in range(self.count)]


def as_word(value) -> Int32:
    """The bits of a 32-bit number."""
    return value.bitcast(Int32) if isinstance(value, Float32) else Int32(value)


def of_word(word, kind):
    """The 32-bit number with these bits."""
    return word if type(word) is kind else word.bitcast(kind)
