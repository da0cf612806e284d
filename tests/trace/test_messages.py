"""The wording of every refusal: the user's file and line, the op or capture by name, and what to write instead."""
import functools
import linecache
import math
import random

import numpy as np
import pytest
import torch

from flexfa4.errors import TraceError
from flexfa4.trace import trace

TABLE = torch.arange(24.0).reshape(4, 6)
RNG, BITS, STATE, DICE = np.random.default_rng(1), np.random.PCG64(1), np.random.RandomState(1), random.Random(1)


class Noisy:
    def __init__(self, source):
        self.source = source

    def __call__(self, score, b, h, q, k):
        return score + self.source.random()


FLAGS = torch.tensor([True, False])
ARRAY = np.arange(4)


class OwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def branch(score, b, h, q, k):
    if q > k:
        return score
    return score * 2


def loop(score, b, h, q, k):
    while q > 0:
        q = q - 1
    return score


def writes_item(score, b, h, q, k):
    TABLE[b, q] = score
    return score


def writes_in_place(score, b, h, q, k):
    TABLE.add_(1)
    return score


def writes_out(score, b, h, q, k):
    torch.add(TABLE, 1, out=TABLE)
    return score


def no_return(score, b, h, q, k):
    score * 2


def endless(score, b, h, q, k):
    return endless(score, b, h, q, k)


def yields(score, b, h, q, k):
    yield score


async def waits(score, b, h, q, k):
    return score


def column(value):
    return value.expand(3)


