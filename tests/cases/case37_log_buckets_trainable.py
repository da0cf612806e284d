"""Log-spaced distance buckets (bidirectional) select a trainable per-head bias."""
import math
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v", "captured")}


def make(device):
    H, S, nb, far = 6, 170, 32, 128
    g = torch.Generator().manual_seed(37)
    emb = torch.randn(nb, H, generator=g).to(device).requires_grad_()
    half = nb // 2
    exact = half // 2

    def bucket(rel):
        side = (rel > 0).to(torch.int64) * half
        n = rel.abs()
        wide = exact + (torch.log(n.to(torch.float32) / exact) / math.log(far / exact) * (half - exact) + 1e-3).to(torch.int64)
        wide = torch.minimum(wide, torch.full_like(wide, half - 1))
        return side + torch.where(n < exact, n.to(torch.int64), wide)

    def score_mod(score, b, h, q, k):
        return score + emb[bucket(k - q), h]

    return dict(name="log_buckets_trainable", source="huggingface/transformers#36103",
                q_shape=(1, H, S, 64), kv_shape=(1, H, S, 64), v_dim=64, dtype=torch.float32,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[emb],
                note="float->int cast, full_like, log(0) in the branch not taken; +1e-3 keeps exact bucket edges away from "
                     "rounding")
