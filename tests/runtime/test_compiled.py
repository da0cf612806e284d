"""flex_attention inside torch.compile(fullgraph=True): values, gradients, guards, errors at the user's line, caches on disk."""
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

import flexfa4
from flexfa4.errors import LookupOutOfRange, TraceError
from flexfa4.mods.gallery import GALLERY

ROOT = Path(__file__).resolve().parents[2]
SHORT = torch.randn(7, generator=torch.Generator().manual_seed(1)).requires_grad_()
TABLE = torch.randn(2, 19, generator=torch.Generator().manual_seed(2)).requires_grad_()
FEW = torch.tensor([[0, 3, 5], [1, 2, 18]])


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    assert not torch.overrides._get_current_function_mode_stack(), "a mode is left behind"


def qkv(length=19, dim=4):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, length, dim, generator=g).requires_grad_() for _ in range(3)]


def same(model, *inputs, leaves=(), backend="aot_eager"):
    """The compiled model's output and gradients are the eager ones."""
    fast = torch.compile(model, fullgraph=True, backend=backend)
    leaves = [t for t in (*inputs, *leaves) if isinstance(t, torch.Tensor)]
    for _ in range(2):
        got, want = fast(*inputs), model(*inputs)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        grads = [torch.autograd.grad((o * o).sum(), leaves, allow_unused=True, materialize_grads=True) for o in (got, want)]
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def outside(score, b, h, q, k):
    return score * 0.5 + TABLE[h, q]


def shifted(by, out, lse, b, h, q, column, more=2.0):
    return out * by + column * more


class Hook(torch.nn.Module):
    def forward(self, out, lse, b, h, q, d):
        return out + d

    def of_five(self, out, lse, b, h, q):
        return out + lse.exp()

    @classmethod
    def with_a_default(cls, out, lse, b, h, q, factor=3.0):
        return out * factor

    def of_any(self, *at):
        return at[0] + at[5]


# By how many arguments each takes: some the column, some a number of their own in its place.
HOOKS = {
    "a module": Hook(),
    "a bound method": Hook().of_five,
    "a method with a default": Hook.with_a_default,
    "any arguments": Hook().of_any,
    "a partial": functools.partial(shifted, 2.0),
    "a partial with a keyword": functools.partial(shifted, 2.0, column=1.5),
    "a default": lambda out, lse, b, h, q, factor=3.0: out * factor,
    "a default named d": lambda out, lse, b, h, q, d=3: out * d,
    "a keyword": lambda out, lse, b, h, q, *, factor=3.0: out * factor,
}


INSIDE = {
    "lookups past the end at position 0": dict(
        score_mod=lambda s, b, h, q, k: s + SHORT[q - 5] + TABLE[0, k + 12],
        mask_mod=lambda b, h, q, k: (q >= 5) & (q < 12) & (k < 7)),
    "lookups one index at a time": dict(
        score_mod=lambda s, b, h, q, k: s + TABLE[h][q] + TABLE[:, k][b] + TABLE[..., k][1] + TABLE[None, h, k][0]),
    "a short vector": dict(mask_mod=lambda b, h, q, k: (FEW[h] == k).any() | (q == k)),
    "numbers for results": dict(mask_mod=lambda b, h, q, k: True, score_mod=lambda s, b, h, q, k: 0.25),
    "in place": dict(score_mod=lambda s, b, h, q, k: s.mul_(2).add_(TABLE[h, k])),
    "output hook": dict(out_mod=lambda o, lse, b, h, q, d: o * torch.sigmoid(lse - TABLE[h, d])),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_a_mod_may_do(name):
    options = INSIDE[name]
    same(lambda q, k, v: flexfa4.flex_attention(q, k, v, **options), *qkv(), leaves=(TABLE, SHORT))


@pytest.mark.parametrize("name", HOOKS)
def test_which_output_hooks_get_the_column(name):
    q, k, v = qkv()
    got = torch.compile(flexfa4.flex_attention, fullgraph=True, backend="eager")(q, k, v, out_mod=HOOKS[name])
    torch.testing.assert_close(got, flexfa4.flex_attention(q, k, v, out_mod=HOOKS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("example", GALLERY, ids=lambda example: example.name)
def test_every_mod_of_the_gallery(example):
    options = {kind: mod for kind, mod in example.make().items() if kind != "captures"}
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=g) for shape in (example.q_shape, example.kv_shape, example.kv_shape))

    def model(q, k, v):
        return flexfa4.flex_attention(q, k, v, enable_gqa=True, **options)

    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(q, k, v), model(q, k, v))


