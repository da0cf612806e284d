"""Lookup at q-k with no shift: torch reads negative positions from the end of the table."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v", "captured")}


def make(device):
    H, S, D = 8, 160, 64
    g = torch.Generator().manual_seed(8)
    rel = torch.randn(2 * S, generator=g).to(device).requires_grad_()
    gain = torch.randn(H, generator=g).to(device).requires_grad_()

    def score_mod(score, b, h, q, k):
        return score + rel[q - k] * gain[h]

    return dict(name="negative_lookup_wraps", source="pytorch/pytorch#188878",
                q_shape=(1, H, S, D), kv_shape=(1, H, S, D), v_dim=D, dtype=torch.bfloat16,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[rel, gain],
                note="index differs per lane after the wrap, gain is uniform per head; mixing both is what a vectoriser "
                     "gets wrong")
