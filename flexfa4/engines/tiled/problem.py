"""The geometry of one call: who shares a mask row, how heads are batched, and the index leaves of a tile."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Iterator

import torch

from flexfa4.facts.relative import is_relative, small_literals
from flexfa4.interpret import program
from flexfa4.ir import Op
from flexfa4.ir.bound import BoundGraph
from flexfa4.threads import cached_property

from .hiding import Hidden, Lanes
from .lookups import evaluate_visible, proven_safe
from .tiles import BLOCK_ELEMENTS, KV_TILE, Block, Segment, query_tile, row_blocks
from .unruly import Marks, holds_unruly, largest_product, tamed

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
# Lanes of a mask (5 bytes each) that one query tile keeps for the heads still to come; more are evaluated again for each chunk.
KEPT_LANES = 1 << 22
# Tiles of a mask of q - kv that are kept for others at the same distance: causal has two, a window four.
KEPT_DISTANCES = 64
# Query rows below which a pass over q and k to bound the scores is not repaid.
SHORT = 64


@dataclass(frozen=True, eq=False)
class Mask:
    """What the engine needs of a mask: the spans at its tiles, and the graph that decides inside PARTIAL tiles (None where
    there are no PARTIAL tiles)."""

    row_ptr: torch.Tensor        # int32 [rows + 1]
    runs: torch.Tensor           # int32 [n, 3]: begin, end, kind, in kv tiles
    q_tile: int
    kv_tile: int
    batches: int                 # 1 where the mask ignores b
    heads: int                   # 1 where the mask ignores h
    bound: BoundGraph | None

    @cached_property
    def rows(self) -> list[list[list[int]]]:
        """The runs of each row, as plain lists on the host."""
        ptr, runs = self.row_ptr.tolist(), self.runs.tolist()
        return [runs[a:b] for a, b in zip(ptr, ptr[1:])]

    @cached_property
    def widths(self) -> list[int]:
        """Keys of each row that has any."""
        return [sum(end - begin for begin, end, _ in row) * self.kv_tile for row in self.rows if row]


@dataclass(frozen=True)
class Chunk:
    """Batches [b0, b1), key heads [h0, h1) and query heads [g0, g1) of each group: the heads that one bmm covers."""

    b0: int
    b1: int
    h0: int
    h1: int
    g0: int
    g1: int
    mask_row: int                # index of this chunk's (mask batch, mask head)

    @property
    def pairs(self) -> int:
        return (self.b1 - self.b0) * (self.h1 - self.h0)

    @property
    def heads(self) -> int:
        return self.g1 - self.g0


@dataclass(eq=False)
class QueryTile:
    """Rows [first, end), and what chunks that share a mask row also share of it: the blocks to visit, what is hidden there."""

    index: int
    first: int
    end: int
    positions: torch.Tensor      # int64 [rows, 1]
    blocks: dict[int, list[Block]] = field(default_factory=dict)
    hidden: dict[tuple[int, int], list[Hidden]] = field(default_factory=dict)
    room: int = KEPT_LANES

    @property
    def rows(self) -> int:
        return self.end - self.first


class Problem:
    """One attention call on tensors q [B, Hq, Sq, D], k [Bk, Hkv, Skv, D], v [Bk, Hkv, Skv, Dv] with Bk in (1, B).

    Everything is computed in float32, or in float64 where q is float64. Scores are kept in units of log 2 where there is no
    score graph (log2(e) is folded into the scale); a score graph sees natural scores.
    """

    def __init__(self, q, k, v, scale: float, score: BoundGraph | None, mask: Mask | None):
        self.batch, self.q_heads, self.q_len, self.dim = q.shape
        self.kv_batch, self.kv_heads, self.kv_len, self.v_dim = v.shape
        self.group = self.q_heads // self.kv_heads
        self.dtype = torch.float64 if q.dtype is torch.float64 else torch.float32
        self.device, self.scale, self.score, self.mask = q.device, scale, score, mask
        # How much score makes a factor of two: ln 2 for natural scores, 1 where log2(e) is folded into the scale.
        self.unit = 1.0 if score is None else LN_2
        self.folded = scale * LOG2_E if score is None else scale
        self.q = self.grouped(q)
        self.k, self.v = (t.detach().to(self.dtype).contiguous() for t in (k, v))
        self.marks = None                       # of inf and NaN among the values, which are 0 in `v` then
        if self.hides and holds_unruly(self.v):
            self.marks, self.v = Marks(self.v), tamed(self.v)
        self.kv_index = torch.arange(self.kv_len, device=self.device)
        self.q_tile = mask.q_tile if mask is not None else query_tile(self.q_len, self.group)
        self._relative = self.hides and is_relative(mask.bound.graph) and small_literals(mask.bound.literals)
        self._by_distance: dict[tuple[int, int, int, int], Lanes] = {}

    def grouped(self, t: torch.Tensor) -> torch.Tensor:
        """[B, Hq, ...] as [B, Hkv, group, ...]."""
        return t.detach().unflatten(1, (self.kv_heads, self.group))

    @property
    def key_limit(self) -> int:
        """The widest block for a full group of heads."""
        rows = self.q_tile * (1 if self.per_head else self.group)
        several = not self.per_head and self.kv_heads > 1
        # Two products of half the width run faster than one: a head on each core (measured, MKL on two cores).
        return max(KV_TILE, BLOCK_ELEMENTS // max(1, rows) // (2 if several else 1))

    @property
    def usual_width(self) -> int:
        """Keys in the block that a query tile typically visits."""
        limit = min(self.key_limit, self.kv_len)
        if self.mask is None or not self.mask.widths:
            return limit
        widths = self.mask.widths
        return max(1, sum(min(w, limit) for w in widths) // len(widths))

    @cached_property
    def small(self) -> bool:
        """True if no score can be so large that its exponential, or the sum of a row of them, leaves float32: then the online
        softmax needs no maximum. |q . k| is at most |q| |k|; 2^64 times a million keys is far from 2^127. False where q or k
        holds inf or NaN, and off the CPU, where asking would wait for the device."""
        if self.score is not None or self.device.type != "cpu" or self.q_len < SHORT:
            return False
        return largest_product(self.q, self.k, self.dtype) * abs(self.folded) <= 64

    @property
    def hides(self) -> bool:
        """True where a mask may hide single lanes of a tile."""
        return self.mask is not None and self.mask.bound is not None

    @property
    def per_head(self) -> bool:
        return self.mask is not None and self.mask.heads > 1

    def chunks(self) -> Iterator[Chunk]:
        """Heads in units that one bmm takes: as many as keep a score block near BLOCK_ELEMENTS."""
        if self.per_head:
            for b in range(self.batch):
                mask_batch = b if self.mask.batches > 1 else 0
                for h in range(self.q_heads):
                    kv_head, g = divmod(h, self.group)
                    yield Chunk(b, b + 1, kv_head, kv_head + 1, g, g + 1, mask_batch * self.mask.heads + h)
            return
        one_head = self.group * min(self.q_tile, self.q_len) * self.usual_width
        many = max(1, 2 * BLOCK_ELEMENTS // max(1, one_head))
        per_batch = self.kv_batch == 1 or (self.mask is not None and self.mask.batches > 1)
        batches = 1 if per_batch else max(1, many // self.kv_heads)
        heads = -(-self.kv_heads // -(-self.kv_heads // min(self.kv_heads, many)))       # as even as they can be
        for b in range(0, self.batch, batches):
            row = b if self.mask is not None and self.mask.batches > 1 else 0
            for h in range(0, self.kv_heads, heads):
                yield Chunk(b, min(b + batches, self.batch), h, min(h + heads, self.kv_heads), 0, self.group, row)

    def query_tiles(self) -> Iterator[QueryTile]:
        rows = torch.arange(self.q_len, device=self.device).view(-1, 1)
        for i, first in enumerate(range(0, self.q_len, self.q_tile)):
            end = min(first + self.q_tile, self.q_len)
            yield QueryTile(i, first, end, rows[first:end])

    def blocks(self, chunk: Chunk, tile: QueryTile) -> list[Block]:
        """The key blocks that a query tile visits."""
        found = tile.blocks.get(chunk.mask_row)
        if found is None:
            found = tile.blocks[chunk.mask_row] = row_blocks(*self._runs(chunk, tile), self.kv_len, self.key_limit)
        return found

    def _runs(self, chunk: Chunk, tile: QueryTile) -> tuple[list, int]:
        """The runs of a query tile, and the key tile they count in."""
        if self.mask is None:
            return [(0, -(-self.kv_len // KV_TILE), 2)], KV_TILE
        q_tiles = -(-self.q_len // self.q_tile)
        return self.mask.rows[chunk.mask_row * q_tiles + tile.index], self.mask.kv_tile

    def queries(self, t: torch.Tensor, chunk: Chunk, tile: QueryTile) -> torch.Tensor:
        """The tile's rows of a grouped tensor as [pairs, heads * rows, ...], in the compute type."""
        part = t[self.rows_of(chunk, tile)]
        return part.reshape(chunk.pairs, chunk.heads * tile.rows, *t.shape[4:]).to(self.dtype)

    def keys(self, t: torch.Tensor, chunk: Chunk) -> torch.Tensor:
        """The chunk's heads of k or v [Bk, Hkv, ...] (or of a gradient of theirs) as [pairs, ...]; a view."""
        b0, b1 = (0, 1) if self.kv_batch == 1 else (chunk.b0, chunk.b1)
        return t[b0:b1, chunk.h0:chunk.h1].view(chunk.pairs, *t.shape[2:])

    def positions(self, block: Block) -> torch.Tensor:
        """Key positions of a block, int64 [width]."""
        if block.contiguous:
            return self.kv_index[block.segments[0].begin:block.segments[-1].end]
        return torch.cat([self.kv_index[s.begin:s.end] for s in block.segments])

    def take(self, t: torch.Tensor, block: Block) -> torch.Tensor:
        """The block's keys of a [pairs, Skv, ...] tensor: a view where they are one stretch, else packed."""
        if block.contiguous:
            return t[:, block.segments[0].begin:block.segments[-1].end]
        return t.index_select(1, self.positions(block))

    def add(self, t: torch.Tensor, block: Block, amount: torch.Tensor) -> None:
        """Adds [pairs, D, width] to the block's keys of a [pairs, D, Skv] tensor; positions are distinct, so repeatable."""
        if block.contiguous:
            t[..., block.segments[0].begin:block.segments[-1].end].add_(amount)
        else:
            t.index_add_(2, self.positions(block), amount)

    @cached_property
    def _heads(self) -> torch.Tensor:
        return torch.arange(self.q_heads, device=self.device).view(1, self.kv_heads, self.group, 1, 1)

    def leaves(self, chunk: Chunk, tile: QueryTile) -> dict:
        """b, h and q of a tile, shaped to broadcast over [batches, key heads, group heads, rows, keys]."""
        return {
            Op.B: torch.arange(chunk.b0, chunk.b1, device=self.device).view(-1, 1, 1, 1, 1),
            Op.H: self._heads[:, chunk.h0:chunk.h1, chunk.g0:chunk.g1],
            Op.Q: tile.positions,
        }

    def seen(self, chunk: Chunk, tile: QueryTile, block: Block, hidden: list[Hidden]) -> torch.Tensor:
        """1 where the mask shows a key of the block, else 0: [pairs, heads * rows, width]."""
        lanes = torch.ones(self.tile_shape(chunk, tile, block.width), dtype=self.dtype, device=self.device)
        for part in hidden:
            part.fill(lanes, 0.0)
        return lanes.view(chunk.pairs, chunk.heads * tile.rows, block.width)

    def tile_shape(self, chunk: Chunk, tile: QueryTile, width: int) -> tuple[int, ...]:
        return (chunk.b1 - chunk.b0, chunk.h1 - chunk.h0, chunk.heads, tile.rows, width)

    def rows_of(self, chunk: Chunk, tile: QueryTile) -> tuple[slice, ...]:
        """Where a tile lies in a grouped tensor."""
        return (slice(chunk.b0, chunk.b1), slice(chunk.h0, chunk.h1), slice(chunk.g0, chunk.g1), slice(tile.first, tile.end))

    @cached_property
    def lookups_safe(self) -> bool:
        """True if the score graph cannot read past a capture at any position of this call."""
        sizes = {Op.B: self.batch, Op.H: self.q_heads, Op.Q: self.q_len, Op.KV: self.kv_len}
        return proven_safe(self.score, sizes)

    def edited(self, lanes: torch.Tensor, leaves: dict, block: Block, hidden) -> torch.Tensor:
        """The score graph on one tile of scores: full shape, compute type, contiguous, safe to write into.

        Raises LookupOutOfRange if a lane outside `hidden` depends on a lookup past the end of a capture."""
        env = {**leaves, Op.KV: self.positions(block), Op.SCORE: lanes}
        if self.lookups_safe:
            (result,) = program((self.score.graph.root,))(env, self.score.tensors, self.score.literals)
        else:
            result = evaluate_visible(self.score, env, lanes.shape, hidden)
        return owned(result, lanes)

    def hidden(self, chunk: Chunk, tile: QueryTile, block: Block) -> list[Hidden]:
        """What the mask hides of a block's PARTIAL segments."""
        if not block.partial:
            return []
        at = (chunk.mask_row, block.segments[0].begin)
        found = tile.hidden.get(at)
        if found is None:
            found = self._evaluate_mask(chunk, tile, block)
            tile.room -= sum(part.lanes.hidden.numel() for part in found)
            if tile.room >= 0:
                tile.hidden[at] = found
        return found

    def _evaluate_mask(self, chunk: Chunk, tile: QueryTile, block: Block) -> list[Hidden]:
        column, found = 0, []
        for segment in block.segments:
            width = segment.end - segment.begin
            if segment.partial:
                found.append(Hidden(slice(column, column + width), self._lanes(chunk, tile, segment)))
            column += width
        return found

    def _lanes(self, chunk: Chunk, tile: QueryTile, segment: Segment) -> Lanes:
        at = (chunk.mask_row, tile.first - segment.begin, tile.rows, segment.end - segment.begin)
        lanes = self._by_distance.get(at)
        if lanes is None:
            bound = self.mask.bound
            env = {**self.leaves(chunk, tile), Op.KV: self.kv_index[segment.begin:segment.end]}
            (seen,) = program((bound.graph.root,))(env, bound.tensors, bound.literals)
            lanes = Lanes(torch.logical_not(seen).to(self.device), self.dtype)
            if self._relative and len(self._by_distance) < KEPT_DISTANCES:
                self._by_distance[at] = lanes
        return lanes


def owned(result: torch.Tensor, tile: torch.Tensor) -> torch.Tensor:
    """`result` of a program as a contiguous tensor of the tile's shape, type and device, which may be written into."""
    if result is tile or (result.shape == tile.shape and result.dtype is tile.dtype and result.is_contiguous()):
        return result                     # a program's result of full shape is new memory: a lookup copies
    return torch.empty_like(tile).copy_(result)