@pytest.mark.slow
def test_inductor_with_a_mod_outside():
    same(lambda q, k, v: flexfa4.flex_attention(q * 2, k, v, outside) + 1, *qkv(), leaves=(TABLE,), backend="inductor")


@pytest.mark.slow
def test_inductor_with_an_intermediate_and_a_block_mask_as_input():
    mask = flexfa4.create_block_mask(lambda b, h, q, k: q >= k, None, None, 19, 19)

    def model(q, k, v, table, mask):
        scaled = table.exp()

        def edit(score, b, h, q, k):
            return score + scaled[h, q - k]

        return flexfa4.flex_attention(q, k, v, edit, mask)

    same(model, *qkv(), TABLE, mask, backend="inductor")


def test_a_changed_closure_is_compiled_again():
    window = 3

    def model(q, k, v, table):
        return flexfa4.flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, i], mask_mod=lambda b, h, i, j: i - j < window)

    fast = torch.compile(model, fullgraph=True, backend="aot_eager")
    inputs = [*qkv(), TABLE]
    before = fast(*inputs)
    window = 9
    assert not torch.equal(fast(*inputs), before)
    torch.testing.assert_close(fast(*inputs), model(*inputs))
    inputs[3] = TABLE * 2
    torch.testing.assert_close(fast(*inputs), model(*inputs))


@pytest.mark.parametrize("dynamic", [None, True])
def test_scale_and_sizes_that_dynamo_holds_as_symbols(dynamic):
    """A scale that changed, and with dynamic=True every size: the head dim, hence the default scale, too."""
    def model(q, k, v, scale):
        return flexfa4.flex_attention(q, k, v, outside, scale=scale)

    fast = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for scale, dim in ((0.5, 4), (0.25, 4), (None, 4), (None, 6), (1.5, 6)):
        inputs = qkv(dim=dim)
        got, (want, _) = fast(*inputs, scale), flexfa4.reference.attention(*inputs, outside, scale=scale)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
        grads = [torch.autograd.grad((o * o).sum(), (*inputs, TABLE)) for o in (got, want)]
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def norm(score, b, h, q, k):
    distance = q - k
    return score + torch.linalg.norm(distance.float())


REFUSED = {
    "unknown function": (norm, "torch's linalg_norm is not supported", 2),
    "vector": (lambda s, b, h, q, k: s + TABLE[h], "`TABLE` is used with one index missing", 0),
    "bool": (lambda s, b, h, q, k: q > k, "returns a bool where a float is wanted", 0),
    "random": (lambda s, b, h, q, k: s + torch.rand(()), "rand draws random numbers", 0),
    "item": (lambda s, b, h, q, k: s + q.item(), r"\.item\(\) on a traced value", 0),
}


@pytest.mark.parametrize("name, dynamic", [*((name, None) for name in REFUSED), ("vector", True)])
def test_a_refusal_names_the_users_line(name, dynamic):
    mod, words, line = REFUSED[name]
    compiled = torch.compile(flexfa4.flex_attention, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    place = re.escape(f"{__file__}:{mod.__code__.co_firstlineno + line}: ")
    said = []
    for call in (flexfa4.flex_attention, compiled):
        with pytest.raises(Exception, match=place) as caught:
            call(*qkv(), mod)
        said.append(re.search(rf"{place}.*{words}.*", str(caught.value)))
    assert said[0] and said[1] and said[0][0] == said[1][0]
    assert type(caught.value) is TraceError or "TraceError" in str(caught.value)


def test_a_branch_names_the_users_line():
    def branch(score, b, h, q, k):
        return score if q > 3 else -score

    with pytest.raises(Exception, match=f"{re.escape(__file__)}.*line {branch.__code__.co_firstlineno + 1}"):
        torch.compile(flexfa4.flex_attention, fullgraph=True, backend="eager")(*qkv(), branch)


def test_a_lookup_out_of_range_names_the_users_line_and_tensor():
    def past(score, b, h, q, k):
        return score + SHORT[q]

    with pytest.raises(LookupOutOfRange) as ordinary:
        flexfa4.flex_attention(*qkv(), past)
    with pytest.raises(LookupOutOfRange) as other:
        torch.compile(flexfa4.flex_attention, fullgraph=True, backend="aot_eager")(*qkv(), past)
    assert str(other.value) == str(ordinary.value)
    assert f"{__file__}:{past.__code__.co_firstlineno + 1}: " in str(ordinary.value) and "SHORT" in str(ordinary.value)


def test_torchs_block_mask_is_refused_with_the_way_to_convert_it():
    theirs = torch_flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, 19, 19, device="cpu")
    model = torch.compile(flexfa4.flex_attention, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"BlockMask\.from_torch"):
        model(*qkv(), block_mask=theirs)
    got = model(*qkv(), block_mask=flexfa4.BlockMask.from_torch(theirs))
    torch.testing.assert_close(got, flexfa4.flex_attention(*qkv(), block_mask=theirs))


