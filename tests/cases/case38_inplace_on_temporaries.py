"""Augmented assignment on locals and on the incoming score."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v", "captured"),
          "note": "treat += on a local as a rebind; captured tensors must not change"}


def make(device):
    W = 6
    g = torch.Generator().manual_seed(38)
    t = torch.randn(2 * W + 1, generator=g).to(device).requires_grad_()

    def score_mod(score, b, h, q, k):
        d = (q - k).clamp(-W, W)
        d += W
        s = score * 1.0
        s += t[d]
        s *= 0.5
        return s

    return dict(name="inplace_on_temporaries", source="pytorch/pytorch#146896",
                q_shape=(1, 1, 47, 32), kv_shape=(1, 1, 47, 32), v_dim=32, dtype=torch.float32,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[t],
                note="method-style clamp with positional bounds; d, s are fresh temporaries")
