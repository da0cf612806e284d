"""Query heads of one KV head in one query tile: which query and head a row is, and the views of Q and O that TMA moves.

Row r of a packed matrix is query r // pack of head first + r % pack. `pack` is a power of two; the heads are at most as many.
TMA sees the matrix as (head, query, column): a box of `pack` heads holds a tile's rows in that order, and heads that do not exist
come in as zeros and are left out on the way back, like queries past the end.
"""
from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Boolean, Int32

from flexfa4.emit.values import select

from .carried import Fixed

# [B, H, S, D] -> [S, D, H, B]: a head's matrix first.
HEAD_MATRIX = [2, 3, 1, 0]


def head_matrix(tensor: cute.Tensor) -> cute.Tensor:
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=HEAD_MATRIX))


def heads_together(pack: int, heads: Int32, kv_heads: Int32) -> Int32:
    """How many query heads share a query tile."""
    if pack == 1:
        return Int32(1)
    group = Int32(heads // kv_heads)
    return select(group < pack, group, Int32(pack), Int32)


@dataclass(frozen=True)
class Packing(Fixed):
    """pack: places for heads in a query tile, 1 where it has one head; heads: how many are taken."""

    pack: int
    heads: Int32

    def matrix(self, tensor: cute.Tensor) -> cute.Tensor:
        """[B, H, S, D] as [rows, D, H / heads, B], rows being S, or (heads, S)."""
        if self.pack == 1:
            return head_matrix(tensor)
        batch, heads, length, columns = tensor.shape
        by_batch, by_head, by_row, by_column = tensor.stride
        return cute.make_tensor(tensor.iterator, cute.make_layout(
            ((self.heads, length), columns, heads // self.heads, batch),
            stride=((by_head, by_row), by_column, by_head * self.heads, by_batch)))

    def tile(self, rows: int, columns: int) -> tuple:
        """The shape of a tile of the matrix."""
        return (rows, columns) if self.pack == 1 else ((self.pack, rows // self.pack), columns)

    def tiles(self, matrix: cute.Tensor, rows: int, columns: int, first: Int32 | None = None) -> cute.Tensor:
        """[rows, columns, i]: the tiles of one head's matrix of TMA coordinates, from query `first` on (None: from 0)."""
        if first is not None:
            matrix = cute.domain_offset((first if self.pack == 1 else (0, first), 0), matrix)
        return cute.local_tile(matrix, self.tile(rows, columns), (None if self.pack == 1 else (0, None), 0))

    def query(self, row: Int32) -> Int32:
        return row if self.pack == 1 else row >> self.pack.bit_length() - 1

    def head(self, first: Int32, row: Int32) -> Int32:
        """first: the head of a work item, as work items count them."""
        return first if self.pack == 1 else first * self.heads + self._place(row)

    def exists(self, row: Int32, q_len: Int32) -> Boolean:
        """Whether a row is a query and a head that exist."""
        inside = Boolean(self.query(row) < q_len)
        return inside if self.pack == 1 else inside & Boolean(self._place(row) < self.heads)

    def _place(self, row: Int32) -> Int32:
        return row & self.pack - 1


# Of keys and values.
UNPACKED = Packing(1, 1)
