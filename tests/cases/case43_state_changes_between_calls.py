"""The same function object is called twice; between the calls a dict entry, a list item and a tensor's contents change."""
import torch

EXPECT = {"kind": "value", "grads": (), "call_mutate_then_rerun": True,
          "note": "second result must reflect the new state; a cached kernel with the old constants is wrong"}


def make(device):
    state = {"w": 9}
    keep = [3]
    t = torch.zeros(80, device=device)

    def mask_mod(b, h, q, k):
        return ((q - k).abs() < state["w"]) | (k < keep[0])

    def score_mod(score, b, h, q, k):
        return score + t[k]

    def mutate():
        state["w"] = 2
        keep[0] = 0
        t.copy_(torch.linspace(-3, 3, 80))

    return dict(name="state_changes_between_calls", source="meta-pytorch/attention-gym#109",
                q_shape=(1, 1, 80, 32), kv_shape=(1, 1, 80, 32), v_dim=32, dtype=torch.float32,
                score_mod=score_mod, mask_mod=mask_mod, requires_grad_captured=[], mutate=mutate,
                note="masks that change during generation: the same need at the level of a cache key")
