"""What every warp role of the sm100 forward is given: one frozen value made at the start of the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cutlass.cute as cute
from cutlass import Float32, Int32

from flexfa4.ir import Graph
from flexfa4.plan import Level, hoist

from ..arguments import Signature, Values
from ..carried import Fixed
from ..hooks import Hooks, RowHooks
from ..packing import Packing
from .barriers import Barriers
from .scheduler import Scheduler
from .shapes import Shapes


# Operations of a graph for each element, in 128 copies; an instruction has 16 bytes.
MOST_UNROLLED = 7


def element_operations(graph: Graph) -> int:
    placed = hoist(graph)
    return placed.count(Level.ELEMENT) + placed.count(Level.COLUMN)


@dataclass(frozen=True)
class Operand(Fixed):
    """A tensor that TMA moves: copy atom, tensor of coordinates ([rows, D, H, B]; of V [D, S, H, B]), stages in shared
    memory."""

    atom: cute.CopyAtom
    tensor: cute.Tensor
    smem: cute.Tensor


@dataclass(frozen=True)
class Statistics(Fixed):
    """What the softmax tells the correction, float32 [rows, query tiles] in shared memory. factor: for O, and the row sum at the
    end; maximum: of the row, at the end."""

    factor: cute.Tensor
    maximum: cute.Tensor


@dataclass(frozen=True)
class Context(Fixed):
    """parts: `arguments.Lists`', of a plan with split rows. tmem_address: the word of shared memory that tcgen05.alloc writes."""

    signature: Signature
    shapes: Shapes
    packing: Packing
    barriers: Barriers
    scheduler: Scheduler
    q: Operand
    k: Operand
    v: Operand
    out: Operand
    lse: cute.Tensor
    parts: tuple | None
    statistics: Statistics
    tmem_address: cute.Pointer
    scale: Float32
    values: Values

    @property
    def tiles(self):
        return self.shapes.tiles

    @cached_property
    def score_in_registers(self) -> bool:
        """Whether the score graph runs on a row of S in registers, on tiles without hidden keys: not where the graph is so long
        that 128 copies of it fill the instruction cache."""
        graph = self.signature.graphs[0]
        return graph is not None and element_operations(graph) <= MOST_UNROLLED

    @cached_property
    def edit_columns(self) -> int:
        """Columns of S at a time where the graphs run in a loop: fewer where they need more registers for each."""
        operations = sum(element_operations(graph) for graph in self.signature.graphs[:2] if graph is not None)
        return 32 if operations <= MOST_UNROLLED else 16

    @property
    def q_len(self) -> Int32:
        return self.lse.shape[2]

    @property
    def kv_len(self) -> Int32:
        return self.k.tensor.shape[0]

    def query_tile(self, item, i) -> Int32:
        """The query tile of 128 rows that is tile `i` of a work item."""
        return item.q_tile * self.tiles.q_tiles + i

    def row(self, item, i, thread) -> Int32:
        """The row of the head's matrix (`packing`) that is row `thread` of query tile `i`."""
        return self.query_tile(item, i) * self.tiles.q_tile + thread

    def row_hooks(self, hooks: Hooks, item, row) -> RowHooks:
        head = self.packing.head(item.head, row)
        return hooks.tile(item.batch, head).rows([self.packing.query(row)])
