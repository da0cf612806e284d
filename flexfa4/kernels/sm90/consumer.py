"""A consumer warpgroup: S = Q K^T, the hooks, online softmax, O += P V for 64 query rows.

The product S of a tile is in flight together with P V of the tile before, so that the tensor cores work while the softmax of one
is computed (FlashAttention-3, section 3.2).
"""
from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass.cute.nvgpu import warpgroup

from flexfa4.emit.values import select

from ..barriers import Turn
from ..carried import Fixed
from ..hooks import RowHooks
from ..slices import Area
from ..walk import FULL, INSIDE, Walk, kind_of
from .shapes import GROUP_THREADS, column_offsets, rows_and_columns
from .softmax import OnlineSoftmax, PackedP, move_all, scale_rows

@dataclass(frozen=True)
class Products(Fixed):
    """The two products of a warpgroup on its fragments. q, k, v: operands in shared memory (descriptors), by tile of 64 rows or
    stage; p, out, first: registers; `first` is S of a work item's first tile, which is there before the item begins."""

    scores: cute.TiledMma
    values: cute.TiledMma
    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    p: cute.Tensor
    out: cute.Tensor
    first: cute.Tensor

    @staticmethod
    def accumulator(mma: cute.TiledMma) -> cute.Tensor:
        return cute.make_rmem_tensor(mma.partition_shape_C(mma.shape_mnk[:2]), Float32)

    def start_scores(self, queries: Int32, stage: Int32) -> cute.Tensor:
        """Issues S = Q K^T of a query tile and a stage and returns its accumulator, which is in flight."""
        accumulator = self.accumulator(self.scores)
        _issue(self.scores, accumulator, self.q[None, None, None, queries], self.k[None, None, None, stage], False)
        return accumulator

    def keep(self, scores: cute.Tensor) -> None:
        """Makes an accumulator, which is not in flight, `first`. By instructions that the compiler keeps where they are: it would
        copy accumulators while their product is in flight, and ptxas then waits after every product of the kernel."""
        move_all(scores, self.first)

    def start_values(self, stage: Int32, add: bool) -> None:
        """Issues O (+)= P V of a stage."""
        _issue(self.values, self.out, self.p, self.v[None, None, None, stage], add)


def _issue(mma: cute.TiledMma, accumulator, a, b, add: bool) -> None:
    warpgroup.fence()
    # An atom of its own: its accumulate flag changes, and a staged region must not see another region's value.
    atom = cute.make_mma_atom(mma.op)
    atom.set(warpgroup.Field.ACCUMULATE, add)
    for step in range(cute.size(a, mode=[2])):
        cute.gemm(atom, accumulator, a[None, None, step], b[None, None, step], accumulator)
        atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


@dataclass(frozen=True)
class Rota(Fixed):
    """Whose turn it is to issue products: the warpgroups take turns, so that while one does its softmax the others' products run
    (FlashAttention-3, section 3.1). One named barrier a warpgroup: it waits at its own, and the one before it arrives there.
    Where `groups` is 1 there are no turns. own_p: see `attend`."""

    group: Int32
    groups: int
    first_barrier: int
    own_p: bool = True

    def take(self) -> None:
        if self.groups > 1:
            cute.arch.barrier(barrier_id=self.first_barrier + self.group, number_of_threads=2 * GROUP_THREADS)

    def pass_on(self) -> None:
        if self.groups > 1:
            following = select(self.group == self.groups - 1, Int32(0), self.group + 1, Int32)
            cute.arch.barrier_arrive(barrier_id=self.first_barrier + following, number_of_threads=2 * GROUP_THREADS)


