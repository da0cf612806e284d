"""A captured table describes 64 positions but the call has 80: the lookup at the raw index leaves the table."""
import torch

EXPECT = {"kind": "error", "stage": "before or at launch", "message_has_any": ["range", "bounds", "size", "index"], "grads": ()}


def make(device):
    doc = (torch.arange(64) // 20).to(device)

    def mask_mod(b, h, q, k):
        return doc[q] == doc[k]

    return dict(name="error_mod_on_wrong_length", source="pytorch/pytorch#147551",
                q_shape=(1, 1, 80, 32), kv_shape=(1, 1, 80, 32), v_dim=32, dtype=torch.float32,
                score_mod=None, mask_mod=mask_mod, requires_grad_captured=[],
                note="with q,k < 64 this is a value; at 80 the index q itself leaves the table: a named bounds error, not "
                     "a device assert or garbage (see also Robbyant/lingbot-va#87, attention-gym#122)")
