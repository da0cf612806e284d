"""Corners where torch's answer is easily missed: types of mixed operands, numbers that do not fit, NaNs, long tails.

torch on plain tensors is the reference; where torch raises, the trace must refuse.
"""
import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from test_functions import derivatives
from test_promotion import agree

from flexfa4.errors import TraceError
from flexfa4.interpret import program
from flexfa4.ir import DType, Op
from flexfa4.trace import trace

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
NUMBERS = [3, 2.5, True]
FILLS = [1000, -1, 2.5, 1e6, 1e40, True, math.inf, -math.inf]


def scalar(dtype, value=5):
    return torch.tensor(value if dtype is not torch.bool else True, dtype=dtype)


OF_TWO = {
    "add, alpha=3": lambda a, b: torch.add(a, b, alpha=3), "add, alpha=0": lambda a, b: torch.add(a, b, alpha=0),
    "add, alpha=0.5": lambda a, b: torch.add(a, b, alpha=0.5), "add, alpha=True": lambda a, b: torch.add(a, b, alpha=True),
    "sub, alpha=0.5": lambda a, b: torch.sub(a, b, alpha=0.5), "sub, alpha=3": lambda a, b: torch.sub(a, b, alpha=3),
    "rsub, alpha=0.5": lambda a, b: torch.rsub(a, b, alpha=0.5), "xlogy": torch.xlogy,
    "lerp": lambda a, b: torch.lerp(a, b, 0.25), "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "addcmul, value=1.5": lambda a, b: torch.addcmul(a, b, b, value=1.5),
    "addcmul, value=2": lambda a, b: torch.addcmul(a, a, b, value=2),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, a), "addcdiv, value=1.5": lambda a, b: torch.addcdiv(a, b, b, value=1.5),
    "masked_fill by a tensor": lambda a, b: a.masked_fill(a == a, b),
}


@pytest.mark.parametrize("name", OF_TWO)
def test_types_of_two(name):
    for first, second in product(DTYPES, DTYPES):
        agree(OF_TWO[name], (scalar(first), scalar(second, 3)), name)


OF_ONE = {
    **{f"hardtanh{limits}": lambda x, limits=limits: F.hardtanh(x, *limits) for limits in ((), (-1, 1), (-1.5, 2.5), (0, 6))},
    "relu6": F.relu6, "softsign": F.softsign, "new_tensor(2.5)": lambda x: x.new_tensor(2.5),
    "new_tensor(0.1)": lambda x: x.new_tensor(0.1),
    "new_tensor(2)": lambda x: x.new_tensor(2), "erfc": torch.erfc,
    **{f"xlogy(x, {n})": lambda x, n=n: torch.xlogy(x, n) for n in NUMBERS},
    **{f"xlogy({n}, x)": lambda x, n=n: torch.xlogy(n, x) for n in NUMBERS},
    **{f"add({n}, alpha=3)": lambda x, n=n: torch.add(x, n, alpha=3) for n in NUMBERS},
    **{f"add({n}, alpha=0.5)": lambda x, n=n: torch.add(x, n, alpha=0.5) for n in NUMBERS},
    **{f"masked_fill({n})": lambda x, n=n: x.masked_fill(x == x, n) for n in FILLS},
    "clamp(max=70000.0)": lambda x: x.clamp(max=70000.0) if x.dtype.is_floating_point else x.float(),
    "clamp(min=-1e40)": lambda x: x.clamp(min=-1e40) if x.dtype.is_floating_point else x.float(),
    "clamp(max=inf)": lambda x: x.clamp(max=math.inf) if x.dtype.is_floating_point else x.float(),
    "+ 70000.0": lambda x: x + 70000.0, "< 1e30": lambda x: x < 1e30, "< -70000.0": lambda x: x < -70000.0,
}


@pytest.mark.parametrize("name", OF_ONE)
def test_types_of_one(name):
    for dtype in DTYPES:
        agree(OF_ONE[name], (scalar(dtype),), f"{name} of {dtype}")


def test_numbers_beyond_half_do_not_surprise_the_run():
    half = torch.tensor(1.0, dtype=torch.float16)
    with pytest.raises(TraceError, match="70000 as a bound of clamp does not fit"):
        trace(lambda s, b, h, q, k: (half * s.half()).clamp(max=70000), "score")
    assert at(lambda s, b, h, q, k: torch.where(half < 70000, s, 0.0), torch.ones(1, dtype=torch.float64)).item() == 1


