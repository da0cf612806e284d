"""The public call: the wording of its errors, all raised before any work, and what it accepts of torch's call."""
import contextlib

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import AuxRequest

import flexfa4
from flexfa4.errors import ShapeError, UnsupportedError
from flexfa4.reference import attention as dense_attention

F32 = torch.float32
TABLE = torch.randn(2, 40, generator=torch.Generator().manual_seed(3))


def qkv(heads=2, kv_heads=2, q_len=40, kv_len=40, dim=16, dtype=F32):
    g = torch.Generator().manual_seed(0)
    make = lambda h, s: torch.randn(2, h, s, dim, generator=g).to(dtype)  # noqa: E731
    return make(heads, q_len), make(kv_heads, kv_len), make(kv_heads, kv_len)


def causal(b, h, q, k):
    return q >= k


q0, k0, v0 = qkv()

BAD = {
    "three dimensions": (lambda: (q0[0], k0, v0), {}, r"query has shape \(2, 40, 16\), 3 dimensions: expected 4"),
    "no tensor": (lambda: (q0, 7, v0), {}, r"key is a int: expected a tensor"),
    "dtype": (lambda: (q0, k0.half(), v0), {}, r"query has dtype torch.float32 and key has dtype torch.float16.*key.to"),
    "integer": (lambda: (q0.int(), k0.int(), v0.int()), {}, r"query has dtype torch.int32: expected one of"),
    "device": (lambda: (q0, k0.to("meta"), v0), {}, r"query is on cpu and key is on meta"),
    "lengths of key and value": (lambda: (q0, k0, v0[:, :, :9]), {}, r"key has shape .* and value .*must be equal"),
    "head dim": (lambda: (q0[..., :8], k0, v0), {}, r"query has head dim 8 and key 16"),
    "batch": (lambda: (q0[:1].expand(3, -1, -1, -1), k0, v0), {}, r"query has batch 3 and key and value have batch 2"),
    "heads": (lambda: (q0.repeat(1, 2, 1, 1), k0, v0), {}, r"query has 4 heads and key and value have 2: pass enable_gqa=True"),
    "group": (lambda: (q0.repeat(1, 2, 1, 1)[:, :3], k0, v0), {"enable_gqa": True}, r"3 heads .* have 2: .*multiple"),
    "mask lengths": (lambda: (q0, k0, v0), {"block_mask": flexfa4.create_block_mask(causal, None, None, 64, 32)},
                     r"Q_LEN=64, KV_LEN=32, and the call has query length 40 and key length 40: use block_mask.resize\(40, 40\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name):
    tensors, options, words = BAD[name]
    with pytest.raises(ShapeError, match=words):
        flexfa4.flex_attention(*tensors(), **options)


def test_torch_keyword_names_are_accepted():
    with pytest.warns(UserWarning, match="kernel_options=.*ignored"):
        out = flexfa4.flex_attention(query=q0, key=k0, value=v0, kernel_options={"BLOCK_M": 64})
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q0, k0, v0), rtol=1e-5, atol=1e-5)


def test_masks_given_directly_and_as_a_block_mask_are_anded():
    window = lambda b, h, q, k: q - k < 5  # noqa: E731
    mask = flexfa4.create_block_mask(causal, None, None, 40, 40)
    both = flexfa4.flex_attention(q0, k0, v0, block_mask=mask, mask_mod=window)
    one = flexfa4.flex_attention(q0, k0, v0, mask_mod=flexfa4.and_masks(causal, window))
    assert torch.equal(both, one)
    want = dense_attention(q0, k0, v0, mask_mod=flexfa4.and_masks(causal, window))[0]
    torch.testing.assert_close(both, want.to(F32), rtol=1e-5, atol=1e-5)


def test_mask_mod_alone_equals_its_block_mask_after_resize():
    mask = flexfa4.create_block_mask(causal, None, None, 64, 32).resize(40, 40)
    assert torch.equal(flexfa4.flex_attention(q0, k0, v0, block_mask=mask), flexfa4.flex_attention(q0, k0, v0, mask_mod=causal))


def test_a_torch_block_mask_is_accepted():
    from torch.nn.attention.flex_attention import create_block_mask
    theirs = create_block_mask(causal, None, None, 40, 40, device="cpu")
    assert torch.equal(flexfa4.flex_attention(q0, k0, v0, block_mask=theirs), flexfa4.flex_attention(q0, k0, v0, mask_mod=causal))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_and_lse(dtype):
    q, k, v = qkv(heads=4, q_len=33, kv_len=140, dtype=dtype)
    out, lse = flexfa4.flex_attention(q, k, v, mask_mod=lambda b, h, q, k: k <= q + 107, enable_gqa=True, return_lse=True)
    want, want_lse = dense_attention(q, k, v, mask_mod=lambda b, h, q, k: k <= q + 107)[:2]
    assert out.dtype is dtype and lse.dtype is (torch.float64 if dtype is torch.float64 else F32)
    # One rounding of the output to its dtype, and of P to the accumulation dtype.
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-11}[dtype]
    assert (out.double() - want).abs().max() <= tolerance and (lse.double() - want_lse).abs().max() <= tolerance


