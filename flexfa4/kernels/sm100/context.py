"""What every warp role of the sm100 forward is given: one frozen value made at the start of the kernel."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

from ..arguments import Signature, Values
from ..carried import Fixed
from .barriers import Barriers
from .scheduler import StaticScheduler
from .shapes import Shapes


@dataclass(frozen=True)
class Operand(Fixed):
    """A tensor that TMA moves: copy atom, tensor of coordinates ([S, D, H, B]; of V [D, S, H, B]), stages in shared memory."""

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
    """tmem_address: the word of shared memory that tcgen05.alloc writes."""

    signature: Signature
    shapes: Shapes
    barriers: Barriers
    scheduler: StaticScheduler
    q: Operand
    k: Operand
    v: Operand
    out: Operand
    lse: cute.Tensor
    statistics: Statistics
    tmem_address: cute.Pointer
    scale: Float32
    values: Values

    @property
    def tiles(self):
        return self.shapes.tiles

    @property
    def q_len(self) -> Int32:
        return self.q.tensor.shape[0]

    @property
    def kv_len(self) -> Int32:
        return self.k.tensor.shape[0]

    def query_tile(self, item, i) -> Int32:
        """The query tile of 128 rows that is tile `i` of a work item."""
        return item.q_tile * self.tiles.q_tiles + i
