"""Attention with linear biases (Press et al. 2022, "Train Short, Test Long", section 3)."""
import math

import torch


def alibi_slopes(heads, device=None, dtype=torch.float32):
    """Slopes [heads] of the paper: 2**(-8 i / heads), i from 1. Head counts that are no power of two take the slopes of the
    power below and then every second one of the power above, as the authors' code does."""
    below = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * i / below) for i in range(1, below + 1)]
    slopes += [2 ** (-8 * i / (2 * below)) for i in range(1, 2 * below + 1, 2)][: heads - below]
    return torch.tensor(slopes, device=device, dtype=dtype)


def alibi_bias(slopes):
    """Score edit that adds -slopes[h] * (q - kv). `slopes`: float tensor [heads]; it may require a gradient."""

    def score_mod(score, b, h, q, kv):
        return score + slopes[h] * (kv - q)

    return score_mod
