"""A 0 / -inf additive mask returned from the mask function: every -inf is 'true' when cast to bool."""
import torch

EXPECT = {"kind": "error", "stage": "before launch", "message_has_any": ["bool", "dtype", "score_mod", "float"]}


def make(device):
    add = torch.zeros(30, 30).masked_fill(torch.triu(torch.ones(30, 30, dtype=torch.bool), 1), float("-inf")).to(device)

    def mask_mod(b, h, q, k):
        return add[q, k]

    return dict(name="error_mask_returns_float", source="HKUSTDial/flash-sparse-attention#146",
                q_shape=(1, 1, 30, 32), kv_shape=(1, 1, 30, 32), v_dim=32, dtype=torch.float32,
                score_mod=None, mask_mod=mask_mod, requires_grad_captured=[],
                note="bool(-inf) is True and bool(0.) is False, so a cast gives exactly the opposite mask")