@pytest.mark.parametrize("kind", ["torch's mask", "debug"])
def test_what_no_graph_holds_runs_between_two(kind):
    """As outside, where fullgraph is left out; else the reason is said."""
    def causal(b, h, q, k):
        return q >= k

    given = dict(mask_mod=causal, debug=True)
    if kind != "debug":
        given = dict(block_mask=torch_flex.create_block_mask(causal, None, None, 19, 19, device="cpu"))
    tensors = qkv()

    def model(q, k, v):
        return flexfa4.flex_attention(q * 2, k, v, **given) + 1

    for _ in range(2):
        torch.testing.assert_close(torch.compile(model, backend="aot_eager")(*tensors), model(*tensors), rtol=1e-5, atol=1e-6)
    with pytest.raises(Exception, match="inside torch.compile (block_mask is torch's|debug=True calls Python)"):
        torch.compile(model, backend="eager", fullgraph=True)(*tensors)


calls = []


def prints(score, b, h, q, k):
    print("a mod that prints")
    return score * 2 + TABLE[h, q]


def counts(score, b, h, q, k):
    calls.append(1)
    return score + TABLE[h, k]


def reads_a_number(score, b, h, q, k):
    return score + FEW[0, 1].item()


@pytest.mark.parametrize("mod", [prints, counts, reads_a_number])
def test_a_mod_that_breaks_the_graph_runs_between_two(mod):
    def model(q, k, v):
        return flexfa4.flex_attention(q * 2, k, v, mod, mask_mod=lambda b, h, q, k: q >= k, scale=0.7) + 1

    tensors, fast = qkv(), torch.compile(model, backend="aot_eager")
    for _ in range(2):
        got, want = fast(*tensors), model(*tensors)
        torch.testing.assert_close(got, want)
        grads = [torch.autograd.grad(o.square().sum(), (*tensors, TABLE), allow_unused=True) for o in (got, want)]
        torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)


def test_a_mod_that_is_refused_says_so_where_graphs_may_break():
    def branch(score, b, h, q, k):
        return score if q > 3 else -score

    for mod in (branch, lambda score, b, h, q: score, 3):
        said = []
        for call in (flexfa4.flex_attention, torch.compile(flexfa4.flex_attention, backend="eager")):
            with pytest.raises(TraceError) as caught:
                call(*qkv(), mod)
            said.append(str(caught.value))
        assert said[0] == said[1]


def test_autocast():
    def model(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return flexfa4.flex_attention(q, k, v, outside)

    got = torch.compile(model, fullgraph=True, backend="aot_eager")(*qkv())
    assert got.dtype is torch.bfloat16 and torch.equal(got, model(*qkv()))


SCRIPT = """
import json, sys, torch, flexfa4
from torch._dynamo.utils import counters
window = int(sys.argv[1])
q, k, v = (torch.randn(1, 2, 19, 4, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3))
table = torch.randn(2, 19, generator=torch.Generator().manual_seed(3)).requires_grad_()
def model(q, k, v, table):
    scaled = table * 2
    mask = lambda b, h, i, j: (i >= j) & (i - j < window)
    return flexfa4.flex_attention(q, k, v, lambda s, b, h, i, j: s + scaled[h, i - j], mask_mod=mask)
out = torch.compile(model, fullgraph=True)(q, k, v, table)
want = model(q, k, v, table)
pairs = [(out, want), *zip(*(torch.autograd.grad(o.square().sum(), (q, k, v, table)) for o in (out, want)))]
print(json.dumps({"error": max(float((a - b).abs().max()) for a, b in pairs), "hits": counters["inductor"]["fxgraph_cache_hit"],
                  "misses": counters["inductor"]["fxgraph_cache_miss"]}))
"""


@pytest.mark.slow
def test_another_process_uses_the_cache_on_disk(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(window):
        command = [sys.executable, "-c", SCRIPT, str(window)]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    first, second, other = run(5), run(5), run(6)
    assert max(r["error"] for r in (first, second, other)) < 1e-5
    assert first["misses"] and not first["hits"]
    assert second["hits"] and not second["misses"]
    # Another window is another program of the forward pass: it must not be served the old one.
    assert other["misses"]
