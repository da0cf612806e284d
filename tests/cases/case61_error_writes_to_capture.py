"""The edit tries to export the scores by writing into a captured tensor."""
import torch

EXPECT = {"kind": "error", "stage": "before launch", "message_has_any": ["write", "mutat", "in-place", "assign", "side effect"]}


def make(device):
    out = torch.zeros(1, 1, 20, 20, device=device)

    def score_mod(score, b, h, q, k):
        out[b, h, q, k] = score
        return score

    return dict(name="error_writes_to_capture", source="meta-pytorch/attention-gym#19",
                q_shape=(1, 1, 20, 32), kv_shape=(1, 1, 20, 32), v_dim=32, dtype=torch.float32,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[],
                note="a wanted feature elsewhere (dump the logits), but a race under tiling; refuse and point to an output "
                     "option")
