"""Prefix language model: full attention inside a prefix, causal after it (Raffel et al. 2020, "T5", section 3.2.1)."""
import torch


def prefix_lm(prefix):
    """Mask that opens the first `prefix` keys to every query and is causal elsewhere.

    `prefix` is a number, or an integer tensor [B] with one length for each batch entry.
    """
    if isinstance(prefix, torch.Tensor) and prefix.ndim == 1:
        def mask_mod(b, h, q, kv):
            return (kv < prefix[b]) | (kv <= q)
    else:
        def mask_mod(b, h, q, kv):
            return (kv < prefix) | (kv <= q)
    return mask_mod
