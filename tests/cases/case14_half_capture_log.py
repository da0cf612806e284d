"""log / sin / cos taken directly on a float16 captured value."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v", "captured")}


def make(device):
    g = torch.Generator().manual_seed(14)
    mass = (torch.rand(128, generator=g) + 0.5).to(torch.float16).to(device).requires_grad_()

    def score_mod(score, b, h, q, k):
        return score + torch.log(mass[k]) + 0.1 * torch.sin(mass[q]) * torch.cos(mass[k])

    return dict(name="half_capture_log", source="pytorch/pytorch#144869",
                q_shape=(1, 1, 128, 16), kv_shape=(1, 1, 128, 16), v_dim=16, dtype=torch.float16,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[mass],
                note="transcendentals on a half value: compute wide, no dtype complaint; captured gradient comes back as "
                     "float16")
