"""Calls that nothing looks on at skip the registered op; all others go through it."""
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import flexfa4


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def tensors():
    g = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 19, 4, generator=g) for _ in range(3)]


TABLE = torch.randn(2, 19, generator=torch.Generator().manual_seed(1))
OPTIONS = {"score": {"score_mod": lambda s, b, h, q, k: s + TABLE[h, k]}, "mask": {"mask_mod": lambda b, h, q, k: q >= k},
           "block mask": {"block_mask": flexfa4.create_block_mask(lambda b, h, q, k: q >= k, None, None, 19, 19)},
           "hook": {"out_mod": lambda o, lse, b, h, q: o * torch.sigmoid(lse)}}


@pytest.mark.parametrize("name", OPTIONS)
def test_both_ways_give_the_same_bits(name):
    leaves = [t.requires_grad_() for t in tensors()]
    through = flexfa4.flex_attention(*leaves, **OPTIONS[name], return_lse=True)
    with torch.no_grad():
        straight = flexfa4.flex_attention(*leaves, **OPTIONS[name], return_lse=True)
    assert through[0].grad_fn is not None and straight[0].grad_fn is None
    assert all(torch.equal(a, b) for a, b in zip(through, straight))


def test_modes_and_gradients_see_the_op(monkeypatch):
    inputs = tensors()
    with Seen() as seen:
        flexfa4.flex_attention(*inputs)
    assert seen.names == ["flexfa4.attention.default"]
    used = []
    monkeypatch.setattr(torch.ops.flexfa4, "attention", lambda *args: used.append(1) or tuple(args[0].clone() for _ in range(3)))
    flexfa4.flex_attention(*tensors())
    assert not used
    flexfa4.flex_attention(*(t.requires_grad_() for t in tensors()))
    table = TABLE.clone().requires_grad_()
    flexfa4.flex_attention(*tensors(), lambda s, b, h, q, k: s + table[h, k])
    assert len(used) == 2
    torch.func.vmap(lambda q: flexfa4.flex_attention(q, *inputs[1:]))(torch.stack(inputs[:1]))
    assert len(used) == 3
