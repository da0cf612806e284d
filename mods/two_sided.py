"""Local attention to both sides (Beltagy et al. 2020, "Longformer", section 3.1, sliding window)."""


def two_sided_window(left, right):
    """Mask that lets query q see the keys q - left ... q + right, both ends included."""

    def mask_mod(b, h, q, kv):
        return (kv >= q - left) & (kv <= q + right)

    return mask_mod
