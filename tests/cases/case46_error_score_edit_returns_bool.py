"""A mask passed where a score edit belongs: it accepts five arguments but yields a boolean."""
import torch

EXPECT = {"kind": "error", "stage": "before launch", "message_has_any": ["bool", "dtype", "mask_mod", "float"]}


def make(device):
    def score_mod(score, b, h, q, k):
        return q >= k

    return dict(name="error_score_edit_returns_bool", source="HKUSTDial/flash-sparse-attention#146",
                q_shape=(1, 1, 40, 32), kv_shape=(1, 1, 40, 32), v_dim=32, dtype=torch.float32,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[],
                note="casting True to 1.0 would be silently wrong")
