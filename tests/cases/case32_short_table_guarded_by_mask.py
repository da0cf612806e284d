"""The table is shorter than the key length; the author relies on the mask to keep the lookup in range."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v", "captured"),
          "note": "no crash, no stray read; masked lanes contribute nothing"}


def make(device):
    S, N = 128, 115
    g = torch.Generator().manual_seed(32)
    tab = torch.randn(N, generator=g).to(device).requires_grad_()

    def mask_mod(b, h, q, k):
        return (k < N) & (q >= k)

    def score_mod(score, b, h, q, k):
        return score + tab[k]

    def ref_score_mod(score, b, h, q, k):             # what is meant: never touch tab[N..]
        return score + tab[torch.clamp(k, max=N - 1)]

    return dict(name="short_table_guarded_by_mask", source="pytorch/pytorch#150321",
                q_shape=(1, 1, S, 16), kv_shape=(1, 1, S, 16), v_dim=16, dtype=torch.float32,
                score_mod=score_mod, mask_mod=mask_mod, requires_grad_captured=[tab],
                ref_score_mod=ref_score_mod,
                note="use ref_score_mod for the dense reference; score_mod itself reads out of range on masked lanes")
