"""Per-token scales multiply the score, after an explicit cast and a dtype query."""
import torch

EXPECT = {"kind": "value", "grads": ()}


def make(device):
    B, H, Q, K = 2, 4, 65, 190
    g = torch.Generator().manual_seed(58)
    qs = (torch.rand(B, H, Q, generator=g) + 0.5).to(device)
    ks = (torch.rand(B, H // 2, K, generator=g) + 0.5).to(device)

    def score_mod(score, b, h, q, k):
        s = score.to(torch.float32) * qs[b, h, q] * ks[b, h // 2, k]
        return torch.clamp(s, min=torch.finfo(torch.float32).min / 2, max=torch.finfo(s.dtype).max / 2).float()

    return dict(name="dequantise_in_score_edit", source="pytorch/torchtitan#3789",
                q_shape=(B, H, Q, 64), kv_shape=(B, H // 2, K, 64), v_dim=64, dtype=torch.bfloat16,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[],
                note=".to(), .float(), .dtype and torch.finfo inside an edit; kv head derived from h; result may be fp32 "
                     "whatever q's dtype")