# name -> (mod, words that its message holds)
SCORE = {
    "if": (branch, ["`if` on a traced value", "torch.where(condition, a, b)"]),
    "while": (loop, ["`while` on a traced value", "fixed number of rounds"]),
    "and": (lambda s, b, h, q, k: (q > 1) and (k > 1), ["`and` / `or`", "& / |"]),
    "not": (lambda s, b, h, q, k: s * (not q), ["`not` on a traced value", "~condition"]),
    "min": (lambda s, b, h, q, k: min(s, 1.0), ["min()", "torch.minimum"]),
    "chained": (lambda s, b, h, q, k: s * (0 < q < 3), ["chained comparison", "(a < b) & (b < c)"]),
    "item": (lambda s, b, h, q, k: s + q.item(), [".item() on a traced value"]),
    "int": (lambda s, b, h, q, k: s + int(q), ["int()", "x.long()"]),
    "math": (lambda s, b, h, q, k: math.exp(s), ["function of the math module", "torch function"]),
    "floor": (lambda s, b, h, q, k: math.floor(s), ["math.floor()", "torch.floor(x)"]),
    "round": (lambda s, b, h, q, k: round(s), ["round()", "torch.round(x)"]),
    "iterate": (lambda s, b, h, q, k: [x for x in s], ["iterated over"]),
    "len": (lambda s, b, h, q, k: len(s), ["len()"]),
    "list": (lambda s, b, h, q, k: s + [1, 2, 3][q], ["a list", "torch.as_tensor"]),
    "numpy function": (lambda s, b, h, q, k: np.exp(s), ["numpy function", "torch function of the same name"]),
    "topk": (lambda s, b, h, q, k: torch.topk(s, 2).values, ["topk() is a reduction", "outside the mod"]),
    "softmax": (lambda s, b, h, q, k: s.softmax(-1), ["softmax() is a reduction"]),
    "max over dim": (lambda s, b, h, q, k: s.max(dim=-1).values, ["max() is a reduction"]),
    "rand": (lambda s, b, h, q, k: s + torch.rand(()), ["rand draws random numbers", "captured tensor"]),
    "rand_like": (lambda s, b, h, q, k: s + torch.rand_like(s), ["rand_like draws random numbers"]),
    "dropout": (lambda s, b, h, q, k: torch.nn.functional.dropout(s), ["dropout draws random numbers"]),
    "python random": (lambda s, b, h, q, k: s + random.random(), ["random numbers (Python's or numpy's"]),
    "numpy random": (lambda s, b, h, q, k: s + np.random.rand(), ["random numbers (Python's or numpy's"]),
    "numpy shuffle": (lambda s, b, h, q, k: s + np.random.permutation(3)[0], ["random numbers (Python's or numpy's"]),
    "numpy generator": (lambda s, b, h, q, k: s + RNG.random(), ["draws random numbers (a Generator)", "captured tensor"]),
    "numpy generator in a default": (lambda s, b, h, q, k, r=RNG: s + r.normal(), ["draws random numbers (a Generator)"]),
    "numpy generator of an object": (Noisy(RNG), ["draws random numbers (a Generator)"]),
    "numpy generator in a partial": (functools.partial(lambda r, s, b, h, q, k: s + r[0].random(), [RNG]), ["(a Generator)"]),
    "numpy bit generator": (lambda s, b, h, q, k: s + BITS.random_raw() % 2, ["draws random numbers (a PCG64)"]),
    "numpy random state": (lambda s, b, h, q, k: s + STATE.rand(), ["draws random numbers (a RandomState)"]),
    "python generator": (lambda s, b, h, q, k: s + DICE.random(), ["draws random numbers (a Random)"]),
    "torch generator": (lambda s, b, h, q, k: s + torch.rand((), generator=torch.default_generator), ["rand draws random"]),
    "made generator": (lambda s, b, h, q, k: s + np.random.default_rng(0).random(), ["a generator that it makes by default_rng"]),
    "setitem": (writes_item, ["assignment into `TABLE`", "write to a captured tensor"]),
    "in place": (writes_in_place, ["in-place add_ on `TABLE`", "write to a captured tensor"]),
    "out=": (writes_out, ["out=", "write to a captured tensor"]),
    "array write": (lambda s, b, h, q, k: ARRAY.__setitem__(0, 1) or s + ARRAY[q], ["write to a captured array"]),
    "unknown op": (lambda s, b, h, q, k: torch.linalg.norm(s), ["linalg_norm is not supported", "capture the result"]),
    "unknown method": (lambda s, b, h, q, k: s.frobnicate(), ["there is no method .frobnicate", "a method of torch.Tensor"]),
    "typing error": (lambda s, b, h, q, k: s.tanhh(), ["there is no method .tanhh", "Write instead: .tanh."]),
    "unknown method of torch": (lambda s, b, h, q, k: s.cummax(0),
                                [".cummax is not supported in a mod", "instead: a composition of"]),
    "dict": (lambda s, b, h, q, k: s * {0: 1.0}[h], ["key of a dict", "capture a tensor"]),
    "dict with a default": (lambda s, b, h, q, k: s * {0: 1.0}.get(h, 2.0), ["key of a dict", "capture a tensor"]),
    "set": (lambda s, b, h, q, k: s * (q in {1, 2}), ["member of a set", "torch.isin"]),
    "in a tuple": (lambda s, b, h, q, k: s * (q in (1, 2, 3)), ["`in` on a traced value", "torch.isin(x, values)"]),
    "if in a tuple": (lambda s, b, h, q, k: s if q in (1, 2, 3) else 0 * s, ["`in` on a traced value", "torch.isin(x, values)"]),
    "in a tensor": (lambda s, b, h, q, k: s * (q in TABLE), ["`in` on a traced value", "torch.isin(x, values)"]),
    "shape": (lambda s, b, h, q, k: s * s.shape[-1], ["scalars", "of shape ()"]),
    "size": (lambda s, b, h, q, k: s * s.size(-1), ["scalar", "of shape ()"]),
    "undefined": (lambda s, b, h, q, k: s * not_there, ["raises NameError", "instead: a name that exists"]),  # noqa: F821
    "recursion": (endless, ["raises RecursionError", "instead: a loop with a fixed number of rounds"]),
    "generator": (yields, ["is a generator (it has a `yield`)", "`return`"]),
    "async": (waits, ["is an async function", "a plain `def`"]),
    "own gradient": (lambda s, b, h, q, k: OwnGradient.apply(s), ["torch.autograd.Function", "plain torch functions"]),
    "detach": (lambda s, b, h, q, k: s.detach(), ["detach() of a traced value"]),
    "float index": (lambda s, b, h, q, k: s + TABLE[b, s], ["torch.float32 index into `TABLE`", "x.long()"]),
    "bool index": (lambda s, b, h, q, k: s + TABLE[b, q > k], ["torch.bool index into `TABLE`"]),
    "static index": (lambda s, b, h, q, k: s + TABLE[b, 6], ["index 6 is out of range for dimension 1 of `TABLE`", "size 6"]),
    "many indices": (lambda s, b, h, q, k: s + TABLE[b, q, k], ["`TABLE` has 2 dimensions"]),
    "vector": (lambda s, b, h, q, k: s + TABLE[h], ["vector of shape (6,)", "`TABLE`", "index missing"]),
    "whole tensor": (lambda s, b, h, q, k: s + TABLE, ["vector of shape (4, 6)", "`TABLE`"]),
    "bool result": (lambda s, b, h, q, k: q >= k, ["returns a bool", "mask_mod"]),
    "no result": (no_return, ["returns None", "`return`"]),
    "tuple result": (lambda s, b, h, q, k: (s, q), ["returns a tuple"]),
    "minus bool": (lambda s, b, h, q, k: s - (q > k), ["subtraction with a bool", "x.int()"]),
    "float &": (lambda s, b, h, q, k: s & 1, ["bitwise and of a float", "parentheses"]),
    "int condition": (lambda s, b, h, q, k: torch.where(q, s, 0.0), ["condition of dtype torch.int64", "x != 0"]),
    "zero divisor": (lambda s, b, h, q, k: s + q // 0, ["division of an integer by zero"]),
    "in place cast": (lambda s, b, h, q, k: q.add_(0.5) + s, ["in-place add_ would change torch.int64 to torch.float32"]),
    "user error": (lambda s, b, h, q, k: s + [][1], ["raises IndexError while it is traced"]),
    "complex": (lambda s, b, h, q, k: s * 1j, ["complex number"]),
}
MASK = {
    "int result": (lambda b, h, q, k: q - k, ["returns dtype torch.int64", "must return a bool", "x != 0"]),
    "float result": (lambda b, h, q, k: TABLE[b, q], ["returns dtype torch.float32", "score_mod for an additive mask"]),
    "vector result": (lambda b, h, q, k: FLAGS, ["vector of shape (2,)", "one index missing"]),
    "too many arguments": (lambda b, h, q, k, n: q >= n, ["mask_mod(b, h, q_idx, kv_idx)", "(b, h, q, k, n)", "'n'"]),
    "too few arguments": (lambda b, h, q: q >= h, ["mask_mod(b, h, q_idx, kv_idx)", "4 positional arguments"]),
}


def refusal(mod, kind):
    with pytest.raises(TraceError) as caught:
        trace(mod, kind)
    return str(caught.value)


@pytest.mark.parametrize("name", SCORE)
def test_score_mod(name):
    mod, words = SCORE[name]
    check(refusal(mod, "score"), mod, words)


@pytest.mark.parametrize("name", MASK)
def test_mask_mod(name):
    mod, words = MASK[name]
    check(refusal(mod, "mask"), mod, words)


def check(message, mod, words):
    assert all(word in message for word in words), message
    assert "Write instead: " in message
    if "autograd.Function" in message:           # the line is in the Function's forward
        mod = OwnGradient.forward
    mod = getattr(mod, "func", mod if hasattr(mod, "__code__") else type(mod).__call__)
    first = mod.__code__.co_firstlineno
    last = max(line for _, _, line in mod.__code__.co_lines() if line)
    file, line = message.split(": ", 1)[0].rsplit(":", 1)
    assert file == __file__ and first <= int(line) <= last, message


def test_golden_sentence():
    line = branch.__code__.co_firstlineno + 1
    assert refusal(branch, "score") == (
        f"{__file__}:{line}: `if` on a traced value: one kernel runs for all positions, so control flow cannot branch on one. "
        "Write instead: torch.where(condition, a, b), or join conditions with & and |.")


ANOTHER_KIND = {
    "mask as score": (lambda b, h, q, k: q >= k, "score", "mask_mod= to pass it by"),
    "score as mask": (lambda score, b, h, q, k: score, "mask", "score_mod= to pass it by"),
    "out as mask": (lambda out, lse, b, h, q: out, "mask", "out_mod= to pass it by"),
    "out as score": (lambda out, lse, b, h, q, d: out, "score", "out_mod= to pass it by"),
    "none": (lambda q, k: q >= k, "mask", ""),
}


@pytest.mark.parametrize("case", ANOTHER_KIND)
def test_a_mod_of_another_kind(case):
    mod, kind, words = ANOTHER_KIND[case]
    message = refusal(mod, kind)
    assert f"{kind}_mod has the signature" in message and f"Write instead: {words}" in message
    assert (" to pass it by" in message) == bool(words)


@pytest.mark.parametrize("cls", [Noisy, OwnGradient])
def test_a_class_as_a_mod(cls):
    message = refusal(cls, "score")
    file, line = message.split(": ", 1)[0].rsplit(":", 1)
    assert file == __file__ and f"class {cls.__name__}" in linecache.getline(file, int(line))
    assert f"{cls.__name__} is a class" in message and f"an instance of it, score_mod={cls.__name__}(...)" in message


def test_what_is_no_function_at_all():
    with pytest.raises(TraceError, match=r"score_mod=3: expected a function score_mod\(score, b, h, q_idx, kv_idx\)"):
        trace(3, "score")


def test_captured_tensors_are_left_alone():
    before = TABLE.clone()
    for name in ("setitem", "in place", "out="):
        refusal(SCORE[name][0], "score")
    assert torch.equal(TABLE, before) and ARRAY.tolist() == [0, 1, 2, 3]
