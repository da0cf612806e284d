"""Derivatives against finite differences, against torch's autograd of the evaluated program, and at the corners where a plain
chain rule gives NaN."""
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4.facts.derivative import DERIVATIVE, NO_DERIVATIVE, STRUCTURAL, adjoints
from flexfa4.interpret import evaluate, program
from flexfa4.ir import Capture, DType, Graph, Op, cast, const, node
from flexfa4.ir.bound import BoundGraph, Origin
from flexfa4.ir.dtypes import FLOATS
from flexfa4.ir.graph import D, KV, LSE, OUT, Q
from flexfa4.ir.verify import verify
from flexfa4.tensors import torch_dtype
from tests.random_graphs import ALL_OPS, cases

F32, F64, I64, BOOL = DType.F32, DType.F64, DType.I64, DType.BOOL
S = node(Op.SCORE, (), F64)
T = node(Op.LOAD, (Q,), F64, 0)
ORIGIN = Origin("mod", "mods.py", 1)


def _f(op, *args, dtype=F64):
    return node(op, args, dtype)


def _c(value, dtype=F64):
    return const(value, dtype)


def _derivatives(root, score, table=None, literals=(), slots=(), **env):
    """(d root / d score, d root / d T lookup) at the given points."""
    captures = () if table is None else (Capture(F64, 1),)
    graph = verify(Graph("score", root, captures, slots))
    found = adjoints(graph)
    nodes = (found.score, *(adjoint for _, adjoint in found.loads))
    for n in nodes:
        verify(Graph("score", n, captures, slots))
    env = {Op.SCORE: torch.as_tensor(score, dtype=torch.float64), Op.Q: torch.arange(len(score))}
    return program(nodes)(env, () if table is None else (torch.as_tensor(table, dtype=torch.float64),), literals)


POINTS = torch.tensor([-2.3, -1.1, -0.4, 0.3, 0.8, 1.7, 2.9], dtype=torch.float64)
DOMAIN = {Op.LOG: (0, 9), Op.LOG2: (0, 9), Op.LOG10: (0, 9), Op.LOG1P: (-1, 9), Op.SQRT: (0, 9), Op.RSQRT: (0, 9)}
UNARY = sorted((op for op in DERIVATIVE if DERIVATIVE[op].__code__.co_argcount == 3), key=lambda op: op.value)
BINARY = sorted((op for op in DERIVATIVE if DERIVATIVE[op].__code__.co_argcount == 4 or op is Op.POW), key=lambda op: op.value)


