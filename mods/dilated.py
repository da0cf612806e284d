"""Dilated local attention (Beltagy et al. 2020, "Longformer", section 3.1, dilated sliding window)."""


def dilated_window(window, dilation):
    """Mask that lets query q see q itself and `window` keys on each side, `dilation` positions apart."""
    reach = window * dilation

    def mask_mod(b, h, q, kv):
        distance = q - kv
        return (distance <= reach) & (distance >= -reach) & (distance % dilation == 0)

    return mask_mod
