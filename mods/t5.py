"""Bucketed relative bias (Raffel et al. 2020, "T5", section 2.1; the bucket rule is that of the released code)."""
import math

import torch


def t5_bias(table, max_distance=128, bidirectional=False):
    """Score edit that adds table[bucket(kv - q), h].

    `table`: float tensor [buckets, heads]; it may require a gradient. Half of the buckets (of each side, if bidirectional)
    hold one distance each, the rest grow as the logarithm up to `max_distance`, and the last takes all that is further.
    Base-2 logarithms put distances that are powers of two exactly on their bucket's edge.
    """
    buckets = table.shape[0] // 2 if bidirectional else table.shape[0]
    exact = buckets // 2
    per_octave = (buckets - exact) / math.log2(max_distance / exact)

    def score_mod(score, b, h, q, kv):
        behind = q - kv
        distance = behind.abs() if bidirectional else behind.clamp(min=0)
        octaves = torch.log2(distance.clamp(min=exact).to(torch.float32) / exact)
        far = torch.clamp(exact + (octaves * per_octave).to(torch.int64), max=buckets - 1)
        bucket = torch.where(distance < exact, distance, far)
        if bidirectional:
            bucket = bucket + torch.where(behind < 0, buckets, 0)
        return score + table[bucket, h]

    return score_mod