@pytest.mark.parametrize("op", UNARY, ids=repr)
def test_unary_against_finite_differences(op):
    low, high = DOMAIN.get(op, (-9, 9))
    x = POINTS[(POINTS > low) & (POINTS < high)]
    root, h = _f(op, S), 1e-6
    slope = (program((root,))({Op.SCORE: x + h})[0] - program((root,))({Op.SCORE: x - h})[0]) / (2 * h)
    torch.testing.assert_close(_derivatives(root, x)[0].expand_as(x), slope, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("op", BINARY, ids=repr)
@pytest.mark.parametrize("form", ["both vary", "literal second", "literal first"])
def test_binary_against_finite_differences(op, form):
    x = POINTS.abs() if op is Op.POW else POINTS
    y, h = torch.tensor([1.9, -0.7, 2.2, -1.6, 0.9, -2.5, 1.2], dtype=torch.float64), 1e-6
    slot = node(Op.SLOT, (), F64, 0)
    root = {"both vary": _f(op, S, T), "literal second": _f(op, S, slot), "literal first": _f(op, slot, S)}[form]
    env, literals = {Op.Q: torch.arange(7)}, (1.3,)

    def value(dx=0.0, dy=0.0):
        return program((root,))({**env, Op.SCORE: x + dx}, (y + dy,), literals)[0]
    by_score, *by_table = _derivatives(root, x, y, literals, (F64,))
    torch.testing.assert_close(by_score.expand_as(x), (value(h) - value(-h)) / (2 * h), rtol=1e-6, atol=1e-6)
    if form == "both vary":
        # The constant lookups of step functions have an adjoint of 0, or none.
        slope = (value(0, h) - value(0, -h)) / (2 * h)
        got = by_table[0].expand_as(x) if by_table else torch.zeros_like(x)
        torch.testing.assert_close(got, slope, rtol=1e-6, atol=1e-6)


def test_the_table_has_a_row_for_every_op():
    assert set(DERIVATIVE) | NO_DERIVATIVE | STRUCTURAL == set(Op)
    assert len(DERIVATIVE) + len(NO_DERIVATIVE) + len(STRUCTURAL) == len(Op)


SAFE = _f(Op.LT, _c(0.0), S, dtype=BOOL)
BAD_BRANCHES = {
    "log": _f(Op.LOG, S), "sqrt": _f(Op.SQRT, S), "rsqrt": _f(Op.RSQRT, S), "1/x": _f(Op.DIV, _c(1.0), S),
    "0/0": _f(Op.DIV, S, S), "x^-0.5": _f(Op.POW, S, node(Op.SLOT, (), F64, 0)), "log of log": _f(Op.LOG, _f(Op.LOG, S)),
    "exp of 1/x": _f(Op.EXP, _f(Op.RECIPROCAL, S)),
    "x * log": _f(Op.MUL, S, _f(Op.LOG, S)), "sin(1/x)": _f(Op.SIN, _f(Op.DIV, _c(1.0), S)),
}


@pytest.mark.parametrize("name", BAD_BRANCHES)
@pytest.mark.parametrize("outer", ["where", "scaled", "twice", "through min", "nested"])
def test_the_branch_not_taken_contributes_zero(name, outer):
    branch = BAD_BRANCHES[name]
    chosen = _f(Op.WHERE, SAFE, branch, _c(0.0))
    root = {
        "where": chosen, "scaled": _f(Op.MUL, _f(Op.EXP, chosen), S),
        "twice": _f(Op.ADD, chosen, _f(Op.WHERE, SAFE, _f(Op.NEG, branch), S)),
        "through min": _f(Op.MAX, chosen, _c(-50.0)),
        "nested": _f(Op.WHERE, _f(Op.LT, S, _c(9.0), dtype=BOOL), chosen, _f(Op.SQRT, branch)),
    }[outer]
    score = torch.tensor([0.0, -1.0], dtype=torch.float64)
    got = _derivatives(root, score, literals=(-0.5,), slots=(F64,))[0].expand(2)
    expected = {"where": 0.0, "scaled": 1.0, "twice": 1.0, "through min": 0.0, "nested": 0.0}[outer]
    assert got.tolist() == [expected, expected]


def test_saturated_and_infinite_values():
    softcap = _f(Op.MUL, _f(Op.TANH, _f(Op.DIV, S, _c(20.0))), _c(20.0))
    assert _derivatives(softcap, [1e9, -1e9, math.inf])[0].tolist() == [0, 0, 0]
    masked = _f(Op.WHERE, _f(Op.LE, KV, Q, dtype=BOOL), S, _c(-math.inf))
    found = adjoints(Graph("score", masked)).score
    got = program((found,))({Op.Q: torch.tensor([1]), Op.KV: torch.tensor([0, 1, 2])})[0]
    assert got.tolist() == [1, 1, 0]


def test_ties_and_edges_follow_torch():
    score, table = [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]
    assert [x.tolist() for x in _derivatives(_f(Op.MAX, S, T), score, table)] == [[0, 0.5, 1], [1, 0.5, 0]]
    assert [x.tolist() for x in _derivatives(_f(Op.MIN, S, T), score, table)] == [[1, 0.5, 0], [0, 0.5, 1]]
    for tie, expected in ((0, [0, 1, 1, 1, 0]), (1, [0, 0, 1, 0, 0]), (None, [0, 0.5, 1, 0.5, 0])):
        clamped = node(Op.MIN, (node(Op.MAX, (S, _c(-1.0)), F64, tie), _c(2.0)), F64, tie)
        assert _derivatives(clamped, [-1.5, -1.0, 0.0, 2.0, 2.5])[0].tolist() == expected
    for tie, expected in ((0, [[0, 1, 1], [1, 0, 0]]), (1, [[0, 0, 1], [1, 1, 0]])):
        assert [x.tolist() for x in _derivatives(node(Op.MAX, (S, T), F64, tie), score, table)] == expected
    assert _derivatives(_f(Op.ABS, S), [-2.0, 0.0, 3.0])[0].tolist() == [-1, 0, 1]
    power = _f(Op.POW, S, node(Op.SLOT, (), F64, 0))
    assert _derivatives(power, [0.0, 2.0], literals=(0.0,), slots=(F64,))[0].tolist() == [0, 0]
    base = _f(Op.POW, T, S)
    assert _derivatives(base, [2.0, 0.0], [0.0, 0.0])[0].tolist() == [0, 0]


def test_expected_forms():
    """What engines and kernels get to see is small."""
    assert adjoints(Graph("score", _f(Op.ADD, S, _f(Op.MUL, T, cast(KV, F64))), (Capture(F64, 1),))).score is _c(1.0)
    assert adjoints(Graph("score", _f(Op.NEG, S))).score is _c(-1.0)
    bias = adjoints(Graph("score", _f(Op.ADD, S, T), (Capture(F64, 1),)))
    assert bias.loads == ((T, _c(1.0)),)
    square = adjoints(Graph("score", _f(Op.MUL, S, S))).score
    assert square is _f(Op.ADD, S, S)
    assert adjoints(Graph("score", cast(Q, F32))).score is _c(0.0, F32)


def test_no_gradient_through_indices_and_integers():
    through = node(Op.LOAD, (cast(S, I64),), F64, 0)
    found = adjoints(Graph("score", through, (Capture(F64, 1),)))
    assert found.score is _c(0.0) and found.loads == ((through, _c(1.0)),)
    nested = node(Op.LOAD, (node(Op.LOAD, (Q,), I64, 1),), F64, 0)
    found = adjoints(Graph("score", _f(Op.MUL, nested, S), (Capture(F64, 1), Capture(I64, 1))))
    assert found.loads == ((nested, S),)
    whole = cast(cast(S, I64), F64)
    assert adjoints(Graph("score", whole)).score is _c(0.0)


def test_half_captures_have_float32_adjoints():
    s32, t16 = node(Op.SCORE, (), F32), node(Op.LOAD, (Q,), DType.BF16, 0)
    root = _f(Op.MUL, s32, cast(_f(Op.EXP, t16, dtype=DType.BF16), F32), dtype=F32)
    (load, adjoint), = adjoints(Graph("score", root, (Capture(DType.BF16, 1),))).loads
    assert load is t16 and adjoint.dtype is F32
    table = torch.tensor([0.5, -1.0]).bfloat16()
    got = program((adjoint,))({Op.SCORE: torch.tensor([2.0, 3.0]), Op.Q: torch.arange(2)}, (table,))[0]
    torch.testing.assert_close(got, torch.tensor([2.0, 3.0]) * table.exp().float())


def test_out_hooks():
    gate = _f(Op.MUL, OUT, _f(Op.SIGMOID, _f(Op.SUB, LSE, node(Op.LOAD, (D,), F32, 0), dtype=F32), dtype=F32), dtype=F32)
    found = adjoints(Graph("out", gate, (Capture(F32, 1),)))
    out, lse, sink = (torch.randn(shape, requires_grad=True) for shape in ((5, 4), (5, 1), (4,)))
    y = out * torch.sigmoid(lse - sink)
    grads = torch.autograd.grad(y.sum(), (out, lse, sink))
    env = {Op.OUT: out.detach(), Op.LSE: lse.detach(), Op.D: torch.arange(4)[None]}
    by_out, by_lse, by_sink = program((found.out, found.lse, found.loads[0][1]))(env, (sink.detach(),))
    torch.testing.assert_close(by_out.expand(5, 4), grads[0])
    torch.testing.assert_close(by_lse.sum(1, keepdim=True), grads[1])
    torch.testing.assert_close(by_sink.sum(0), grads[2])


def test_masks_have_no_derivative():
    with pytest.raises(ValueError, match="mask graph has no derivative"):
        adjoints(Graph("mask", _f(Op.LE, KV, Q, dtype=BOOL)))


def test_deep_graphs_do_not_recurse():
    total = S
    for _ in range(3000):
        total = _f(Op.ADD, total, _f(Op.MUL, S, T))
    found = adjoints(Graph("score", total, (Capture(F64, 1),)))
    assert program((found.score,))({Op.Q: torch.arange(1)}, (torch.tensor([2.0], dtype=torch.float64),))[0].item() == 6001


# Step functions have torch gradients only at some ops (floor_divide has none), and int casts none, so both sides agree on these.
SMOOTH = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MIN, Op.MAX, Op.WHERE, Op.NEG, Op.ABS, Op.EXP, Op.EXPM1, Op.LOG1P, Op.SQRT,
                    Op.TANH, Op.SIGMOID, Op.ERF,
                    Op.SIN, Op.COS, Op.ATAN, Op.LT, Op.LE, Op.AND, Op.NOT, Op.CAST, Op.LOAD, Op.POW, Op.LOG,
                    Op.RECIPROCAL, Op.RSQRT, Op.ATAN2, Op.FMOD, Op.MOD, Op.EXP2, Op.LOG2, Op.LOG10, Op.TAN, Op.FLOOR})


