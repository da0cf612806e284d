"""The producer warp: TMA loads of a work item's query rows, then K and V of each tile on its walk."""
from __future__ import annotations

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync

from ..barriers import Ring, Turn
from ..carried import Fixed
from ..handover import Slots
from ..packing import UNPACKED, Packing
from ..walk import Place, Walk, WorkItem


@dataclass(frozen=True)
class Source(Fixed):
    """One input: its TMA atom, its tensor of coordinates [rows, D, H, B], and the shared memory it goes to [rows, columns, n]."""

    atom: cute.CopyAtom
    tensor: cute.Tensor
    target: cute.Tensor

    def tiles(self, packing: Packing, head: Int32, batch: Int32, first: Int32):
        """(global tiles, shared tiles) of one head for `cute.copy`, both indexed [None, i]; global ones from position `first`
        on."""
        rows, columns = (cute.size(m) for m in self.target.shape[:2])
        view = packing.tiles(self.tensor[None, None, head, batch], rows, columns, first)
        shared, source = cpasync.tma_partition(
            self.atom, 0, cute.make_layout(1), cute.group_modes(self.target, 0, 2), cute.group_modes(view, 0, 2))
        return source, shared


@dataclass(frozen=True)
class Loader(Fixed):
    """The producer's part of the kernel. packing: of the queries; slots: for the consumers, and one that the scheduler fills,
    which is `given`."""

    packing: Packing
    q: Source
    k: Source
    v: Source
    q_ring: Ring
    k_ring: Ring
    v_ring: Ring
    slots: Slots
    given: int
    consumers: int

    def announce(self, turn: Turn) -> None:
        """Hands the consumers what the scheduler found, when the query tile is free; they see it when its barrier completes. Of
        several tiles they give the last one back before they have taken any (`Forward.consume`): it starts as taken. One tile is
        given back when a work item begins (`queries`)."""
        taken = Int32(turn.index == turn.stages - 1) if turn.stages > 1 else Int32(0)
        self.q_ring.wait_empty(replace(turn, phase=turn.phase ^ taken))
        self.slots.copy(Int32(self.given), slot_of(turn))

    def queries(self, item: WorkItem, place: Place, turn: Turn, last_k: Turn) -> None:
        """Loads a work item's query rows, a copy for each warpgroup. last_k: of the item before, with whose product the only
        query tile is free."""
        if turn.stages == 1:
            self.k_ring.wait_read(last_k)
        source, shared = self.q.tiles(self.packing, item.head, item.batch, place.q_begin)
        barrier = self.q_ring.full + turn.index
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.q_ring.bytes)
        for group in range(self.consumers):
            there = turn.index * self.consumers + group
            cute.copy(self.q.atom, source[None, group], shared[None, there], tma_bar_ptr=barrier)

    def no_more(self, turn: Turn) -> None:
        """No queries to wait for."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.q_ring.full + turn.index)

    def fill(self, which: Source, tiles, ring: Ring, tile: Int32, turn: Turn) -> None:
        source, shared = tiles
        barrier = ring.acquire(turn)
        cute.copy(which.atom, source[None, tile], shared[None, turn.index], tma_bar_ptr=barrier)


def slot_of(turn: Turn) -> Int32:
    """Where the consumers read of the work item of a query tile's turn. One tile's turns take two slots: it is loaded while the
    item before ends."""
    return turn.index if turn.stages > 1 else turn.phase


@cute.jit
def load_item(loader: Loader, work: Ring, given: tuple[WorkItem, Place, Walk], kv_heads: tuple[Int32, Int32], q_turn: Turn,
              turn: Turn) -> Turn:
    """The queries of an item with keys, and its keys and values: the first K comes first where the queries' place may be taken
    longer than its stage, and K of a tile before V of the tile before it, because the consumers want it first. Asks for the next
    work item before it waits for the last K's stage. kv_heads: head and batch of K and V. Returns the next free stage."""
    item, place, walk = given
    k_tiles = loader.k.tiles(UNPACKED, *kv_heads, place.kv_begin)
    v_tiles = loader.v.tiles(UNPACKED, *kv_heads, place.kv_begin)
    if cutlass.const_expr(q_turn.stages > 1):
        loader.queries(item, place, q_turn, turn)
    if walk.valid:
        loader.fill(loader.k, k_tiles, loader.k_ring, walk.tile, turn)
        if cutlass.const_expr(q_turn.stages == 1):
            loader.queries(item, place, q_turn, turn.before())
        v_tile, v_turn = walk.tile, turn
        walk, turn = walk.next(), turn.next()
        if ~walk.valid:
            work.release(Turn.first(1))
        while walk.valid:
            ahead = walk.next()
            if ~ahead.valid:
                work.release(Turn.first(1))
            loader.fill(loader.k, k_tiles, loader.k_ring, walk.tile, turn)
            loader.fill(loader.v, v_tiles, loader.v_ring, v_tile, v_turn)
            v_tile, v_turn = walk.tile, turn
            walk, turn = ahead, turn.next()
        loader.fill(loader.v, v_tiles, loader.v_ring, v_tile, v_turn)
    else:
        work.release(Turn.first(1))
        if cutlass.const_expr(q_turn.stages == 1):
            loader.no_more(q_turn)
    return turn
