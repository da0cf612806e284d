"""A Python if decides on an index value: cannot be one kernel for all positions, must be refused clearly."""
import torch

EXPECT = {"kind": "error", "stage": "before launch", "message_has_any": ["if", "branch", "control flow", "torch.where", "bool"],
          "message_points_at": "line of the mod"}


def make(device):
    tail = torch.tensor([True, False, True], device=device)

    def mask_mod(b, h, q, k):
        if tail[b] and q > 10:
            return k <= q
        return k >= 0

    return dict(name="error_if_on_index", source="meta-pytorch/attention-gym#25",
                q_shape=(3, 1, 20, 32), kv_shape=(3, 1, 20, 32), v_dim=32, dtype=torch.float32,
                score_mod=None, mask_mod=mask_mod, requires_grad_captured=[],
                note="today's message speaks of vmap and a retired repository (pytorch#157543, pytorch#186301); wanted: "
                     "name the line, suggest torch.where or &")