def _leaves(case):
    """The case with score and float captures as autograd leaves, and the gradient of the sum of finite results."""
    score = case.env[Op.SCORE].clone().requires_grad_()
    tensors = [t.clone().requires_grad_() if t.is_floating_point() else t for t in case.bound.tensors]
    bound = BoundGraph(case.bound.graph, tuple(tensors), case.bound.literals, ORIGIN)
    return bound, {**case.env, Op.SCORE: score}, [score, *(t for t in tensors if t.is_floating_point())]


def _by_adjoints(case):
    """The same gradients from `adjoints`, scattered back into the captures by autograd of the lookups alone."""
    found = adjoints(case.bound.graph)
    bound, env, leaves = _leaves(case)
    detached = tuple(t.detach() for t in bound.tensors)
    score_adjoint, *load_adjoints = program((found.score, *(a for _, a in found.loads)))(case.env, detached, bound.literals)
    shape = torch.broadcast_shapes(evaluate(case.bound, case.env).shape, case.env[Op.SCORE].shape)
    total = (env[Op.SCORE] * score_adjoint).expand(shape).sum()
    for (load, _), adjoint in zip(found.loads, load_adjoints):
        value = program((load,))(case.env, bound.tensors, bound.literals)[0]
        total = total + (value * adjoint).expand(shape).sum()
    return torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True), shape


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_random_graphs_against_autograd(data):
    case = data.draw(cases("score", ops=SMOOTH, dtypes=(F64, BOOL, I64), score=F64, specials=False, in_range=True,
                           float_to_int=False))
    bound, env, leaves = _leaves(case)
    ours, shape = _by_adjoints(case)
    value = evaluate(bound, env).expand(shape)
    if not value.requires_grad:
        assert all(not g.any() for g in ours)
        return
    if value.isnan().any():     # torch.minimum passes a NaN's gradient on and torch.clamp stops it: which is meant is not drawn
        return
    theirs = torch.autograd.grad(value.sum(), leaves, allow_unused=True, materialize_grads=True)
    for a, b in zip(ours, theirs):
        # Where torch has NaN or inf (it multiplies 0 by inf in branches not taken) there is nothing to compare with.
        fine = b.isfinite() & (b.abs() < 1e100)
        torch.testing.assert_close(a[fine], b[fine], rtol=1e-9, atol=1e-9)


