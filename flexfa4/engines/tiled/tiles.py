"""How the tiled engine cuts attention: tile sizes, and the walk over one row's runs in wide blocks."""
from __future__ import annotations

from dataclasses import dataclass

PARTIAL, FULL = 1, 2            # flexfa4.sparsity.Kind, as found in the runs

KV_TILE = 128
# Rows times keys of one score block; 2^18 floats are 1 MiB. Up to two such blocks of short rows share a product, so that the
# fixed cost of a tile is paid once for more heads. The block, its gradient and the operands of the next product stay
# within a server core's share of L2 and L3.
BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Segment:
    """Keys [begin, end); `partial` says that the mask must be evaluated there."""

    begin: int
    end: int
    partial: bool


@dataclass(frozen=True)
class Block:
    """Keys handled by one matrix product: one stretch of positions, or several that are packed together."""

    segments: tuple[Segment, ...]
    contiguous: bool
    width: int

    @property
    def partial(self) -> bool:
        return any(s.partial for s in self.segments)


def query_tile(q_len: int, group: int) -> int:
    """Rows of a query tile: about 256 rows over the heads of a group, a power of two in [16, 256]."""
    want = max(16, 256 // group)
    tile = 16
    while tile * 2 <= want and tile < q_len:
        tile *= 2
    return tile


def finer_tile(tile: int, mean_keys: float, heads: int) -> int:
    """The query tile for `heads` heads (of all batches) whose rows of tiles hold `mean_keys` keys on average.

    Half of a tall one where rows are short, since the tile's own height then adds much to what each of its rows has to visit:
    half of it times 256 scores a head, 0.04 ms on two cores. For fewer than three heads the torch calls of another tile, 0.12 ms,
    cost more."""
    return tile // 2 if tile > KV_TILE and mean_keys < 4 * tile and heads > 2 else tile


def row_blocks(runs, kv_tile: int, kv_len: int, limit: int) -> list[Block]:
    """The blocks of one row, at most `limit` keys each, in ascending order.

    runs: (begin, end, kind) in kv tiles, ascending and disjoint. Neighbouring runs join into one block, FULL and PARTIAL alike;
    stretches that do not touch are packed, since a product over several short ones costs less than one product each.
    """
    blocks: list[Block] = []
    pending: list[Segment] = []
    room = limit
    for tile_begin, tile_end, kind in runs:
        begin, end = tile_begin * kv_tile, min(tile_end * kv_tile, kv_len)
        while begin < end:
            take = min(end - begin, room)
            pending.append(Segment(begin, begin + take, kind == PARTIAL))
            begin, room = begin + take, room - take
            if room == 0:
                blocks.append(_block(pending))
                pending, room = [], limit
    if pending:
        blocks.append(_block(pending))
    return blocks


def _block(segments: list[Segment]) -> Block:
    contiguous = all(a.end == b.begin for a, b in zip(segments, segments[1:]))
    return Block(tuple(segments), contiguous, sum(s.end - s.begin for s in segments))
