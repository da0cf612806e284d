"""Training mask of block diffusion (Arriola et al. 2025, "Block Diffusion", section 3.1 and appendix B.6).

A row holds a noisy copy of the text and then the clean one. A noisy block sees itself and the clean blocks before it; a clean
block sees the clean blocks up to itself.
"""


def block_diffusion(clean_len, block):
    """Mask over 2 * clean_len positions, noisy tokens first, in blocks of `block` tokens."""

    def mask_mod(b, h, q, kv):
        q_clean, kv_clean = q >= clean_len, kv >= clean_len
        q_block, kv_block = q % clean_len // block, kv % clean_len // block
        own_noise = ~q_clean & ~kv_clean & (q_block == kv_block)
        clean_past = ~q_clean & kv_clean & (kv_block < q_block)
        clean_causal = q_clean & kv_clean & (kv_block <= q_block)
        return own_noise | clean_past | clean_causal

    return mask_mod
