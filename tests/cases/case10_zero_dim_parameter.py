"""A single trainable number, used un-indexed, both as a factor and as an offset."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v", "captured")}


def make(device):
    tau = torch.tensor(0.7, device=device, requires_grad=True)
    off = torch.tensor(-0.2, device=device, requires_grad=True)

    def score_mod(score, b, h, q, k):
        return score * tau + off

    return dict(name="zero_dim_parameter", source="meta-pytorch/attention-gym#171",
                q_shape=(1, 2, 129, 64), kv_shape=(1, 2, 129, 64), v_dim=64, dtype=torch.float16,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[tau, off],
                note="0-d captures with gradient (also pytorch#145208); the offset's true gradient is 0 since softmax "
                     "ignores shifts")
