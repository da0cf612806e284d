"""A leftover print() in the mask."""
import torch

EXPECT = {"kind": "value_or_error", "grads": (), "message_has_any": ["print", "side effect"],
          "note": "either run once at trace time and give the right answer, or say plainly that print is not possible "
                  "in a mod"}


def make(device):
    def mask_mod(b, h, q, k):
        ok = q >= k
        print("mask_mod", ok.dtype)
        return ok

    return dict(name="print_in_mask", source="pytorch/pytorch#158534",
                q_shape=(1, 1, 33, 32), kv_shape=(1, 1, 33, 32), v_dim=32, dtype=torch.float32,
                score_mod=None, mask_mod=mask_mod, requires_grad_captured=[],
                note="users asked for a way to look inside a mod; an interpreted debug mode on small inputs answers it")
