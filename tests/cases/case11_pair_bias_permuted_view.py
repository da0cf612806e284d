"""Full pair bias kept as [B, N, N, H] by the model and handed over as a permuted, scaled, non-contiguous view."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v", "captured")}


def make(device):
    B, H, N, D = 2, 3, 130, 32
    g = torch.Generator().manual_seed(11)
    leaf = torch.randn(B, N, N, H, generator=g).to(device).requires_grad_()
    pair = (leaf * 2.0).permute(0, 3, 1, 2)        # strided view of a computed tensor

    def score_mod(score, b, h, q, k):
        return score + pair[b, h, q, k]

    return dict(name="pair_bias_permuted_view", source="meta-pytorch/attention-gym#45",
                q_shape=(B, H, N, D), kv_shape=(B, H, N, D), v_dim=D, dtype=torch.float32,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[leaf],
                note="capture is a non-leaf with strides; gradient must flow through it to the leaf; 4-index lookup, one "
                     "cell per (b,h,q,k)")
