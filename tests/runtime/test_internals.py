"""A torch without the private names that the runtime uses: calls are right by a slower way, or say what to do."""
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import flexfa4
from flexfa4.errors import UnsupportedError
from flexfa4.runtime import compiled, internals, torch_op

ROOT = Path(__file__).resolve().parents[2]
TABLE = torch.rand(2, dtype=torch.float64, requires_grad=True)


def by_head(score, b, h, q, kv):
    return score * TABLE[h]


def causal(b, h, q, kv):
    return kv <= q


def test_a_name_that_is_not_there_has_its_stand_in():
    assert internals.find("torch._C", "no_such_name", len) is len and internals.find("torch.no_such_module", "name", None) is None
    assert internals.find("torch", "add", None) is torch.add


HIDE = """
import sys, torch
import torch.func, torch.utils._python_dispatch, torch._functorch.apis
path, name = sys.argv[1].rsplit(".", 1)
owner = sys.modules.get(path) or eval(path)
assert hasattr(owner, name), sys.argv[1]

class Without:
    def __init__(self, real):
        self.__dict__["real"] = real
    def __getattr__(self, key):
        if key == name:
            raise AttributeError(key)
        return getattr(self.real, key)

import importlib
real_import = importlib.import_module
importlib.import_module = lambda module: Without(real_import(module)) if module == path else real_import(module)
from flexfa4.runtime import internals
importlib.import_module = real_import
print([f() for f in (internals.dispatch_modes, internals.transform, internals.any_autocast)])
"""


@pytest.mark.parametrize("name, answers", [("torch._C._len_torch_dispatch_stack", "[1, None, False]"),
                                           ("torch._C._functorch.peek_interpreter_stack", "[0, 'unknown', False]"),
                                           ("torch._C._is_any_autocast_enabled", "[0, None, True]")])
def test_the_careful_answer(name, answers):
    done = subprocess.run([sys.executable, "-c", HIDE, name], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == answers, done.stderr


@pytest.mark.parametrize("hidden", ["dispatch_modes", "transform"])
def test_calls_are_right_without(monkeypatch, hidden):
    calls = []
    real = torch_op._attention
    monkeypatch.setattr(internals, hidden, {"dispatch_modes": lambda: 1, "transform": lambda: "unknown"}[hidden])
    monkeypatch.setattr(torch_op, "_by_tiles", lambda *args: calls.append(args) or real(*args))
    q, k, v = (torch.randn(1, 2, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = flexfa4.create_block_mask(causal, None, None, 9, 9)
    want, lse = flexfa4.reference.attention(q, k, v, by_head, causal)
    got, got_lse = flexfa4.flex_attention(q, k, v, by_head, mask, return_lse=True)
    torch.testing.assert_close((got, got_lse), (want, lse))
    for a, b in zip(*(torch.autograd.grad(out.sin().sum(), (q, k, v, TABLE)) for out in (got, want))):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(flexfa4.flex_attention(q, k, v, by_head, mask), want)
    mapped = torch.vmap(lambda x: flexfa4.flex_attention(x, k.detach(), v.detach()))(q.detach()[None])
    torch.testing.assert_close(mapped[0], flexfa4.reference.attention(q, k, v)[0].detach())
    assert not calls, "the short way was taken, which the missing name guards"


def test_torch_compile_says_what_to_do(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(compiled, "_replace_body", None)
    q = torch.randn(1, 2, 9, 4)
    with pytest.raises(Exception, match=r"has no dynamo_bypassing_wrapper.*torch\.compiler\.disable\(flexfa4\.flex_attention\)"):
        torch.compile(flexfa4.flex_attention, fullgraph=True, backend="eager")(q, q, q)
    with pytest.raises(UnsupportedError, match="use torch 2.11 to 2.13"):
        compiled.call((q, q, q), (None, None, None), 1.0, [16, 16, 128])
    off = torch.compiler.disable(flexfa4.flex_attention)
    torch._dynamo.reset()
    got = torch.compile(lambda q: off(q, q, q) * 2, backend="eager")(q)
    torch.testing.assert_close(got, flexfa4.flex_attention(q, q, q) * 2)


@pytest.mark.parametrize("hidden", ["_function_modes", "InstructionTranslator"])
def test_torch_compile_without_the_hook_for_cleaning_up(monkeypatch, hidden):
    torch._dynamo.reset()
    if hidden == "_function_modes":
        monkeypatch.setattr(compiled, hidden, None)
    else:
        find = internals.find
        monkeypatch.setattr(internals, "find", lambda module, name, instead: instead if name == hidden else
                            find(module, name, instead))
    q = torch.randn(1, 2, 9, 4, dtype=torch.float64)
    got = torch.compile(lambda q: flexfa4.flex_attention(q, q, q, by_head), fullgraph=True, backend="aot_eager")(q)
    torch.testing.assert_close(got, flexfa4.reference.attention(q, q, q, by_head)[0])
