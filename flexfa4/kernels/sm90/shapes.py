"""Shared memory, products and tensor views of the Hopper forward, derived from its Plan."""
from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.utils import LayoutEnum

from flexfa4.plan.budget import SMEM_ALIGNMENT
from flexfa4.plan.forward import HALF_BYTES, WORK_TILE_BYTES, Sm90Forward
from flexfa4.threads import cached_property

from ..carried import Fixed
from ..handover import WORDS

# Query rows of one warpgroup: the M of wgmma.
GROUP_ROWS = 64
GROUP_THREADS = 128
# The two rows of a thread, from its first.
ROW_OFFSETS = (0, 8)


@dataclass(frozen=True)
class Shapes(Fixed):
    """Layouts of one kernel. Make it inside traced code: layouts are values of the DSL."""

    tiles: Sm90Forward
    element: type

    def _rows(self, rows: int, columns: int, count: int):
        """`count` row-major tiles of rows x columns, in the widest swizzle that the columns divide by."""
        kind = hopper.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, self.element, columns)
        atom = warpgroup.make_smem_layout_atom(kind, self.element)
        return cute.tile_to_shape(atom, (rows, columns, count), order=(0, 1, 2))

    @cached_property
    def q(self):
        """[64, D, stages * consumers]: each warpgroup's rows are its own stretch, which its output may take over and then has
        room for."""
        count = self.tiles.q_stages * self.tiles.consumers
        queries = self._rows(GROUP_ROWS, self.tiles.head_dim, count)
        if not self.wider_rows:
            return queries
        rows, columns, _ = queries.outer.shape
        by_row, by_column, _ = queries.outer.stride
        stretch = GROUP_ROWS * self.tiles.row_columns
        apart = cute.make_layout((rows, columns, count), stride=(by_row, by_column, stretch))
        return cute.make_composed_layout(queries.inner, 0, apart)

    @property
    def wider_rows(self) -> int:
        """Columns that a row of the output has more than one of the queries."""
        return self.tiles.row_columns - self.tiles.head_dim

    @cached_property
    def k(self):
        """[kv_tile, D, stages]."""
        return self._rows(self.tiles.kv_tile, self.tiles.head_dim, self.tiles.kv_stages)

    @cached_property
    def v(self):
        """[kv_tile, Dv, stages]."""
        return self._rows(self.tiles.kv_tile, self.tiles.head_dim_v, self.tiles.kv_stages)

    @cached_property
    def out(self):
        """[64, Dv]."""
        return cute.select(self._rows(GROUP_ROWS, self.tiles.head_dim_v, 1), mode=[0, 1])

    def bytes(self, name: str) -> int:
        """Of one stage of "q" (all warpgroups), "k" or "v"."""
        t = self.tiles
        elements = {"q": t.rows * t.head_dim, "k": t.kv_tile * t.head_dim, "v": t.kv_tile * t.head_dim_v}[name]
        return elements * HALF_BYTES

    def scores(self) -> cute.TiledMma:
        """S[64, kv_tile] = Q[64, D] K[kv_tile, D]^T, both from shared memory."""
        return hopper.make_trivial_tiled_mma(
            self.element, self.element, OperandMajorMode.K, OperandMajorMode.K, Float32, (1, 1, 1), (64, self.tiles.kv_tile))

    def values(self) -> cute.TiledMma:
        """O[64, Dv] += P[64, kv_tile] V[kv_tile, Dv], P from registers."""
        return hopper.make_trivial_tiled_mma(
            self.element, self.element, OperandMajorMode.K, OperandMajorMode.MN, Float32, (1, 1, 1),
            (64, self.tiles.head_dim_v), warpgroup.OperandSource.RMEM)

    def allocate(self) -> tuple:
        """(mbarriers, work items, q, k, v) in shared memory."""
        memory = cutlass.utils.SmemAllocator()
        barriers = memory.allocate_array(cutlass.Int64, sum(b.count for b in self.tiles.barriers))
        slots = cute.make_layout((self.tiles.slots + 1, WORDS), stride=(WORDS, 1))
        items = memory.allocate_tensor(Int32, slots, WORK_TILE_BYTES)

        def tensor(layout):
            return memory.allocate_tensor(self.element, layout.outer, SMEM_ALIGNMENT, layout.inner)

        queries = tensor(self.q)
        if self.wider_rows:
            # The layout ends where the last stretch's queries do.
            memory.allocate_array(self.element, GROUP_ROWS * self.wider_rows)
        return barriers, items, queries, tensor(self.k), tensor(self.v)


def transposed(tensor: cute.Tensor) -> cute.Tensor:
    """[a, b, rest] seen as [b, a, rest]."""
    a, b, *rest = tensor.shape
    return cute.composition(tensor, cute.make_ordered_layout((b, a, *rest), order=(1, 0, *range(2, 2 + len(rest)))))


def rows_and_columns(fragment: cute.Tensor) -> cute.Tensor:
    """An accumulator ((2, 2, N / 8), 1, 1) seen as [2 rows, N / 4 columns] of the thread.

    A thread of a warpgroup holds rows r and r + 8 (of 64) and of every 8 columns two neighbours (PTX ISA, wgmma register
    fragments)."""
    (pair, _, eights), _, _ = fragment.shape
    return cute.make_tensor(fragment.iterator, cute.make_layout((2, (pair, eights)), stride=(2, (1, 4))))


def coordinates(thread) -> tuple:
    """(first row of 64, first column of 8) that a thread of a warpgroup holds; its other row is 8 further down."""
    return thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2


def column_offsets(columns: int) -> list[int]:
    """Offsets from a thread's first column, in the order of `rows_and_columns`."""
    return [8 * (j // 2) + j % 2 for j in range(columns // 4)]
