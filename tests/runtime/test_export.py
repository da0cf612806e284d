"""torch.export, strict (by Dynamo) and not (under modes of torch, whose tensors hold no numbers), and such a mode alone."""
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import flexfa4
from flexfa4.errors import TraceError

S = 20


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("labels", torch.arange(S) // 6)
        self.bias = torch.nn.Parameter(torch.rand(2, S))

    def edit(self, score, b, h, q, kv):
        return score * 0.5 + self.bias[h, kv]

    def same(self, b, h, q, kv):
        return self.labels[q] == self.labels[kv]

    def gate(self, out, lse, b, h, q):
        return out * torch.sigmoid(self.bias[h, q])

    def forward(self, q, k, v):
        return flexfa4.flex_attention(q, k, v, self.edit, mask_mod=self.same, out_mod=self.gate)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_model_computes_the_same_and_reads_its_buffers(strict):
    model = Model()
    q, k, v = (torch.rand(1, 2, S, 4) for _ in range(3))
    exported = torch.export.export(model, (q, k, v), strict=strict).module()
    for _ in range(2):
        leaf = q.clone().requires_grad_()
        got, want = exported(leaf, k, v), model(leaf, k, v)
        torch.testing.assert_close(got, want)
        grads = [torch.autograd.grad(o.square().sum(), (leaf, *m.parameters())) for o, m in ((got, exported), (want, model))]
        torch.testing.assert_close(*grads)
        for m in (model, exported):
            with torch.no_grad():
                m.labels.copy_(torch.arange(S) // 3)
                m.bias.mul_(2)


def test_random_numbers_are_refused_there_too():
    class Drawing(torch.nn.Module):
        def forward(self, q):
            return flexfa4.flex_attention(q, q, q, lambda score, b, h, q, kv: score * torch.rand(()))

    with pytest.raises(TraceError, match="rand draws random numbers"):
        torch.export.export(Drawing(), (torch.rand(1, 2, S, 4),), strict=False)


def test_fake_tensors_beside_captures_that_are_none():
    bias = torch.rand(2, S)
    for at in range(5):                    # the state of a generator was memory that is not set, and differed from time to time
        def edit(score, b, h, q, kv, bias=bias):
            return score + torch.as_tensor(bias)[h, kv].abs()

        edit.__code__ = edit.__code__.replace(co_name=f"edit{at}")          # code that is not known yet
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            q = mode.from_tensor(torch.rand(1, 2, S, 4))
            assert flexfa4.flex_attention(q, q, q, edit).shape == (1, 2, S, 4)
