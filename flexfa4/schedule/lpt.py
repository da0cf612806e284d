"""Orders of the unsplit work rows. Longest first, inside sections of heads whose keys and values stay in L2.

A schedule that took the longest rows of all heads first would stream every head's keys and values through L2 at once; sections
keep the rows that share them near in time (as the scheduler of FlashAttention-4 does), and longest-first inside each section
leaves short rows for its end, where they fill the gaps.
"""
from __future__ import annotations

import numpy as np

from .work import Work

# Size of L2 in bytes (B200 126 MB, H100/H200 50 MB: vendor data sheets).
L2_BYTES = {"sm100": 126 << 20, "sm90": 50 << 20}

# Keys and values get half of it: queries, outputs, and the next section coming in take the rest.
L2_SHARE = 0.5


def section_kv_heads(kv_len: int, head_dim: int, head_dim_v: int, itemsize: int, l2_bytes: int = L2_BYTES["sm100"]) -> int:
    """How many KV heads (of any batch) make a section: those whose K and V fit the share of L2; at least one."""
    return max(1, int(l2_bytes * L2_SHARE) // max(1, kv_len * (head_dim + head_dim_v) * itemsize))


def balanced_sections(groups: int, per_section: int) -> np.ndarray:
    """int32 [groups]: the section of each (batch, KV head). Sizes differ by at most one: a short last section would leave too
    few rows to fill the gaps with."""
    count = -(-groups // per_section)
    return (np.arange(groups, dtype=np.int64) * count // max(1, groups)).astype(np.int32)


def ranked_rows(batch: int, heads: int, kv_heads: int, q_tiles: int, per_section: int) -> np.ndarray:
    """int64 [batch * heads * q_tiles, 3]: (batch, head, rank) in the order of `lpt_order`, where the q_tile of rank 0 is the one
    that costs most in its batch and head, and so on. That is the same order where all batches and heads cost the same."""
    group = heads // kv_heads
    pair, rank, member = (x.reshape(-1) for x in np.indices((batch * kv_heads, q_tiles, group)))
    order = np.lexsort((member, pair, rank, balanced_sections(batch * kv_heads, per_section)[pair]))
    rows = np.stack([pair // kv_heads, pair % kv_heads * group + member, rank], axis=1)
    return rows[order]


def natural_order(work: Work) -> np.ndarray:
    """int32 [rows]: batch, head, q_tile ascending."""
    return np.arange(work.rows, dtype=np.int32)


def lpt_order(work: Work, costs: np.ndarray, per_section: int) -> np.ndarray:
    """int32 [rows]: a permutation of the work rows. Sections in order; inside one, costs descending; rows of equal cost go by
    q_tile descending, then by KV head with the query heads of one KV head next to each other."""
    group = work.heads // work.kv_heads
    section = balanced_sections(work.batch * work.kv_heads, per_section)
    # Rows as [q_tile descending, batch * kv_head, head in group]: the order that ties keep under a stable sort.
    rows = np.arange(work.rows, dtype=np.int32).reshape(work.batch * work.kv_heads, group, work.q_tiles)
    tied = np.ascontiguousarray(rows.transpose(2, 0, 1)[::-1]).reshape(-1)
    span = float(costs.max(initial=0.0)) + 1.0
    key = section[tied // (group * work.q_tiles)] * span - costs[tied]
    return tied[np.argsort(key, kind="stable")]
