"""A per-lane function cannot see its row: asking for the row's top values or mean inside the edit."""
import torch

EXPECT = {"kind": "error", "stage": "before launch",
          "message_has_any": ["reduc", "row", "topk", "scalar", "one score", "not supported"]}


def make(device):
    def score_mod(score, b, h, q, k):
        best = torch.topk(score, 4, dim=-1).values
        return torch.where(score >= best[..., -1], score, float("-inf"))

    return dict(name="error_reduction_over_keys", source="meta-pytorch/attention-gym#92",
                q_shape=(1, 1, 32, 32), kv_shape=(1, 1, 32, 32), v_dim=32, dtype=torch.float32,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[],
                note="explain that score is a single number; suggest computing the selection outside and capturing it")
