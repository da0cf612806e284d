"""The mask is an object with __call__ and the score edit a dataclass-like object holding tensors."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v", "captured")}


class Band:
    def __init__(self, lo, hi, inner=None):
        self.lo, self.hi, self.inner = lo, hi, inner

    def __call__(self, b, h, q, k):
        ok = (q - k >= self.lo[h]) & (q - k < self.hi)
        return ok if self.inner is None else ok & self.inner(b, h, q, k)


class Gain:
    __slots__ = ("g",)

    def __init__(self, g):
        self.g = g

    def __call__(self, score, b, h, q, k):
        return score * self.g[h]


def make(device):
    lo = torch.tensor([0, -3, -200], device=device)
    g = torch.tensor([1.0, 0.5, 1.5], device=device, requires_grad=True)
    stride = Band(torch.tensor([-500, -500, -500], device=device), 500)
    return dict(name="callable_object", source="vllm-project/vllm#16078",
                q_shape=(1, 3, 150, 64), kv_shape=(1, 3, 150, 64), v_dim=64, dtype=torch.float16,
                score_mod=Gain(g), mask_mod=Band(lo, 40, stride), requires_grad_captured=[g],
                note="no __code__, no __closure__, no __name__ on the callable; nested object; __slots__")
