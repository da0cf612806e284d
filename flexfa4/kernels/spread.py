"""What a graph needs of the key alone, computed once a warp: a lane computes it for one key, and all lanes read all of them.

Where a thread owns a row of scores, every lane of a warp needs the same labels[kv] of the same keys. Loaded by each lane for each
key, a label costs a load and the clamping of its index; through shared memory a quarter of a load.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from flexfa4.emit.emitter import Emitter, Scope
from flexfa4.emit.values import select
from flexfa4.ir import Node
from flexfa4.plan.hoist import frontier

from .bits import halves, joined
from .carried import Fixed

WORDS = 2  # of each key at most: they are registers


@dataclass(frozen=True)
class Spread(Fixed):
    """shared: int32 [32] in shared memory, aligned to 16 bytes, of this warp alone; None where there is no room, and nothing is
    spread. count: keys at a time, a multiple of 4."""

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

    def words_of(self, emitter: Emitter, n: Node) -> int:
        return 2 if n.dtype.is_int and emitter.int_type(n) is Int64 else 1

    def spread(self, value, lane: Int32) -> list:
        """The values of all lanes."""
        if isinstance(value, Boolean):
            return [Boolean(v != 0) for v in self.spread_word(select(value, Int32(1), Int32(0), Int32), lane)]
        if isinstance(value, Float32):
            return [v.bitcast(Float32) for v in self.spread_word(value.bitcast(Int32), lane)]
        if isinstance(value, Int64):
            low, high = (self.spread_word(half, lane) for half in halves(value))
            return [joined(*pair) for pair in zip(low, high)]
        return self.spread_word(value, lane)

    def spread_word(self, word: Int32, lane: Int32) -> list[Int32]:
        cute.arch.sync_warp()
        self.shared[lane] = word
        cute.arch.sync_warp()
        words = cute.make_rmem_tensor(self.count, Int32)
        cute.autovec_copy(cute.make_tensor(self.shared.iterator, cute.make_layout(self.count)), words)
        return [words[j] for j in range(self.count)]

