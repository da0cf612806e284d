"""Causal sliding window: a query sees the last `window` positions (Jiang et al. 2023, "Mistral 7B", section 2)."""


def sliding_window(window):
    """Mask that lets query q see the `window` keys q - window + 1 ... q."""

    def mask_mod(b, h, q, kv):
        return (kv <= q) & (q - kv < window)

    return mask_mod
