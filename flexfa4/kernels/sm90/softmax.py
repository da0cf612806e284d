"""Online softmax of the two rows that a thread of a warpgroup holds, in base 2 (Milakov and Gimelshein 2018)."""
from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float16, Float32, Int32

from flexfa4.emit.values import select

from ..added import Added
from ..carried import Fixed
from ..loops import in_a_row, unrolled
from ..rounding import as_finite, cut_off, natural, times

ROWS = 2
# The four threads of a quad hold the columns of the same two rows.
QUAD = (1, 2)
# A top from which on (in log2, either sign) its rounding moves exponents by more than 2.
FAR = 2.0**25
_CONVERT = {BFloat16: "cvt.rn.bf16x2.f32 {$w0}, {$r0}, {$r1};", Float16: "cvt.rn.f16x2.f32 {$w0}, {$r0}, {$r1};"}


def packed(a: Float32, b: Float32, element: type) -> Int32:
    """Two numbers in 16 bits each, the first in the lower half."""
    return cute.arch.inline_ptx(_CONVERT[element], write_only_types=[Int32], read_only_args=[b, a])


def moved(value):
    """The same in another register, by an instruction that the compiler keeps where it is."""
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[type(value)], read_only_args=[value])


def move_all(values: cute.Tensor, place: cute.Tensor) -> None:
    """`moved` of each number of a tensor in registers, into another one of the same layout."""
    values, place = in_a_row(values), in_a_row(place)

    def move(i: Int32) -> None:
        place[i] = moved(values[i])

    unrolled(0, cute.size(values), move)