def test_gradcheck():
    """torch's numerical check, with these adjoints as the backward pass of a graph that uses most smooth ops."""
    root = S
    for op in (Op.TANH, Op.EXP, Op.LOG1P, Op.SQRT, Op.SIN, Op.ERF, Op.ATAN, Op.SIGMOID, Op.EXPM1, Op.COS):
        root = _f(op, _f(Op.ADD, root, _f(Op.MUL, T, T)))
    root = _f(Op.WHERE, _f(Op.LT, S, T, dtype=BOOL), _f(Op.DIV, root, T), _f(Op.POW, _f(Op.ABS, S), T))
    graph = verify(Graph("score", root, (Capture(F64, 1),)))
    found = adjoints(graph)
    index = torch.arange(6)

    class Mod(torch.autograd.Function):
        @staticmethod
        def forward(ctx, score, table):
            ctx.save_for_backward(score, table)
            return program((root,))({Op.SCORE: score, Op.Q: index}, (table,))[0]

        @staticmethod
        def backward(ctx, grad):
            score, table = ctx.saved_tensors
            by_score, by_table = program((found.score, found.loads[0][1]))({Op.SCORE: score, Op.Q: index}, (table,))
            return grad * by_score, torch.zeros_like(table).index_add_(0, index, grad * by_table)

    generator = torch.Generator().manual_seed(3)
    score = torch.randn(6, dtype=torch.float64, generator=generator).requires_grad_()
    table = (torch.rand(6, dtype=torch.float64, generator=generator) + 0.3).requires_grad_()
    assert torch.autograd.gradcheck(Mod.apply, (score, table))


@given(cases("score", ops=ALL_OPS, in_range=True))
@settings(max_examples=150, deadline=None)
def test_adjoints_of_any_graph_are_legal(case):
    graph = case.bound.graph
    found = adjoints(graph)
    for n in (found.score, *(a for _, a in found.loads)):
        assert n.dtype in (F32, F64)
        verify(Graph("score", n, graph.captures, graph.slots))
        assert program((n,))(case.env, case.bound.tensors, case.bound.literals)[0].dtype is torch_dtype(n.dtype)
    assert all(load.op is Op.LOAD and load.dtype in FLOATS for load, _ in found.loads)