@dataclass(frozen=True)
class Columns(Fixed):
    """Key positions of a warpgroup's tile: where this thread's columns of tile 0 begin, the tile's width, and where keys end; and
    the queries of this thread's rows, from the first. placed: FULL tiles end before the keys do, and others may be INSIDE.
    hidden: `Hooks.hidden`. half: whose kinds count, of those that tell two apart; None: they do not."""

    first: Int32
    width: int
    kv_len: Int32
    queries: tuple[int, ...]
    placed: bool
    hidden: Float32
    half: Int32 | None = None

    def kind(self, walk: Walk) -> Int32 | int:
        """A tile of which the half sees nothing is like others of which it does not see all."""
        return walk.kind if self.half is None else kind_of(walk.kind, self.half)

    def of(self, tile: Int32) -> list[Int32]:
        base = tile * self.width + self.first
        return [base + offset for offset in column_offsets(self.width)]

    @property
    def area(self) -> Area:
        return Area(self.queries, tuple(column_offsets(self.width)))

    def ragged(self, tile: Int32) -> Boolean:
        """Whether the tile reaches past the last key."""
        return Boolean((tile + 1) * self.width > self.kv_len)


@cute.jit
def edit(rows: RowHooks, columns: Columns, scores: cute.Tensor, walk: Walk, scale: Float32):
    """Score graph on every tile, but for what `RowHooks.added` gives; mask graph where the tile is PARTIAL; keys past the end
    hidden."""
    edit_scores(rows, columns, scores, walk.tile, scale)
    if cutlass.const_expr(columns.placed):
        if columns.kind(walk) == INSIDE:
            hide(rows, columns, scores, walk.tile, "inside")
        elif columns.kind(walk) != FULL:
            hide(rows, columns, scores, walk.tile, "mask")
    else:
        if Boolean(columns.kind(walk) != FULL) | columns.ragged(walk.tile):
            hide(rows, columns, scores, walk.tile, "mask")


@cute.jit
def edit_scores(rows: RowHooks, columns: Columns, scores: cute.Tensor, tile: Int32, scale: Float32):
    keys, area = columns.of(tile), columns.area
    slices = rows.slices("score", keys[0], area)
    if cutlass.const_expr(len(slices) > 0):
        if all_inside(slices):
            rows.score(scores, keys, scale, area, slices)
        else:
            rows.score(scores, keys, scale, area)
    else:
        rows.score(scores, keys, scale, area)


@cute.jit
def hide(rows: RowHooks, columns: Columns, scores: cute.Tensor, tile: Int32, kind: str):
    keys = columns.of(tile)
    present = columns.kv_len - keys[0]
    slices = rows.slices(kind, keys[0], columns.area)
    if cutlass.const_expr(len(slices) > 0):
        if all_inside(slices):
            rows.mask(scores, keys, present, slices, kind, columns.hidden)
        else:
            rows.mask(scores, keys, present, (), kind, columns.hidden)
    else:
        rows.mask(scores, keys, present, (), kind, columns.hidden)


def all_inside(slices: list) -> Boolean:
    """Whether the slices of every thread of the warp are inside their tensors."""
    inside = Boolean(True)
    for s in slices:
        inside = inside & s.inside
    return cute.arch.vote_all_sync(inside)


@cute.jit
def hold(rarely: Boolean):
    """Keeps the exponentials before the wait for P V that follows: ptxas moves that wait up to the first of them, but not across
    a branch. rarely: the same for a warp; a branch that may diverge makes ptxas wait after every product of the kernel."""
    if rarely:
        cute.arch.inline_ptx("nanosleep.u32 1;")


@cute.jit
def pass_over(rings: tuple, rota: Rota, walk: Walk, turn: Turn) -> Turn:
    """A work item of which a warpgroup has no row: the others wait for it at the rings and for their turn, and their products
    have the tensor cores alone. Returns the next stage to read."""
    k_ring, v_ring = rings
    while walk.valid:
        k_ring.wait(turn)
        k_ring.release(turn)
        rota.take()
        rota.pass_on()
        v_ring.wait(turn)
        v_ring.release(turn)
        walk, turn = walk.next(), turn.next()
    return turn


@cute.jit
def first_tile(products: Products, rows: RowHooks, columns: Columns, softmax: OnlineSoftmax, walk: Walk, scale: Float32):
    """P of a work item's first tile, whose S is in `products.first`."""
    scores = rows_and_columns(products.first)
    edit(rows, columns, scores, walk, scale)
    added, p = rows.added(columns.of(walk.tile)[0], columns.area), PackedP.of(products.p)
    if softmax.begin(scores, added):
        softmax.first(scores, added, p, True)
    else:
        softmax.first(scores, added, p, False)