@dataclass(frozen=True)
class PackedP(Fixed):
    """P in the element type, two neighbours of a row a register, as the operand of the second product has them. words: int32,
    registers."""

    words: cute.Tensor
    element: type

    @staticmethod
    def like(operand: cute.Tensor) -> "PackedP":
        """Registers of their own for an operand."""
        return PackedP(cute.make_rmem_tensor(cute.size(operand) // 2, Int32), operand.element_type)

    @staticmethod
    def of(operand: cute.Tensor) -> "PackedP":
        return PackedP(cute.recast_tensor(operand, Int32), operand.element_type)

    def put(self, row: int, pair: int, a: Float32, b: Float32) -> None:
        """Columns 2 * pair and the next of one of the thread's two rows. One instruction: a vector conversion leaves halves for
        some tile widths, and they would be joined after the fence of the product."""
        self.words[ROWS * pair + row] = packed(a, b, self.element)

    def copy_to(self, other: "PackedP") -> None:
        """By instructions that the compiler keeps where they are. Otherwise it writes P to the registers of the product in
        flight, and ptxas then waits after every product of the kernel."""
        move_all(self.words, other.words)


class OnlineSoftmax(Fixed):
    """top: what is subtracted from the scores of each row, in log2 (-inf: no key seen), base: the same as a number to subtract
    (0 then), row_sum: this thread's share of the sum of exponentials; all in registers. scale: what scores are multiplied by in
    the exponent. signed: it may be negative. loses: rows may be `Added.lost`: their sum is -inf from the first tile on, and the
    end makes NaN of that where a key was seen. lean: base is made of top where it is needed. That saves two registers, which
    kernels need that spill others; in those that do not, ptxas then copies a quarter of P once more.

    A tile's exponentials are taken below the top of the tiles before it, without waiting for its own maximum, which takes half as
    long as they do. Their sum tells afterwards whether a score was above top by more than `tau` (log2) or nearly so;
    `move` then takes the maximum and does the tile again. So exponentials reach 2^tau, and the end divides by what was really
    summed (FlashAttention-4, section 3).

    scale * score - base is rounded once, and base is a rounded product: at the largest score of a row it is 0 but for that
    rounding, which all exponentials of the row share and the end divides by. Of a top beyond `FAR`, as masks by -1e10 leave it,
    it would overflow: there the product is rounded as the top's was (`_far`)."""

    def __init__(self, scale: Float32, tau: float, signed: bool, loses: bool = False, lean: bool = False):
        self.scale, self.most, self.signed, self.loses = scale, 2.0**tau, signed, loses
        self.top, self.row_sum, self.tile_sum, self.factors = (cute.make_rmem_tensor(ROWS, Float32) for _ in range(4))
        self.kept = None if lean else cute.make_rmem_tensor(ROWS, Float32)

    def base(self, i: int) -> Float32:
        return _subtracted(self.top[i]) if self.kept is None else self.kept[i]

    def _raise_top(self, i: int, top: Float32) -> None:
        self.top[i] = top
        if self.kept is not None:
            self.kept[i] = _subtracted(top)

    def of_no_keys(self) -> None:
        """What `finish` leaves where no row has a key."""
        self.factors.fill(0.0)
        self.tile_sum.fill(0.0)
        self.top.fill(-math.inf)
        self.row_sum.fill(-math.inf)

    def begin(self, scores: cute.Tensor, added: Added) -> Boolean:
        """The top of a row's first tile: of the scores [2, n] and what is added to them. Returns whether it is far in any row of
        the warp; `first` follows."""
        for i in range(ROWS):
            self._raise_top(i, self._tile_maximum(scores, added, i))
        return cute.arch.vote_any_sync(self._is_far(0) | self._is_far(1))

    def first(self, scores: cute.Tensor, added: Added, p: PackedP, far: bool) -> None:
        """P of a row's first tile."""
        self._exponentials(scores, added, p, far)
        for i in range(ROWS):
            self.row_sum[i] = self.tile_sum[i]
            if self.loses:
                self.row_sum[i] = self.row_sum[i] + select(added.lost[i], Float32(-math.inf), Float32(0.0), Float32)

    def update(self, scores: cute.Tensor, added: Added, p: PackedP) -> Boolean:
        """A later tile: P of the scores. Returns whether any row of the warp is to `move`; `add` follows."""
        self._exponentials(scores, added, p)
        far = Boolean(False)
        for i in range(ROWS):
            # A top of -inf, where no key was seen, is as far.
            far = far | (self.tile_sum[i] > self.most) | (cute.math.absf(self.top[i]) >= FAR)
        return cute.arch.vote_any_sync(far)

    def move(self, scores: cute.Tensor, added: Added, p: PackedP) -> None:
        """The tile again, below its own maximum where that is higher; `factors`: what each row of O is to be multiplied by."""
        for i in range(ROWS):
            top, before = self._tile_maximum(scores, added, i), self.top[i]
            self._raise_top(i, select(top > before, top, before, Float32))
            # Where a row has seen no key yet its O and its sum, if it is not lost, are 0, and any factor will do.
            self.factors[i] = cute.math.exp2(before - self.base(i), fastmath=True)
            if self.loses:
                self.factors[i] = select(before == -math.inf, Float32(1.0), self.factors[i], Float32)
            self.row_sum[i] = self.row_sum[i] * self.factors[i]
        self._exponentials(scores, added, p, True)

    def add(self) -> None:
        for i in range(ROWS):
            self.row_sum[i] = self.row_sum[i] + self.tile_sum[i]

    def _tile_maximum(self, scores: cute.Tensor, added: Added, i: int) -> Float32:
        """In log2."""
        columns = range(cute.size(scores, mode=[1]))
        if not added.begin and not self.signed:
            score = _across_quad(_reduced([scores[i, j] for j in columns], cute.arch.fmax), cute.arch.fmax)
            return self._product(score)
        row = [scores[i, j] * self.scale + (added.at(i, j) if added.begin else 0.0) for j in columns]
        return _across_quad(_reduced(row, cute.arch.fmax), cute.arch.fmax)

    def _product(self, score: Float32) -> Float32:
        """A score in log2, rounded; finite where the score is."""
        return as_finite(times(score, self.scale), score)

    def _is_far(self, i: int) -> Boolean:
        return Boolean(cute.math.absf(self.base(i)) >= FAR)

    def _exponentials(self, scores: cute.Tensor, added: Added, p: PackedP, far: bool = False) -> None:
        """P and `tile_sum`. Pairs are added up one after the other: a tree would keep them in registers. far: whether tops may
        be; there an exponent is rounded as the top of its row was."""
        bases = [self.base(i) for i in range(ROWS)]
        below, is_far = added.below(bases), [self._is_far(i) for i in range(ROWS)] if far else ()

        def value(i: int, j: int | Int32) -> Float32:
            score = scores[i, j]
            near = score * self.scale + below.at(i, j)
            if not far:
                return near
            product = score * self.scale + added.at(i, j) if added.begin else self._product(score)
            return select(is_far[i], product - bases[i], near, Float32)

        def sum_of_pair(i: int, pair: int | Int32) -> Float32:
            a, b = (cute.math.exp2(value(i, j), fastmath=True) for j in (2 * pair, 2 * pair + 1))
            p.put(i, pair, a, b)
            return a + b

        def add_pair(pair: int | Int32) -> None:
            for i in range(ROWS):
                self.tile_sum[i] = self.tile_sum[i] + sum_of_pair(i, pair)

        for i in range(ROWS):
            self.tile_sum[i] = sum_of_pair(i, 0)
        pairs = cute.size(scores, mode=[1]) // 2
        if added.step is None:
            unrolled(1, pairs, add_pair)
        else:
            for pair in range(1, pairs):
                add_pair(pair)

    def finish(self) -> None:
        """Leaves what O is to be multiplied by in `factors`, the natural-log LSE in `row_sum` and the sum of the row's
        exponentials in `tile_sum`, of each row; 0, -inf and 0 for a row without keys."""
        for i in range(ROWS):
            total = _across_quad(self.row_sum[i], operator.add)
            if self.loses:
                seen = select(self.top[i] == -math.inf, Float32(0.0), Float32(math.nan), Float32)
                total = select(total == -math.inf, seen, total, Float32)
            self.tile_sum[i] = total
            empty = total == 0.0
            self.factors[i] = select(empty, Float32(0.0), cute.arch.rcp_approx(total), Float32)
            lse = natural(self.top[i], cut_off(self.top[i]) + cute.math.log2(total, fastmath=True))
            self.row_sum[i] = select(empty, Float32(-math.inf), lse, Float32)

    def parts(self) -> list[tuple]:
        """After `finish`, what the combine is told of each row: `arguments.Lists`. Nothing is taken off before the exponentials,
        and a top is what it was rounded to."""
        return [(self.top[i], cut_off(self.top[i]), self.tile_sum[i], Float32(0.0)) for i in range(ROWS)]


def _subtracted(top: Float32) -> Float32:
    """A row that has seen no key has the top -inf; subtracting it would give NaN."""
    return select(top == -math.inf, Float32(0.0), top, Float32)


def _reduced(values: list[Float32], combine) -> Float32:
    """A tree: chains of depth log n."""
    while len(values) > 1:
        pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2])]
        values = pairs + values[2 * len(pairs):]
    return values[0]


def _across_quad(value: Float32, combine) -> Float32:
    for offset in QUAD:
        value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
    return value


def scale_rows(fragment: cute.Tensor, factors: list[Float32]) -> None:
    """fragment [2, n] *= factor of its row."""
    factors = [factors[i] for i in range(ROWS)]

    def scale(j: Int32) -> None:
        for i, factor in enumerate(factors):
            fragment[i, j] = fragment[i, j] * factor

    unrolled(0, cute.size(fragment, mode=[1]), scale)
