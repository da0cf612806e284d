# ruff: noqa: F811 (a fixture that is imported is named again as an argument)
"""A captured tensor that is written between a call and its backward pass is named, with the mod and its line."""
import re

import pytest
import torch
from launched import launches  # noqa: F401

from flexfa4 import create_block_mask, flex_attention
from flexfa4.errors import ChangedCaptureError, FlexError

S = 20


def captures():
    return {"labels": torch.arange(S) // 6, "bias": torch.rand(S), "slopes": torch.rand(S, requires_grad=True),
            "gates": torch.rand(2)}


def mods_of(labels, bias, slopes, gates):
    def same(b, h, q, kv):
        return labels[q] == labels[kv]

    def edit(score, b, h, q, kv):
        return score * slopes[q] + bias[kv]

    def gated(out, lse, b, h, q):
        return out * gates[h]

    return same, edit, gated


def words(mod, name) -> str:
    place = f"{__file__}:{mod.__code__.co_firstlineno}: {mod.__name__}"
    return re.escape(f"{place} captures {name}, which has been modified by an inplace operation") + f".*capture {name}.clone"


def write(tensor) -> None:
    with torch.no_grad():
        tensor.add_(1)


@pytest.mark.parametrize("fixed", [False, True], ids=["BlockMask", "FixedMask"])
@pytest.mark.parametrize("name, owner", [("labels", 0), ("bias", 1), ("slopes", 1), ("gates", 2)])
def test_it_is_named(name, owner, fixed):
    held = captures()
    same, edit, gated = mods = mods_of(**held)
    q = torch.rand(1, 2, S, 4, requires_grad=True)
    mask = create_block_mask(same, None, None, S, S)
    out = flex_attention(q, q, q, edit, mask.reserve() if fixed else mask, out_mod=gated)
    write(held[name])
    with pytest.raises(ChangedCaptureError, match=words(mods[owner], name)) as caught:
        out.sum().backward()
    assert isinstance(caught.value, FlexError) and isinstance(caught.value, RuntimeError)
    assert "modified by an inplace operation" in str(caught.value.__cause__)


def test_what_torch_says_of_other_things_stays():
    held = captures()
    same, edit, _ = mods_of(**held)
    q, k = torch.rand(2, 1, 2, S, 4, requires_grad=True)
    q, k = q.detach().requires_grad_(), k.detach()
    out = flex_attention(q, k, k, edit, mask_mod=same)
    write(k)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        out.sum().backward()
    assert not isinstance(caught.value, FlexError)
    out = flex_attention(q, k, k, edit, mask_mod=same)
    out.sum().backward()
    write(held["slopes"])                                   # as an optimiser does
    with pytest.raises(RuntimeError, match="second time") as caught:
        out.sum().backward()
    assert not isinstance(caught.value, FlexError)


def test_a_repeated_call_names_it_too(launches):
    held = captures()
    same, edit, _ = mods_of(**held)
    held["slopes"].requires_grad_(False)
    q, k, v = (torch.rand(1, 2, S, 64).bfloat16().requires_grad_() for _ in range(3))
    mask = create_block_mask(same, None, None, S, S)
    for _ in range(3):
        out = flex_attention(q, k, v, edit, mask)
    assert out.grad_fn.name() == "RecordedBackward"
    write(held["bias"])
    with pytest.raises(ChangedCaptureError, match=words(edit, "bias")):
        out.sum().backward()


def made_for_inference():
    with torch.inference_mode():
        return {"labels": torch.arange(S) // 6, "bias": torch.rand(S), "gates": torch.rand(2)}


@pytest.mark.parametrize("transform", ["none", "grad"])
def test_captures_that_inference_mode_made_may_be_trained_beside(transform):
    """Tables that were made in an evaluation before: autograd itself keeps no such tensor."""
    held, slopes = made_for_inference(), torch.rand(S)
    q = torch.rand(1, 2, S, 4)

    def loss(q, slopes, labels, bias, gates):
        same, edit, gated = mods_of(labels, bias, slopes, gates)
        return flex_attention(q, q, q, edit, mask_mod=same, out_mod=gated).square().sum()

    ordinary = {name: t.clone() for name, t in held.items()}
    leaves = q.clone().requires_grad_(), slopes.clone().requires_grad_()
    want = torch.autograd.grad(loss(*leaves, **ordinary), leaves)
    if transform == "grad":
        got = torch.func.grad(loss, argnums=(0, 1))(q, slopes, **held)
    else:
        got = torch.autograd.grad(loss(*leaves, **held), leaves)
    torch.testing.assert_close(got, want)


def test_a_repeated_call_takes_such_captures_too(launches):
    held = {**made_for_inference(), "slopes": torch.rand(S)}
    q, k, v = (torch.rand(1, 2, S, 64).bfloat16().requires_grad_() for _ in range(3))
    mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, S, S)
    for bias in (torch.rand(S), held["bias"], held["bias"]):
        _, edit, _ = mods_of(**{**held, "bias": bias})
        out = flex_attention(q, k, v, edit, mask)
        out.sum().backward()
    assert out.grad_fn.name() == "RecordedBackward"