@cute.jit
def later_tiles(products: Products, rings: tuple, rota: Rota, rows: RowHooks, columns: Columns, softmax: OnlineSoftmax,
                walk: Walk, scale: Float32, queries: Int32, turn: Turn) -> Turn:
    """The tiles after the first, but for the product of the last one's P with V, which is in `products.p`. queries: which tile of
    64 rows in shared memory; turn: the stage of the first tile. Returns the next stage to read, the
    one after the last tile's."""
    k_ring, v_ring = rings
    held = PackedP.of(products.p)
    p = PackedP.like(products.p) if rota.own_p else held
    products.out.fill(0.0)
    v_turn = turn
    walk, turn = walk.next(), turn.next()
    while walk.valid:
        k_ring.wait(turn)
        if cutlass.const_expr(rota.own_p):
            rota.take()
            fragment = products.start_scores(queries, turn.index)
            v_ring.wait(v_turn)
            products.start_values(v_turn.index, True)
            rota.pass_on()
        else:
            v_ring.wait(v_turn)
            rota.take()
            products.start_values(v_turn.index, True)
            fragment = products.start_scores(queries, turn.index)
            rota.pass_on()
        ahead = walk.next()
        if cutlass.const_expr(rota.own_p):
            warpgroup.wait_group(1)
        else:
            warpgroup.wait_group(0)
            v_ring.release(v_turn)
        k_ring.release(turn)
        scores = rows_and_columns(fragment)
        edit(rows, columns, scores, walk, scale)
        added = rows.added(columns.of(walk.tile)[0], columns.area)
        moved = softmax.update(scores, added, p)
        if cutlass.const_expr(rota.own_p):
            hold(moved)
            warpgroup.wait_group(0)
            v_ring.release(v_turn)
        if moved:
            softmax.move(scores, added, p)
            scale_rows(rows_and_columns(products.out), softmax.factors)
        softmax.add()
        if cutlass.const_expr(rota.own_p):
            p.copy_to(held)
        v_turn = turn
        walk, turn = ahead, turn.next()
    return turn


@cute.jit
def end_of_item(products: Products, rings: tuple, rota: Rota, softmax: OnlineSoftmax, turn: Turn):
    """O of a work item whose last P is in `products.p`, with nothing in flight beside it. turn: the next stage to read."""
    _, v_ring = rings
    v_turn = turn.before()
    v_ring.wait(v_turn)
    rota.take()
    products.start_values(v_turn.index, True)
    rota.pass_on()
    softmax.finish()
    warpgroup.wait_group(0)
    v_ring.release(v_turn)


@cute.jit
def border(products: Products, rings: tuple, rota: Rota, softmax: OnlineSoftmax, queries: Int32, turn: Turn) -> cute.Tensor:
    """The same, and issues S of the next item's first tile, whose accumulator it returns in flight. queries, turn: where that
    tile lies."""
    k_ring, v_ring = rings
    v_turn = turn.before()
    v_ring.wait(v_turn)
    k_ring.wait(turn)
    rota.take()
    products.start_values(v_turn.index, True)
    ahead = products.start_scores(queries, turn.index)
    rota.pass_on()
    softmax.finish()
    warpgroup.wait_group(1)
    v_ring.release(v_turn)
    return ahead


@cute.jit
def begin_item(products: Products, rings: tuple, rota: Rota, passes: Boolean | None, queries: Int32, turn: Turn) -> Turn:
    """S of an item's first tile, with nothing in flight beside it. passes: of the tile after it, the first that the warpgroup
    sees; its V is to be given back when it is there (`give_back_values`). Returns that tile's stage."""
    k_ring, _ = rings
    if cutlass.const_expr(passes is not None):
        if passes:
            k_ring.wait(turn)
            k_ring.release(turn)
            rota.take()
            rota.pass_on()
            turn = turn.next()
    k_ring.wait(turn)
    scores = products.start_scores(queries, turn.index)
    warpgroup.wait_group(0)
    k_ring.release(turn)
    products.keep(scores)
    return turn


@cute.jit
def give_back_values(rings: tuple, turn: Turn):
    """Of a tile that the warpgroup passed over."""
    _, v_ring = rings
    v_ring.wait(turn)
    v_ring.release(turn)
