"""Which tiles of rows and of columns have a label in common, from the set of labels in each tile.

Work and memory grow with the labels in the tiles and with the pairs of tiles, not with the pairs of runs of a label: of two
labels by turns those are half the square of the runs. A label in many tiles of columns has a row of bits of its own, and a row
of tiles has the bits of its labels together; of other labels, each tile of columns is a place to write.
"""
from __future__ import annotations

import numpy as np

from .rectangles import Labels, codes_of
from .spans import counted

# Bits in a word. To write one place takes about as long as to go over eight words.
_WORD = 64
_WORDS_A_PLACE = 8


class SharedLabels:
    """rows, columns: labels along the tiles. row_label, column_label: the one label of each tile as a number, int32 [n]; below 0
    where there are several, of rows another number than of columns."""

    def __init__(self, rows: Labels, columns: Labels):
        count, codes = codes_of(rows, columns)
        self.columns = columns.axis.count
        row, row_code = _in_tiles(rows, codes[0], count)
        column, column_code = _in_tiles(columns, codes[1], count)
        self.row_label = _only(row, row_code, rows.axis.count, -1)
        self.column_label = _only(column, column_code, self.columns, -2)
        tiles = np.bincount(column_code, minlength=count)
        self.words = -(-self.columns // _WORD)
        many = tiles > self.words // _WORDS_A_PLACE
        number = many.cumsum() - 1
        here = many.take(column_code)
        self._bits = _bit_rows(number.take(column_code[here]), column[here], int(many.sum()), self.words)
        here = many.take(row_code)
        self._with_bits = _by_row(row[here], number.take(row_code[here]), rows.axis.count)
        # Tiles of columns by label, those of label c from _first[c] on.
        self._tiles = column.take(column_code.argsort(kind="stable"))
        self._first, self._count = tiles.cumsum() - tiles, tiles
        here = ~here & (tiles.take(row_code) > 0)
        self._with_places = _by_row(row[here], row_code[here], rows.axis.count)

    def of_rows(self, begin: int, end: int) -> np.ndarray:
        """Whether rows begin .. end - 1 have a label in common with each tile of columns, bool [end - begin, columns]."""
        found = np.zeros((end - begin, self.words * _WORD), bool)
        pointer, numbers = self._with_bits
        low, high = pointer[begin], pointer[end]
        if high > low:
            starts = pointer[begin:end] - low
            there = pointer[begin + 1:end + 1] > pointer[begin:end]
            bits = np.bitwise_or.reduceat(self._bits.take(numbers[low:high], axis=0), starts[there], axis=0)
            found[there] = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little").view(bool)
        pointer, codes = self._with_places
        low, high = pointer[begin], pointer[end]
        if high > low:
            codes = codes[low:high]
            row = np.arange(end - begin).repeat(np.diff(pointer[begin:end + 1]))
            count = self._count.take(codes)
            found[row.repeat(count), self._tiles.take(counted(self._first.take(codes), count))] = True
        return found[:, :self.columns]


def _in_tiles(labels: Labels, codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(tile, label) of all labels in all tiles, each once, tiles ascending."""
    first, end = labels.numbers.touched
    tiles = np.maximum(end - first, 0)
    key = counted(first, tiles) * count + codes.repeat(tiles)
    key.sort()
    return np.divmod(key[np.concatenate([[True], key[1:] != key[:-1]])[:key.size]], count)


def _only(tile: np.ndarray, code: np.ndarray, tiles: int, several: int) -> np.ndarray:
    found = np.full(tiles, several, np.int32)
    alone = np.bincount(tile, minlength=tiles).take(tile) == 1
    found[tile[alone]] = code[alone]
    return found


def _bit_rows(row: np.ndarray, column: np.ndarray, rows: int, words: int) -> np.ndarray:
    """uint64 [rows, words] with the bits of distinct (row, column) set."""
    key = row * (words * _WORD) + column
    key.sort()
    word = key >> 6
    found = np.zeros(rows * words, np.uint64)
    if key.size:
        starts = np.flatnonzero(np.concatenate([[True], word[1:] != word[:-1]]))
        found[word[starts]] = np.bitwise_or.reduceat(np.uint64(1) << (key & 63).astype(np.uint64), starts)
    return found.reshape(rows, words)


def _by_row(row: np.ndarray, values: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(where the values of each row begin, int64 [rows + 1]; the values), of rows that ascend."""
    pointer = np.zeros(rows + 1, np.int64)
    np.bincount(row, minlength=rows).cumsum(out=pointer[1:])
    return pointer, values