def bias(score, b, h, q, k):
    return score * 0.5 + TABLE[h, q]


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_autocast_means_inputs_of_its_dtype(half):
    """As torch's flex_attention: q, k and v are cast, float64 ones are not; captures and the work inside are left alone."""
    leaves = [t.requires_grad_() for t in qkv()]
    with torch.autocast("cpu", half):
        out, lse = flexfa4.flex_attention(*leaves, bias, return_lse=True)
        grads = torch.autograd.grad(out.float().square().sum(), leaves)
        wide = flexfa4.flex_attention(*(t.double() for t in leaves), bias)
        off = flexfa4.create_block_mask(causal, None, None, 40, 40)
        assert flexfa4.flex_attention(*leaves, block_mask=off).dtype is half
    cast = [t.detach().to(half).requires_grad_() for t in leaves]
    want, want_lse = flexfa4.flex_attention(*cast, bias, return_lse=True)
    assert out.dtype is half and torch.equal(out, want) and torch.equal(lse, want_lse) and lse.dtype is F32
    assert all(g.dtype is F32 for g in grads)
    for got, right in zip(grads, torch.autograd.grad(want.float().square().sum(), cast)):
        assert torch.equal(got, right.float())
    assert wide.dtype is torch.float64
    with torch.autocast("cpu", half, enabled=False):
        assert flexfa4.flex_attention(*leaves).dtype is F32


def test_return_aux():
    lse = flexfa4.flex_attention(q0, k0, v0, return_lse=True)[1]
    out, aux = flexfa4.flex_attention(q0, k0, v0, return_aux=AuxRequest(lse=True))
    assert torch.equal(out, flexfa4.flex_attention(q0, k0, v0)) and torch.equal(aux.lse, lse) and aux.max_scores is None
    assert flexfa4.flex_attention(q0, k0, v0, return_aux=AuxRequest())[1].lse is None
    with pytest.raises(ShapeError, match=r"return_lse=True and return_aux are both given.*AuxRequest\(lse=True\)"):
        flexfa4.flex_attention(q0, k0, v0, return_lse=True, return_aux=AuxRequest(lse=True))
    with pytest.raises(UnsupportedError, match="max_scores.*ask for lse alone"):
        flexfa4.flex_attention(q0, k0, v0, return_aux=AuxRequest(max_scores=True))


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_shapes_without_data(kind):
    """On meta and fake tensors a call gives shapes, dtypes and gradients' shapes; no mod is run on data."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made = (lambda t: t.to("meta")) if kind == "meta" else mode.from_tensor
    q, k, v = (made(t).requires_grad_() for t in qkv(heads=4, q_len=7))
    table = made(TABLE)
    with mode if kind == "fake" else contextlib.nullcontext():
        mask = flexfa4.create_block_mask(causal, None, None, 7, 40)
        for options in ({"mask_mod": causal}, {"block_mask": mask}, {"out_mod": lambda o, lse, b, h, i: o * table[0, i]}):
            out, lse = flexfa4.flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h % 2, i], enable_gqa=True,
                                              return_lse=True, **options)
            assert out.shape == (2, 4, 7, 16) and lse.shape == (2, 4, 7) and out.dtype is q.dtype and out.device == q.device
            grads = torch.autograd.grad(out.sum(), (q, k, v))
            assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]


def test_no_queries_and_no_keys():
    assert flexfa4.flex_attention(q0[:, :, :0], k0, v0).shape == (2, 2, 0, 16)
    out, lse = flexfa4.flex_attention(q0, k0[:, :, :0], v0[:, :, :0], return_lse=True)
    assert torch.equal(out, torch.zeros_like(q0)) and bool((lse == -torch.inf).all())


def test_scale_is_a_number():
    trained = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(UnsupportedError, match=r"scale=tensor\(0.5000, requires_grad=True\) requires grad.*the query by it"):
        flexfa4.flex_attention(q0, k0, v0, scale=trained)
    with pytest.raises(ShapeError, match="scale='a': expected a number"):
        flexfa4.flex_attention(q0, k0, v0, scale="a")
    half = flexfa4.flex_attention(q0, k0, v0, scale=0.5)
    for scale in (torch.tensor(0.5), trained.detach(), np.float32(0.5)):
        assert torch.equal(flexfa4.flex_attention(q0, k0, v0, scale=scale), half)
