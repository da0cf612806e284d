"""One score edit that walks through the usual floating-point vocabulary."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v", "captured"), "finite": True}


def make(device):
    H, S = 2, 96
    g = torch.Generator().manual_seed(16)
    a = (torch.rand(H, generator=g) + 0.5).to(device).requires_grad_()
    c = torch.randn(S, generator=g).to(device).requires_grad_()

    def score_mod(score, b, h, q, k):
        d = (q - k).abs().to(torch.float32) + 1.0
        r = torch.pow(d, -a[h])                          # power with a trainable exponent
        r = r + torch.log(d) * 0.1 + torch.sqrt(d) * 0.01 + torch.rsqrt(d)
        s = torch.minimum(score, torch.maximum(c[k], c[q]) + 2.0)
        s = torch.where(score > 0, s, torch.exp(score) - 1.0)
        s = torch.clamp(s, min=-3.0, max=4.0)
        return s * torch.sigmoid(c[q]) + torch.tanh(r) + 0.5 * s ** 2 - abs(s) / 3

    return dict(name="float_op_medley", source="pytorch/pytorch#144869",
                q_shape=(1, H, S, 64), kv_shape=(1, H, S, 64), v_dim=64, dtype=torch.float32,
                score_mod=score_mod, mask_mod=None, requires_grad_captured=[a, c],
                note="pow, log, sqrt, rsqrt, minimum, maximum, where, exp, clamp, sigmoid, tanh, **, builtin abs; ties and "
                     "clamp edges have measure zero here")
