"""Masks built in a loop, values frozen by default arguments; the mask then has five parameters, like a score edit."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v")}


def make(device):
    rules = [lambda b, h, q, k, w=w: (q - k).abs() <= w for w in (2, 5, 11)]
    pick = rules[1]
    edit = lambda s, b, h, q, k, c=0.25, *, p=2: s - c * ((q - k) / 10.0) ** p   # noqa: E731
    return dict(name="lambda_default_arguments", source="pytorch/pytorch#130415",
                q_shape=(1, 2, 64, 64), kv_shape=(1, 2, 64, 64), v_dim=64, dtype=torch.float32,
                score_mod=edit, mask_mod=pick, requires_grad_captured=[],
                note="telling masks from score edits by counting parameters goes wrong here; true division of ints gives a "
                     "float")
