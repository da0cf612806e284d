"""Causal attention when there are more keys than queries: the last query sees the last key.

This is the rule of decoding and chunked prefill with a cache (FlashAttention-2, README, "causal mask aligned to the bottom
right corner", since v2.1).
"""


def causal_bottom_right(q_len, kv_len):
    """Mask for `q_len` queries that are the last of `kv_len` positions: True where kv <= q + (kv_len - q_len).

    With fewer keys than queries the first q_len - kv_len rows see nothing; they give output 0.
    """
    offset = kv_len - q_len

    def mask_mod(b, h, q, kv):
        return kv <= q + offset

    return mask_mod
