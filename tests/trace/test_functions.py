"""Every torch function that a mod may call has torch's value and torch's gradients, also at ties, edges, zeros and infinities."""
import math

import pytest
import torch
import torch.nn.functional as F

from flexfa4.facts.derivative import adjoints
from flexfa4.interpret import program
from flexfa4.ir import DType, Op
from flexfa4.trace import trace
from flexfa4.trace.functions import ELEMENTWISE

F64 = torch.float64
INF = math.inf
# The kinks of all functions below: 0 with both signs, +-1 (asin, hardtanh), +-3 and 6 (hardsigmoid, relu6), 20 (softplus),
# halves (round), and infinities.
POINTS = (-INF, -20.5, -6.0, -3.0, -2.5, -1.0, -0.5, -0.3, -0.0, 0.0, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 6.0, 7.25, 20.0, 20.5, INF)
FINITE = tuple(x for x in POINTS if math.isfinite(x))

# name -> function of one float
UNARY = {
    "square": torch.square, "neg": torch.neg, "positive": torch.positive, "abs": torch.abs, "sign": torch.sign,
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "frac": torch.frac, "round": torch.round, "exp": torch.exp,
    "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "erf": torch.erf, "erfc": torch.erfc, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "atan": torch.atan,
    "asin": torch.asin, "acos": torch.acos, "sinh": torch.sinh, "cosh": torch.cosh, "nan_to_num": torch.nan_to_num,
    "relu": torch.relu, "relu by name": F.relu, "silu": F.silu, "gelu": F.gelu, "softplus": F.softplus,
    "logsigmoid": F.logsigmoid, "leaky_relu": F.leaky_relu, "elu": F.elu, "relu6": F.relu6, "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "softsign": F.softsign, "mish": F.mish,
    "double": lambda x: x.double(),
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"), "softplus of 2x": lambda x: F.softplus(x, beta=2.0, threshold=6.0),
    "leaky_relu, steep": lambda x: F.leaky_relu(x, 1.5), "elu of 2": lambda x: F.elu(x, alpha=2.0),
    "hardtanh to 3": lambda x: F.hardtanh(x, -0.5, 3.0), "nan_to_num to 7": lambda x: torch.nan_to_num(x, 5.0, 7.0, -7.0),
    "clamp": lambda x: torch.clamp(x, -1.0, 3.0), "clip": lambda x: x.clip(min=0.5), "clamp max": lambda x: x.clamp(max=3),
    "clamp_min": lambda x: torch.clamp_min(x, 0.0), "clamp_max": lambda x: torch.clamp_max(x, 6.0),
    "clamp, crossed": lambda x: torch.clamp(x, 3.0, -1.0), "masked_fill": lambda x: x.masked_fill(x > 1, 4.0),
    "where": lambda x: torch.where(x >= 0.5, x * x, torch.log(x)), "maximum with a number": lambda x: torch.maximum(
        x, torch.tensor(0.5, dtype=F64)), "minimum with a number": lambda x: torch.minimum(x, torch.tensor(3.0, dtype=F64)),
    "x**0": lambda x: x ** 0, "x**1": lambda x: x ** 1, "x**2": lambda x: x ** 2, "x**3": lambda x: torch.pow(x, 3),
    "x**-1": lambda x: x ** -1, "x**-2": lambda x: x ** -2.0, "x**0.5": lambda x: x ** 0.5, "x**1.5": lambda x: x ** 1.5,
    "2**x": lambda x: 2.0 ** x, "0**x": lambda x: torch.pow(0.0, x), "1/x": lambda x: 1 / x, "x/2": lambda x: x / 2,
    "x//2": lambda x: torch.div(x, 2.0, rounding_mode="floor"), "x%2": lambda x: x % 2.0, "fmod": lambda x: torch.fmod(x, 2.0),
    "rsub": lambda x: torch.rsub(x, 2.0), "x/x": lambda x: x / x, "max": lambda x: torch.max(x, x * x),
    "abs of abs": lambda x: (x.abs() - 1).abs(), "lerp": lambda x: torch.lerp(x, x * x, 0.25),
    "lerp, far": lambda x: torch.lerp(x, x * x, 0.75), "xlogy of a number": lambda x: torch.xlogy(2.0, x),
}
# name -> function of two floats, both of which may need a gradient
BINARY = {
    "add": torch.add, "add, alpha": lambda x, y: torch.add(x, y, alpha=3), "sub": torch.sub, "subtract": torch.subtract,
    "rsub": torch.rsub, "mul": torch.mul, "multiply": torch.multiply, "div": torch.div, "divide": torch.divide,
    "true_divide": torch.true_divide, "remainder": torch.remainder, "fmod": torch.fmod, "pow": torch.pow,
    "minimum": torch.minimum, "maximum": torch.maximum, "max": torch.max, "min": torch.min, "x.max(y)": lambda x, y: x.max(y),
    "fmin": torch.fmin, "fmax": torch.fmax, "clamp above": lambda x, y: torch.clamp(x, min=y),
    "clamp below": lambda x, y: torch.clamp(x, max=y), "clip": lambda x, y: torch.clip(x, min=y),
    "clamp_min": torch.clamp_min, "clamp_max": torch.clamp_max, "clamp between": lambda x, y: torch.clamp(x, y, y + 2),
    "clamp, crossed": lambda x, y: torch.clamp(x, y, y - 2), "where": lambda x, y: torch.where(x < y, x, y * 2),
    "atan2": torch.atan2, "logaddexp": torch.logaddexp, "xlogy": torch.xlogy, "hypot": torch.hypot,
    "lerp": lambda x, y: torch.lerp(x, x * x, y), "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=2), "div, floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div, trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"), "masked_fill": lambda x, y: x.masked_fill(x > y, 1.0),
}
# Their results or operands are integers or Booleans, they drop precision that this test works in, or torch has no gradient.
NOT_HERE = {
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift", "logical_and",
    "logical_or", "logical_xor", "logical_not", "lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "isfinite", "isposinf",
    "isneginf", "float", "half", "bfloat16", "int", "long", "short", "char", "byte", "bool", "floor_divide",
}

