"""Wide heads in fp32 with prefix-or-causal; usually dies for lack of shared memory."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v")}


def make(device):
    pre = torch.tensor([0, 33], dtype=torch.int32, device=device)

    def mask_mod(b, h, q, k):
        return (k <= q) | (k < pre[b])

    return dict(name="big_head_dims_fp32", source="pytorch/pytorch#133254",
                q_shape=(2, 1, 140, 256), kv_shape=(2, 1, 140, 256), v_dim=256, dtype=torch.float32,
                score_mod=None, mask_mod=mask_mod, requires_grad_captured=[],
                note="pick a tile that fits instead of failing with a shared-memory figure (also pytorch#132075, "
                     "torchtune#2218)")
