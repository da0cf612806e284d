"""Every situation in tests/cases through flex_attention: values and gradients against the dense float64 reference, or the refusal
that it asks for."""
import contextlib
import importlib.util
import io
from pathlib import Path

import pytest
import torch

from flexfa4 import flex_attention, reference
from flexfa4.errors import FlexError

CASES = sorted((Path(__file__).resolve().parents[1] / "cases").glob("case*.py"))
# Relative to the largest element of the reference: rounding of the inputs' dtype on output, and a few float32 roundings inside.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(case, seed=0):
    g = torch.Generator().manual_seed(seed)

    def tensor(*shape):
        return torch.randn(*shape, generator=g).to(case["dtype"])

    q = (tensor(*case["q_shape"]) * case.get("q_gain", 1.0)).requires_grad_()
    if case.get("alias_qkv"):
        return q, q, q
    k_shape = case["kv_shape"]
    return q, tensor(*k_shape).requires_grad_(), tensor(*k_shape[:3], case["v_dim"]).requires_grad_()


def ours(case, q, k, v):
    out, lse = flex_attention(q, k, v, score_mod=case["score_mod"], mask_mod=case["mask_mod"], enable_gqa=True, return_lse=True)
    return case["post"](out, lse) if "post" in case else out, lse


def dense(case, q, k, v):
    out, lse = reference.attention(q, k, v, case.get("ref_score_mod", case["score_mod"]), case["mask_mod"])
    return case["post"](out, lse) if "post" in case else out, lse


def gradients(out, tensors):
    if not out.requires_grad:
        return [None] * len(tensors)
    weights = torch.cos(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape).to(out.dtype)
    return torch.autograd.grad((out * weights).sum(), tensors, allow_unused=True, retain_graph=True)


def close(got, want, dtype, what, scale=1.0):
    got, want = got.double(), want.double()
    if want.numel() == 0:
        return
    finite = torch.isfinite(want)
    assert bool((got[~finite] == want[~finite]).all()), what
    error = float((got[finite] - want[finite]).abs().max()) if bool(finite.any()) else 0.0
    limit = scale * TOLERANCE[dtype] * max(1.0, float(want[finite].abs().max()) if bool(finite.any()) else 1.0)
    assert error <= limit, f"{what}: {error:.3g} > {limit:.3g}"


def check_value(case, expect):
    q, k, v = inputs(case)
    captured = list(case["requires_grad_captured"])
    out, lse = ours(case, q, k, v)
    want, want_lse = dense(case, q, k, v)
    close(out, want, case["dtype"], "out")
    close(lse, want_lse, case["dtype"], "lse")
    tensors = list(dict.fromkeys([q, k, v, *captured]))
    got_grads, want_grads = gradients(out, tensors), gradients(want, tensors)
    for i, (got, wanted) in enumerate(zip(got_grads, want_grads)):
        name = f"gradient {i}"
        if wanted is None:
            assert got is None or not bool(got.any()), name
        else:
            assert got.dtype is wanted.dtype and got.shape == wanted.shape
            close(got, wanted, case["dtype"], name, scale=2.0)
    if expect.get("bitwise_repeatable"):
        again = gradients(ours(case, q, k, v)[0], tensors)
        assert all(torch.equal(a, b) for a, b in zip(got_grads, again) if a is not None)
    if expect.get("empty_rows") == "zero":
        dead = want_lse == -torch.inf
        assert bool((lse[dead] == -torch.inf).all()) and ("post" in case or not bool(out[dead].any()))
    for name in expect.get("zero_grads", ()):
        assert not bool(got_grads["qkv".index(name)].any())
    return out


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_case(path):
    module = load(path)
    expect = module.EXPECT
    # "only_if" limits a refusal to accelerators; here the other kind holds.
    kind = expect.get("else_kind", expect["kind"])
    with contextlib.redirect_stdout(io.StringIO()):
        if kind == "error":
            case = module.make("cpu")
            with pytest.raises(FlexError) as refused:
                ours(case, *inputs(case))
            assert any(word.lower() in str(refused.value).lower() for word in expect["message_has_any"])
            return
        for case in module.variants("cpu") if hasattr(module, "variants") else [module.make("cpu")]:
            try:
                before = check_value(case, expect)
            except FlexError as error:
                assert kind == "value_or_error", error
                assert any(word.lower() in str(error).lower() for word in expect["message_has_any"])
                continue
            if "mutate" in case:
                case["mutate"]()
                assert not torch.equal(check_value(case, expect), before)


def test_there_are_cases():
    assert len(CASES) > 40
