"""What every warp role of the sm100 forward is given: one frozen value made at the start of the kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from ..arguments import Signature, Values
from ..carried import Fixed
from ..hooks import Hooks, RowHooks
from ..packing import Packing
from ..walk import Place, WorkItem, place_of
from .barriers import Barriers
from .scheduler import Scheduler
from .shapes import Shapes

@dataclass(frozen=True)
class Operand(Fixed):
    """A tensor that TMA moves: copy atom, tensor of coordinates ([rows, D, H, B]; of V [D, S, H, B]), stages in shared
    memory."""

    atom: cute.CopyAtom
    tensor: cute.Tensor
    smem: cute.Tensor


@dataclass(frozen=True)
class Statistics(Fixed):
    """What the softmax tells the correction. words: float32 [rows, 2, query tiles] in shared memory. Both places of a query tile
    are the softmax's between what it tells."""

    words: cute.Tensor

    @property
    def factor(self) -> cute.Tensor:
        """[rows, query tiles]: the factor for O with every tile, and at the end."""
        return self.words[None, 0, None]

    @property
    def lse(self) -> cute.Tensor:
        """[rows, query tiles]: of the row, at the end."""
        return self.words[None, 1, None]

    def of_tile(self, q_tile: Int32) -> cute.Tensor:
        """All words of a query tile: of the factor, then of the LSE."""
        rows, places, _ = self.words.shape
        return cute.make_tensor(self.words[None, None, q_tile].iterator, cute.make_layout(rows * places))


@dataclass(frozen=True)
class Context(Fixed):
    """rank: of the CTA in its pair, None for a CTA by itself. rows: the output, where work items lie at any query, else None.
    parts: `arguments.Lists`', of a plan with split rows. tmem_address: the word of shared memory that tcgen05.alloc writes."""

    signature: Signature
    rank: Int32 | None
    shapes: Shapes
    packing: Packing
    barriers: Barriers
    scheduler: Scheduler
    q: Operand
    k: Operand
    v: Operand
    out: Operand
    rows: cute.Tensor | None
    lse: cute.Tensor
    parts: tuple | None
    statistics: Statistics
    tmem_address: cute.Pointer
    scale: Float32
    values: Values

    @property
    def tiles(self):
        return self.shapes.tiles

    @property
    def q_len(self) -> Int32:
        return self.lse.shape[2]

    @property
    def kv_len(self) -> Int32:
        return self.k.tensor.shape[0]

    @property
    def part(self) -> Int32 | int:
        """Which part of a work item's rows, and of a stage's K and V, is this CTA's."""
        return 0 if self.rank is None else self.rank

    def place(self, item: WorkItem) -> Place:
        """Where this CTA's part of an item lies; the same for all lanes of a warp."""
        plan = self.signature.plan
        found = place_of(item, self.scheduler.spans, plan.q_tile, (self.q_len, self.kv_len))
        if self.rank is not None:
            found = replace(found, q_begin=found.q_begin + self.rank * (plan.q_tile // self.tiles.ctas))
        if not self.signature.placed:
            return found
        one = cute.arch.make_warp_uniform
        return Place(one(found.q_begin), one(found.q_end), one(found.kv_begin), one(found.kv_end))

    def query(self, place: Place, i) -> Int32:
        """The first query of tile `i` of a work item."""
        return place.q_begin + i * (self.tiles.q_tile // self.signature.plan.pack)

    def row(self, place: Place, i, thread) -> Int32:
        """The row of the head's matrix (`packing`) that is row `thread` of query tile `i`."""
        return place.q_begin * self.signature.plan.pack + i * self.tiles.q_tile + thread

    def row_of_part(self, i, thread) -> Int32:
        """The row of a piece of a split row's results that is row `thread` of query tile `i`."""
        return (self.part * self.tiles.q_tiles + i) * self.tiles.q_tile + thread

    def stored_whole(self, place: Place, i) -> Boolean:
        """Whether no row of query tile `i` belongs to another item, so that TMA may store it."""
        if not self.signature.placed:
            return Boolean(True)
        return Boolean(self.query(place, i + 1) <= place.q_end) | Boolean(place.q_end == self.q_len)

    def row_hooks(self, hooks: Hooks, item, row) -> RowHooks:
        head = self.packing.head(item.head, row)
        return hooks.tile(item.batch, head).rows([self.packing.query(row)])
