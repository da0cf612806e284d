"""Bounded logits: cap * tanh(score / cap)."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v"), "finite": True}


def make(device):
    cap = 50.0

    def score_mod(score, b, h, q, k):
        return cap * torch.tanh(score / cap)

    return dict(name="softcap", source="Dao-AILab/flash-attention#2396",
                q_shape=(2, 4, 192, 128), kv_shape=(2, 4, 192, 128), v_dim=128, dtype=torch.bfloat16,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[], q_gain=20.0,
                note="q is multiplied by q_gain so tanh saturates in places; result must lie in [-cap, cap]; gradient "
                     "vanishes, never NaN, when saturated")