def derivatives(mod, points):
    """Of a traced score_mod(s, b, h, q, kv) at scores `points`, counted by q: value, gradient in s, gradient in its captures."""
    bound = trace(mod, "score", DType.F64)
    found = adjoints(bound.graph)
    env = {Op.SCORE: points, Op.Q: torch.arange(len(points))}
    roots = (bound.graph.root, found.score, *(adjoint for _, adjoint in found.loads))
    value, by_score, *by_table = (x.expand(points.shape) for x in program(roots)(env, bound.tensors, bound.literals))
    return value, by_score, sum(by_table) if by_table else torch.zeros_like(points)


def same(got, want, points, what):
    """NaN in torch's answer may be anything; everything else is equal, infinities exactly. The tolerance is that of torch's
    gradient of hardsigmoid, which has 1/6 in float32."""
    bad = ~(torch.isclose(got, want, rtol=5e-8, atol=1e-12) | want.isnan())
    shown = [(p.tolist(), g.item(), w.item()) for p, g, w in zip(points[bad], got[bad], want[bad])]
    assert not shown, f"{what} at (points, ours, torch's): {shown[:6]}"


@pytest.mark.parametrize("name", UNARY)
def test_of_one_number(name):
    function = UNARY[name]
    x = torch.tensor(POINTS, dtype=F64, requires_grad=True)
    want = function(x)
    slope, = torch.autograd.grad(want.sum(), x, materialize_grads=True) if want.requires_grad else (torch.zeros_like(x),)
    value, by_score, _ = derivatives(lambda s, b, h, q, kv: function(s), x.detach())
    same(value, want.detach(), x.detach(), "value")
    same(by_score, slope, x.detach(), "gradient")


@pytest.mark.parametrize("name", BINARY)
def test_of_two_numbers(name):
    function = BINARY[name]
    pairs = torch.cartesian_prod(torch.tensor(FINITE, dtype=F64), torch.tensor(FINITE, dtype=F64))
    x, y = (column.clone().requires_grad_() for column in pairs.unbind(-1))
    want = function(x, y)
    slopes = torch.autograd.grad(want.sum(), (x, y), materialize_grads=True)
    table = y.detach()
    value, *got = derivatives(lambda s, b, h, q, kv: function(s, table[q]), x.detach())
    same(value, want.detach(), pairs, "value")
    same(got[0], slopes[0], pairs, "gradient of the first")
    same(got[1], slopes[1], pairs, "gradient of the second")


VECTORS = {"amax": lambda t: t.amax(-1), "amin": lambda t: t.amin(-1), "sum": lambda t: t.sum(-1), "mean": lambda t: t.mean(-1),
           "max": lambda t: t.max(), "min": lambda t: t.min()}


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("lanes", [2, 3, 5])
def test_of_a_short_vector_at_ties(name, lanes):
    function = VECTORS[name]
    rows = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 2.5], dtype=F64)] * lanes).requires_grad_()
    want = torch.stack([function(row) for row in rows])
    slope, = torch.autograd.grad(want.sum(), rows)
    table = rows.detach()
    bound = trace(lambda s, b, h, q, kv: s + function(table[q]), "score", DType.F64)
    loads = adjoints(bound.graph).loads
    env = {Op.SCORE: torch.zeros(len(rows), dtype=F64), Op.Q: torch.arange(len(rows))}
    value, *rest = program((bound.graph.root, *(n for load, adjoint in loads for n in (load.args[1], adjoint))))(
        env, bound.tensors, bound.literals)
    got = torch.zeros_like(table)
    for lane, adjoint in zip(rest[::2], rest[1::2]):
        got[:, int(lane)] += adjoint
    same(value, want.detach(), table, "value")
    same(got, slope, table, "gradient")


def test_equal_bounds_of_a_clamp():
    """The one difference from torch: below two equal bounds torch gives nobody the gradient, here the lower bound has it."""
    x, bound = torch.tensor([0.0, 1.0, 2.0], dtype=F64), torch.ones(3, dtype=F64)
    leaves = x.clone().requires_grad_(), bound.clone().requires_grad_()
    want = torch.autograd.grad(torch.clamp(leaves[0], leaves[1], leaves[1]).sum(), leaves)
    value, *got = derivatives(lambda s, b, h, q, kv: torch.clamp(s, bound[q], bound[q]), x)
    assert value.tolist() == [1, 1, 1] and got[0].tolist() == want[0].tolist() == [0, 1, 0]
    assert got[1].tolist() == [1, 0, 1] and want[1].tolist() == [0, 0, 1]


def test_every_function_is_tested():
    used = {name.split(",")[0].split(" ")[0] for name in (*UNARY, *BINARY)}
    assert set(ELEMENTWISE) == (used & set(ELEMENTWISE)) | NOT_HERE and not used & NOT_HERE


def test_the_comparison_sees_a_wrong_gradient():
    half = torch.tensor([0.5], dtype=F64)
    with pytest.raises(AssertionError, match="gradient"):
        same(half, half * 2, half, "gradient")
    with pytest.raises(AssertionError):
        same(half / 0, -half / 0, half, "value")
    with pytest.raises(AssertionError):
        same(half * math.nan, half, half, "value")
