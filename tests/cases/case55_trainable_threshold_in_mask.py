"""The mask compares a trainable gate with a threshold: no gradient can flow, and it must not be an error."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v"), "captured_grad": "none_or_zero", "empty_rows": "zero"}


def make(device):
    S = 70
    gate = torch.rand(2, S, generator=torch.Generator().manual_seed(55)).to(device).requires_grad_()

    def mask_mod(b, h, q, k):
        return (gate[b, k] > 0.6) & (k <= q)

    return dict(name="trainable_threshold_in_mask", source="meta-pytorch/attention-gym#92",
                q_shape=(2, 2, S, 32), kv_shape=(2, 2, S, 32), v_dim=32, dtype=torch.float32,
                score_mod=None, mask_mod=mask_mod, requires_grad_captured=[gate],
                note="early rows may be dead")
