"""Length one past a tile boundary, bf16, a mask and a score edit used together; backward must stay finite."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v"), "finite": True}


def make(device):
    L, D = 1025, 64

    def mask_mod(b, h, q, k):
        return k <= q

    def score_mod(score, b, h, q, k):
        return score + (q - k)           # int added to float; large and positive off the mask side

    return dict(name="distance_score_causal_1025", source="pytorch/pytorch#153799",
                q_shape=(1, 1, L, D), kv_shape=(1, 1, L, D), v_dim=D, dtype=torch.bfloat16,
                score_mod=score_mod, mask_mod=mask_mod, requires_grad_captured=[],
                note="tail tile holds 1 row; padding lanes must not leak inf*0 into dq/dk/dv; scores reach about 1000, "
                     "past bf16 integer range")
