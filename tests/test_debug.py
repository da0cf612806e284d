"""debug=True: mods are called on numbers, with the outputs, gradients and errors of the ordinary call."""
import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path

import pytest
import torch

from flexfa4 import block_mask_from_tiles, create_block_mask, flex_attention
from flexfa4.errors import LookupOutOfRange, ShapeError, TraceError

F64 = torch.float64


def qkv(heads=2, length=9, dtype=F64):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(1, n, length, 4, generator=g, dtype=dtype).requires_grad_() for n in (heads, 1, 1)]


SHORT = torch.tensor([0.5, -1.0, 2.0], dtype=F64, requires_grad=True)
SINK = torch.tensor([0.3, -0.2], dtype=F64, requires_grad=True)


def causal(b, h, q, k):
    return (q >= k) & (q > 0)           # row 0 sees no key


def guarded(b, h, q, k):
    return causal(b, h, q, k) & (k < 3) & (SHORT[k] != 7)


def bias(score, b, h, q, k):
    score += SHORT[(q - k) % 3] * (h + 1)
    return torch.tanh(score)


def sink(out, lse, b, h, q):
    return out * torch.sigmoid(lse - SINK[h])


def column(out, lse, b, h, q, d):
    return out * (d + 1) + q


CALLS = {
    "plain": {}, "score": {"score_mod": bias}, "mask": {"mask_mod": causal}, "guarded lookup": {"mask_mod": guarded},
    "sink": {"out_mod": sink, "mask_mod": causal}, "column": {"out_mod": column, "score_mod": bias},
    "block mask": {"block_mask": create_block_mask(causal, None, None, 9, 9), "score_mod": bias},
    "both masks": {"block_mask": create_block_mask(causal, None, None, 9, 9), "mask_mod": lambda b, h, q, k: q - k < 4},
    "tiles": {"block_mask": block_mask_from_tiles(torch.eye(3, dtype=torch.bool)[None, None], 9, 9, tile=3)},
    "short table beside a mask": {"score_mod": lambda s, b, h, q, k: s + SHORT[k], "mask_mod": lambda b, h, q, k: k < 3},
}


@pytest.mark.parametrize("name", CALLS)
def test_outputs_and_gradients_are_those_of_the_ordinary_call(name):
    leaves = [*qkv(), SHORT, SINK]
    found = []
    for debug in (False, True):
        out, lse = flex_attention(*leaves[:3], **CALLS[name], enable_gqa=True, return_lse=True, debug=debug)
        grads = torch.autograd.grad((out * out).sum() + lse[lse.isfinite()].sum(), leaves, materialize_grads=True,
                                    allow_unused=True)
        found.append((out, lse, *grads))
    for ordinary, called in zip(*found):
        torch.testing.assert_close(called, ordinary, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types_are_those_of_the_ordinary_call(dtype):
    seen = set()

    def mod(score, b, h, q, k):
        seen.add((str(score.dtype), str(q.dtype), score.dim()))
        return score * 0.5

    q, k, v = qkv(dtype=dtype)
    want, got = (flex_attention(q, k, v, mod, enable_gqa=True, return_lse=True, debug=d) for d in (False, True))
    assert ("torch.float32", "torch.int64", 0) in seen
    for a, b in zip(want, got):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=2e-2 if dtype is torch.bfloat16 else 2e-3, atol=1e-3)


def test_print_shows_numbers_and_only_numbers(capsys):
    def mod(score, b, h, q, k):
        print("at", q, k)
        return score

    flex_attention(*qkv(heads=1, length=2), mod, debug=True)
    assert capsys.readouterr().out.splitlines() == [f"at tensor({q}) tensor({k})" for q in range(2) for k in range(2)]


