"""The registered torch op: opcheck, gradients by finite differences, torch.compile without a graph break."""
import pytest
import torch

import flexfa4
from flexfa4.errors import UnsupportedError

F64 = torch.float64


def inputs(dtype=F64, length=19, seed=0):
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(1, 2, length, 4, generator=g, dtype=dtype).requires_grad_()
    k = torch.randn(1, 1, length, 4, generator=g, dtype=dtype).requires_grad_()
    v = torch.randn(1, 1, length, 3, generator=g, dtype=dtype).requires_grad_()
    bias = torch.randn(2, 2 * length, generator=g, dtype=dtype).requires_grad_()
    gain = torch.randn((), generator=g, dtype=dtype).requires_grad_()
    return q, k, v, bias, gain


def attend(q, k, v, bias, gain, **options):
    return flexfa4.flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s) * gain + bias[h, i - j + 18], enable_gqa=True, return_lse=True,
        mask_mod=lambda b, h, i, j: (i >= j) & (i - j < 7), **options)


def test_gradcheck_of_everything_captured_and_of_lse():
    assert torch.autograd.gradcheck(attend, inputs())


def test_gradcheck_of_the_output_hook():
    sinks = torch.randn(2, dtype=F64, requires_grad=True)

    def with_sink(q, k, v, bias, gain, sinks):
        return attend(q, k, v, bias, gain, out_mod=lambda o, lse, b, h, i: o * torch.sigmoid(lse - sinks[h]))[0]

    assert torch.autograd.gradcheck(with_sink, (*inputs(), sinks))


def test_gradients_repeat_bit_for_bit():
    def grads():
        leaves = inputs(torch.float32)
        out, lse = attend(*leaves)
        return torch.autograd.grad(out.sum() + lse.sum(), leaves)

    for a, b in zip(grads(), grads()):
        assert torch.equal(a, b)


def test_double_backward_says_so():
    leaves = inputs()
    (grad,) = torch.autograd.grad(attend(*leaves)[0].sum(), leaves[:1], create_graph=True)
    with pytest.raises(UnsupportedError, match="(?i)double backward"):
        torch.autograd.grad(grad.sum(), leaves[0])


def test_opcheck(monkeypatch):
    """The op is called once to see its arguments, then put through torch.library.opcheck with them."""
    seen = []
    real = torch.ops.flexfa4.attention

    class Spy:
        def __call__(self, *args):
            seen.append(args)
            return real(*args)

    monkeypatch.setattr(torch.ops.flexfa4, "attention", Spy())
    attend(*inputs(torch.float32))
    monkeypatch.undo()
    assert len(seen) == 1
    torch.library.opcheck(torch.ops.flexfa4.attention.default, seen[0])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_fullgraph_with_lookups_and_a_block_mask(backend):
    q, k, v, bias, gain = inputs(torch.float32)
    mask = flexfa4.create_block_mask(lambda b, h, i, j: i >= j, None, None, 19, 19)

    def model(q, k, v, bias, gain, mask):
        scaled = bias * 2

        def edit(s, b, h, i, j):
            return s * gain + scaled[h, i - j + 18]

        return flexfa4.flex_attention(q * 2, k, v, score_mod=edit, block_mask=mask, enable_gqa=True)

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    leaves = (q, k, v, bias, gain)
    for _ in range(2):
        got, want = compiled(*leaves, mask), model(*leaves, mask)
        assert torch.equal(got, want)
        for a, b in zip(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