def at(mod, points, dtype=DType.F64):
    bound = trace(mod, "score", dtype)
    value, = program((bound.graph.root,))({Op.SCORE: points, Op.Q: torch.arange(len(points))}, bound.tensors, bound.literals)
    return value.expand(points.shape)


@pytest.mark.parametrize("dtype, units", [(torch.float64, 16), (torch.float32, 24)])
def test_erfc_is_accurate_in_its_tail(dtype, units):
    points = torch.cat([torch.linspace(-7, 26 if dtype is torch.float64 else 9, 4001), torch.tensor([0.0, -0.0])]).to(dtype)
    got = at(lambda s, b, h, q, k: torch.erfc(s), points, DType.F64 if dtype is torch.float64 else DType.F32)
    want = torch.erfc(points.double())
    assert ((got.double() - want).abs() <= units * torch.finfo(dtype).eps * want).all()
    ends = torch.tensor([math.inf, -math.inf, math.nan, 1e30, 60.0], dtype=dtype)
    got = at(lambda s, b, h, q, k: torch.erfc(s), ends, DType.F64 if dtype is torch.float64 else DType.F32)
    assert torch.equal(got.nan_to_num(7.0), torch.tensor([0.0, 2.0, 7.0, 0.0, 0.0], dtype=dtype))


def test_the_logarithm_of_a_small_erfc_is_finite():
    x = torch.tensor([60.0 / 8], dtype=torch.float64)
    value, slope, _ = derivatives(lambda s, b, h, q, k: torch.log(torch.erfc(s)), x)
    leaf = x.clone().requires_grad_()
    want = torch.special.log_ndtr(-leaf * math.sqrt(2)) + math.log(2)
    assert torch.allclose(value, want.detach(), rtol=1e-14)
    assert torch.allclose(slope, *torch.autograd.grad(want.sum(), leaf), rtol=1e-12)
    assert at(lambda s, b, h, q, k: torch.log(torch.erfc(s)), x.float(), DType.F32).isfinite().all()


BOUNDS = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
FINDS = {
    "bucketize": lambda x: torch.bucketize(x, BOUNDS), "bucketize, right": lambda x: torch.bucketize(x, BOUNDS, right=True),
    "searchsorted": lambda x: torch.searchsorted(BOUNDS, x), "side": lambda x: torch.searchsorted(BOUNDS, x, side="right"),
    "left": lambda x: torch.searchsorted(BOUNDS, x, side="left"),
}


@pytest.mark.parametrize("name", FINDS)
def test_buckets_at_bounds_and_of_nan(name):
    points = torch.tensor([0.5, 1.0, 1.5, 3.0, 4.0, math.nan, -math.inf, math.inf], dtype=torch.float64)
    assert torch.equal(at(lambda s, b, h, q, k: FINDS[name](s) * 1.0, points).double(), FINDS[name](points).double())
    with pytest.raises(TraceError, match="sorter"):
        trace(lambda s, b, h, q, k: torch.searchsorted(BOUNDS, s, sorter=torch.arange(3)) * s, "score")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_of_halves_are_added_up_wide(dtype):
    rows = (torch.rand(20, 64, generator=torch.Generator().manual_seed(3)) * 30).to(dtype)
    points = torch.zeros(20, dtype=torch.float64)
    for reduce in (torch.mean, torch.sum):
        assert torch.equal(at(lambda s, b, h, q, k: s + reduce(rows[q]), points), reduce(rows, dim=-1).double())
    with pytest.raises(TraceError, match="mean.. of torch.int64"):
        trace(lambda s, b, h, q, k: s + rows.long()[q].mean(), "score")


def test_both_embeddings():
    weight, points = torch.arange(12.0).reshape(4, 3).double(), torch.zeros(4, dtype=torch.float64)
    for look_up in (lambda q: torch.embedding(weight, q), lambda q: F.embedding(q, weight),
                    lambda q: F.embedding(input=q, weight=weight), lambda q: torch.embedding(weight=weight, indices=q)):
        assert torch.equal(at(lambda s, b, h, q, k: s + look_up(q)[1], points), weight[:, 1])
    trained = torch.nn.Embedding(4, 3, padding_idx=0)
    with pytest.raises(TraceError, match="padding_idx"):
        trace(lambda s, b, h, q, k: s + trained(q)[1], "score")
