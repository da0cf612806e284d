"""int()/.item() on a captured 0-d tensor (a constant), as opposed to on an index."""
import torch

EXPECT = {"kind": "value_or_error", "grads": (), "message_has_any": [".item", "int(", "host"],
          "note": "may be folded to a constant, but then a later change of the tensor must be noticed"}


def make(device):
    w = torch.tensor(6, device=device)

    def mask_mod(b, h, q, k):
        return (q - k).abs() <= int(w) + w.item()

    def mutate():
        w.fill_(1)

    return dict(name="item_on_captured_number", source="meta-pytorch/attention-gym#97",
                q_shape=(1, 1, 40, 32), kv_shape=(1, 1, 40, 32), v_dim=32, dtype=torch.float32,
                score_mod=None, mask_mod=mask_mod, requires_grad_captured=[], mutate=mutate,
                note="here .item() is really written; in the report the message complained of one that was not")
