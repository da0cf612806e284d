"""Clocks that a KV tile takes on each resource of an SM, and whether a pair of CTAs pays. Rates of a B200 from the paper on
FlashAttention-4: a clock has 8192 operations of the tensor core, 16 special functions and 128 bytes of shared memory."""

from __future__ import annotations

from .forward import HALF_BYTES, Sm100Forward

TENSOR_OPERATIONS = 8192
SPECIAL_FUNCTIONS = 16
SHARED_BYTES = 128
TENSOR_CORE = "tensor core, both products"


def clocks(tiles: Sm100Forward) -> dict[str, int]:
    """Of one CTA, for the keys of one tile and all its query tiles, without a score graph. A product reads both operands from
    shared memory, but P from tensor memory; of a pair, each CTA holds half of K and V, and reads that for both."""
    rows, keys, own_keys = tiles.q_tile * tiles.q_tiles, tiles.kv_tile, tiles.kv_tile // tiles.ctas
    both_dims = tiles.head_dim + tiles.head_dim_v
    # Exponentials of scores, and the factor of each row.
    special = rows * (keys * (16 - tiles.software_exp) // 16 + 1)
    operands = rows * tiles.head_dim + tiles.q_tiles * own_keys * both_dims
    return {
        TENSOR_CORE: 2 * rows * keys * both_dims // TENSOR_OPERATIONS,
        "special functions": special // SPECIAL_FUNCTIONS,
        "shared memory, operands of the products": operands * HALF_BYTES // SHARED_BYTES,
        "shared memory, TMA of K and V": own_keys * both_dims * HALF_BYTES // SHARED_BYTES,
    }


def shared_memory(found: dict[str, int]) -> int:
    return sum(n for resource, n in found.items() if resource.startswith("shared memory"))


def held_by_shared_memory(tiles: Sm100Forward) -> bool:
    """Whether shared memory takes as long as anything else: a pair, which reads and loads half of K and V, then pays."""
    found = clocks(tiles)
    return shared_memory(found) >= max(found.values())
