"""Trainable relative bias, one row per head, looked up at q-k shifted to be non-negative."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v", "captured"), "bitwise_repeatable": True}


def make(device):
    H, S, D = 4, 200, 64
    g = torch.Generator().manual_seed(7)
    bias = torch.randn(H, 2 * S - 1, generator=g).to(device).requires_grad_()
    shift = S - 1

    def score_mod(score, b, h, q, k):
        return score + bias[h, q - k + shift]

    return dict(name="relative_bias_per_head_trainable", source="meta-pytorch/attention-gym#20",
                q_shape=(2, H, S, D), kv_shape=(2, H, S, D), v_dim=D, dtype=torch.bfloat16,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[bias],
                note="each table cell receives up to B*S contributions; fp32 table with bf16 q/k/v; same sum order wanted "
                     "on every run (pytorch#137452)")
