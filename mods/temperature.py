"""One learned temperature for each head (Henry et al. 2020, "Query-Key Normalization for Transformers", section 3, per head
as in Swin V2)."""


def head_temperature(gain):
    """Score edit that multiplies the scores of head h by gain[h]. `gain`: float tensor [heads]; it may require a gradient."""

    def score_mod(score, b, h, q, kv):
        return score * gain[h]

    return score_mod
