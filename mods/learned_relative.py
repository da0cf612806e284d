"""Learned bias for each clipped distance (Shaw et al. 2018, "Self-Attention with Relative Position Representations", 3.2,
in the scalar form of Music Transformer and later models)."""
import torch


def learned_relative_bias(table):
    """Score edit that adds table[h, clip(kv - q) + reach].

    `table`: float tensor [heads, 2 * reach + 1]; it may require a gradient. Distances beyond reach share the outermost entry.
    """
    reach = table.shape[1] // 2

    def score_mod(score, b, h, q, kv):
        return score + table[h, torch.clamp(kv - q, -reach, reach) + reach]

    return score_mod
