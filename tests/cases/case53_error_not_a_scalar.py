"""One index forgotten: the edit returns a whole row instead of one number."""
import torch

EXPECT = {"kind": "error", "stage": "before launch", "message_has_any": ["scalar", "shape", "0-d", "index", "dimension"]}


def make(device):
    S = 24
    bias = torch.randn(2, S, generator=torch.Generator().manual_seed(53)).to(device)

    def score_mod(score, b, h, q, k):
        return score + bias[h]

    return dict(name="error_not_a_scalar", source="pytorch/pytorch#147551",
                q_shape=(1, 2, S, 32), kv_shape=(1, 2, S, 32), v_dim=32, dtype=torch.float32,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[],
                note="because S equals the row length, a lenient broadcast would run and be wrong")
