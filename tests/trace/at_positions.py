"""Compares a traced mod with the mod itself, called on plain 0-d tensors at random positions."""
import math

import torch

from flexfa4.interpret import evaluate
from flexfa4.ir import DType, Op
from flexfa4.trace import trace

INDEX = (Op.B, Op.H, Op.Q, Op.KV)


def called(fn, position, score=None):
    """The mod on plain tensors: what torch says."""
    arguments = [torch.tensor(p) for p in position]
    lead = [] if score is None else [score.clone()]
    return torch.as_tensor(fn(*lead, *arguments))


def positions(shape, count, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [tuple(int(torch.randint(0, n, (), generator=g)) for n in shape) for _ in range(count)]


def assert_same_as_called(fn, kind, shape, count=40, score_dtype=DType.F32, tolerance=1e-5, score_scale=3.0):
    """`shape` is (B, H, Q_LEN, KV_LEN). Bools must be equal; floats within `tolerance`, relative to max(1, |value|)."""
    bound = trace(fn, kind, score_dtype)
    torch_dtype = torch.float64 if score_dtype is DType.F64 else torch.float32
    g = torch.Generator().manual_seed(1)
    for position in positions(shape, count):
        env = dict(zip(INDEX, position))
        if kind == "mask":
            got, want = evaluate(bound, env), called(fn, position)
            assert want.dtype == torch.bool
            assert bool(torch.as_tensor(got)) == bool(want), f"at {position}: {got}, called gives {want}"
            continue
        score = (torch.randn((), generator=g) * score_scale).to(torch_dtype)
        got = float(evaluate(bound, {**env, Op.SCORE: score}).detach())
        want = float(called(fn, position, score).detach())
        if math.isfinite(want):
            assert abs(got - want) <= tolerance * max(1.0, abs(want)), f"at {position}, score {score}: {got}, called gives {want}"
        else:
            assert got == want or (math.isnan(got) and math.isnan(want)), f"at {position}: {got}, called gives {want}"
    return bound
