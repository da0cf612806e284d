"""Output hooks: signatures, values against the hook itself, and what is refused."""
import re

import pytest
import torch

from flexfa4.errors import TraceError
from flexfa4.interpret import evaluate
from flexfa4.ir import DType, Op
from flexfa4.trace import arity, bind, trace

GATE = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
SINK = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(GATE.clone())

    def forward(self, out, lse, b, h, q, d):
        return out * torch.sigmoid(self.weight[h, d])


def sink(out, lse, b, h, q):
    return out * torch.sigmoid(lse - SINK[h])


def column_by_default(out, lse, b, h, q, d=0):
    return out + d


def scale_by_default(out, lse, b, h, q, scale=3.0):
    return out * scale


def everything(*args):
    out, lse, b, h, q, d = args
    return torch.where(d > 1, out - lse, out * 0.5) + b + 2 * h - q


HOOKS = {"gate": (Gate(), 6), "sink": (sink, 5), "column": (lambda o, lse, b, h, q, d: o * (d + 1), 6), "all": (everything, 6),
         "column by default": (column_by_default, 6), "another default": (scale_by_default, 5),
         "lse alone": (lambda o, lse, b, h, q: lse, 5), "gate of halves": (lambda o, lse, b, h, q: o * GATE.half()[h, q % 5], 5)}


@pytest.mark.parametrize("float_type", [DType.F32, DType.F64])
@pytest.mark.parametrize("name", HOOKS)
def test_traced_equals_called(name, float_type):
    hook, count = HOOKS[name]
    bound = trace(hook, "out", float_type)
    assert arity(hook, "out") == count and bound.graph.kind == "out" and bound.graph.root.dtype is float_type
    assert bound.graph.uses(Op.D) == (name in ("gate", "column", "all", "column by default"))
    wide = torch.float64 if float_type is DType.F64 else torch.float32
    for b, h, q, d in ((0, 0, 0, 0), (1, 2, 7, 4), (0, 1, 3, 2)):
        out, lse = torch.tensor(1.7, dtype=wide), torch.tensor(-0.4, dtype=wide)
        got = evaluate(bound, {Op.OUT: out, Op.LSE: lse, Op.B: b, Op.H: h, Op.Q: q, Op.D: d})
        want = hook(*(out, lse, *map(torch.tensor, (b, h, q, d)))[:count])
        torch.testing.assert_close(got, torch.as_tensor(want).to(wide), rtol=1e-6, atol=1e-6)


REFUSED = {
    "bool": (lambda o, lse, b, h, q: o > lse, "is an out_mod and returns a bool where a float is wanted"),
    "none": (lambda o, lse, b, h, q: None, "returns None"),
    "vector": (lambda o, lse, b, h, q: o * GATE[h], "`GATE` is used with one index missing"),
    "branch": (lambda o, lse, b, h, q: o if lse > 0 else -o, "`if` on a traced value"),
    "row sum": (lambda o, lse, b, h, q: o / o.sum(), r"sum\(\) is a reduction"),
    "too few": (lambda o, lse, b, h: o, "out_mod has the signature"),
    "too many": (lambda o, lse, b, h, q, d, e: o, "out_mod has the signature"),
    "a key": (lambda o, lse, b, h, q, *, kv: o + kv, "out_mod has the signature"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_line(name):
    hook, words = REFUSED[name]
    with pytest.raises(TraceError, match=re.escape(f"{__file__}:{hook.__code__.co_firstlineno}: ") + f".*({words})"):
        trace(hook, "out")


def test_an_unchanged_hook_is_not_traced_again():
    gate = Gate()
    first = bind(gate, "out")
    assert bind(gate, "out") is first and first.tensors == (gate.weight,)
    assert bind(gate, "out", DType.F64) is not first
