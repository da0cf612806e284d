"""Query/key width 192, value width 128, causal with documents."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v")}


def make(device):
    S = 260
    doc = (torch.arange(S) // 90).to(device)

    def mask_mod(b, h, q, k):
        return (q >= k) & (doc[q] == doc[k])

    return dict(name="value_dim_differs", source="pytorch/pytorch#180278",
                q_shape=(1, 4, S, 192), kv_shape=(1, 4, S, 192), v_dim=128, dtype=torch.bfloat16,
                score_mod=None, mask_mod=mask_mod, requires_grad_captured=[],
                note="forward and backward tile choices must agree on the mask block size (Dao-AILab/flash-attention#2429, "
                     "pytorch#133674)")
