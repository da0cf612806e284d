"""Causal attention: a query sees itself and what came before (Vaswani et al. 2017, "Attention Is All You Need", 3.2.3)."""


def causal_mask(b, h, q, kv):
    """True where key `kv` is not after query `q`."""
    return kv <= q