def test_print_in_mask_case():
    path = Path(__file__).parent / "cases" / "case52_print_in_mask.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    case = module.make("cpu")
    q, k, v = (torch.randn(*case["q_shape"]) for _ in range(3))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        got = flex_attention(q, k, v, mask_mod=case["mask_mod"], debug=True)
    assert printed.getvalue() == "mask_mod torch.bool\n" * (33 * 33)
    torch.testing.assert_close(got, flex_attention(q, k, v, mask_mod=lambda b, h, q, k: q >= k), rtol=1e-5, atol=1e-5)


def test_breakpoint_stops_on_numbers(monkeypatch):
    stops = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(sys._getframe(1).f_locals["q"]))

    def mod(score, b, h, q, k):
        breakpoint()
        return score

    flex_attention(*qkv(heads=1, length=2), mod, debug=True)
    assert [int(q) for q in stops] == [0, 0, 1, 1] and all(type(q) is torch.Tensor for q in stops)


def divides(score, b, h, q, k):
    return score + q // (k - 1)


def test_a_failing_mod_is_named_with_its_line_and_position():
    place = re.escape(f"{__file__}:{divides.__code__.co_firstlineno + 1}: divides raises")
    with pytest.raises(TraceError, match=place + r" \w+ when it is called at b=0, h=0, q_idx=0, kv_idx=1: ") as caught:
        flex_attention(*qkv(heads=1), divides, debug=True)
    assert caught.value.__cause__ is not None


WRONG = {
    "branch": ({"score_mod": lambda s, b, h, q, k: s if q > 3 else -s}, TraceError, "`if` on a traced value"),
    "arity": ({"mask_mod": lambda b, h, q: q > 0}, TraceError, "mask_mod has the signature"),
    "result": ({"mask_mod": lambda b, h, q, k: q - k}, TraceError, "must return a bool"),
    "lookup": ({"score_mod": lambda s, b, h, q, k: s + SHORT[k]}, LookupOutOfRange, "SHORT .*size is 3"),
    "lookup in a mask": ({"mask_mod": lambda b, h, q, k: SHORT[q] > 0}, LookupOutOfRange, "SHORT .*size is 3"),
    "lengths": ({"block_mask": create_block_mask(causal, None, None, 8, 9)}, ShapeError, "Q_LEN=8"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_the_ordinary_call(name):
    options, kind, words = WRONG[name]
    said = []
    for debug in (False, True):
        with pytest.raises(kind, match=words) as caught:
            flex_attention(*qkv(), **options, enable_gqa=True, debug=debug)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_refused_write_leaves_the_capture_alone():
    table = torch.zeros(9)

    def writes(score, b, h, q, k):
        table[q] += 1
        return score

    with pytest.raises(TraceError, match="write to a captured tensor"):
        flex_attention(*qkv(heads=1), writes, debug=True)
    assert not table.any()


def test_large_inputs_are_refused_before_any_work():
    q = torch.empty(1, 8, 2048, 4)
    with pytest.raises(ShapeError, match=r"debug=True .*query\[:1, :, :32\]"):
        flex_attention(q, q, q, debug=True)


def test_empty_lengths_and_torch_masks():
    q, k, v = qkv(heads=1)
    assert flex_attention(q[:, :, :0], k, v, bias, debug=True).shape == (1, 1, 0, 4)
    assert not flex_attention(q, k[:, :, :0], v[:, :, :0], bias, debug=True).any()
    ours = create_block_mask(causal, None, None, 9, 9)
    got = flex_attention(q, k, v, block_mask=ours.to_torch(3), debug=True)
    torch.testing.assert_close(got, flex_attention(q, k, v, mask_mod=causal), rtol=1e-9, atol=1e-11)


def test_not_inside_a_compiled_graph():
    """With fullgraph=True it is refused; without, the call runs between two graphs."""
    q, k, v = qkv(heads=1)

    def call():
        return flex_attention(q, k, v, debug=True)

    with pytest.raises(Exception, match="inside torch.compile debug=True calls Python at every position"):
        torch.compile(call, backend="eager", fullgraph=True)()
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(call, backend="eager")(), call())
