"""Fresh random numbers drawn inside the edit, meant as dropout."""
import torch

EXPECT = {"kind": "error", "stage": "before launch", "message_has_any": ["rand", "random", "dropout", "seed"]}


def make(device):
    def score_mod(score, b, h, q, k):
        return torch.where(torch.rand((), device=score.device) < 0.1, float("-inf"), score)

    return dict(name="error_random_in_score_edit", source="meta-pytorch/attention-gym#77",
                q_shape=(1, 1, 50, 32), kv_shape=(1, 1, 50, 32), v_dim=32, dtype=torch.float32,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[],
                note="forward and backward would draw different numbers; refuse (also pytorch#141784)")
