"""Window plus the first tokens, which soak up attention (Xiao et al. 2023, "Efficient Streaming Language Models with
Attention Sinks", section 3.2)."""


def sink_window(sink, window):
    """Causal mask that keeps the first `sink` keys and the last `window` keys of each query."""

    def mask_mod(b, h, q, kv):
        return (kv <= q) & ((kv < sink) | (q - kv < window))

    return mask_mod
