"""Several continuations of one prompt in one row: the prompt is stored once (Juravsky et al. 2024, "Hydragen", section 3)."""


def shared_prefix(prefix_len, branch_ids):
    """Causal mask in which every token sees the first `prefix_len` keys, and otherwise only its own branch.

    `branch_ids` is an integer tensor [S] naming the continuation of each position; its values inside the prefix do not
    matter to later rows. Use rotary positions that restart after the prefix for each branch.
    """

    def mask_mod(b, h, q, kv):
        return (kv <= q) & ((kv < prefix_len) | (branch_ids[q] == branch_ids[kv]))

    return mask_mod
