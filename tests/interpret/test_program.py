"""Programs: laziness of shapes, lookups, literals, devices without data, and that names are reused only after the last use."""
import pytest
import torch
from hypothesis import given, settings
from tests.random_graphs import cases, same
from torch._subclasses import FakeTensorMode

from flexfa4.interpret import evaluate, program
from flexfa4.ir import DType, Op, cast, const, node
from flexfa4.ir.graph import KV, SCORE, B, H, Q
from flexfa4.tensors import torch_dtype

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL


@given(cases("score"))
@settings(max_examples=150, deadline=None)
def test_one_root_gives_what_all_roots_give(case):
    """With every node a root nothing may be dropped; so a name reused too early would show as a difference."""
    graph = case.bound.graph
    everything = program(graph.nodes)(case.env, case.bound.tensors, case.bound.literals)
    assert same(everything[-1], evaluate(case.bound, case.env))
    for n, value in zip(graph.nodes, everything):
        assert value.dtype is torch_dtype(n.dtype)


def _table(*index):
    return node(Op.LOAD, index, F32, 0)


def test_shapes_stay_lazy():
    env = {Op.B: 1, Op.H: 0, Op.Q: torch.arange(4)[:, None], Op.KV: torch.arange(6)[None], Op.SCORE: torch.zeros(4, 6)}
    table = torch.randn(2, 3, 10, 12)
    by_row = _table(B, H, Q, const(0, I64))
    assert program((by_row,))(env, (table,))[0].shape == (4, 1)
    assert program((_table(B, H, const(0, I64), KV),))(env, (table,))[0].shape == (1, 6)
    assert program((_table(B, H, const(3, I64), const(0, I64)),))(env, (table,))[0].shape == ()
    full = program((_table(B, H, Q, KV),))(env, (table,))[0]
    assert torch.equal(full, table[1, 0, :4, :6])
    batched = {**env, Op.B: torch.arange(2)[:, None, None, None], Op.H: torch.arange(3)[:, None, None]}
    assert torch.equal(program((_table(B, H, Q, KV),))(batched, (table,))[0], table[:, :, :4, :6])


def test_lookups_wrap_once_and_never_crash():
    env = {Op.Q: torch.tensor([-6, -5, -1, 0, 4, 5, 10**12])}
    got = program((_table(Q),))(env, (torch.arange(5.0),))[0]
    assert got[1:5].tolist() == [0, 4, 0, 4]
    assert program((_table(B),))({Op.B: -2}, (torch.arange(5.0),))[0].item() == 3
    assert program((_table(B),))({Op.B: 99}, (torch.arange(5.0),))[0].shape == ()
    assert program((_table(Q, KV),))({**env, Op.KV: 0}, (torch.zeros(5, 0),))[0].shape == (7,)


def test_strided_and_zero_dim_captures():
    base = torch.randn(6, 4)
    env = {Op.Q: torch.arange(4)[:, None], Op.KV: torch.arange(3)[None]}
    assert torch.equal(program((_table(Q, KV),))(env, (base.t()[:, ::2],))[0], base.t()[:, ::2])
    scaled = node(Op.MUL, (SCORE, node(Op.LOAD, (), F32, 0)), F32)
    assert program((scaled,))({Op.SCORE: torch.ones(2)}, (torch.tensor(3.0),))[0].tolist() == [3, 3]


def test_literals_and_constants():
    slot = node(Op.SLOT, (), F32, 0)
    root = node(Op.WHERE, (node(Op.LT, (Q, const(2, I64)), BOOL), slot, const(float("-inf"), F32)), F32)
    assert program((root,))({Op.Q: torch.arange(3)}, (), (1.5,))[0].tolist() == [1.5, 1.5, float("-inf")]
    for value, dtype in ((True, BOOL), (3, DType.U8), (0.5, DType.BF16)):
        got = program((const(value, dtype),))({})[0]
        assert got.dtype is torch_dtype(dtype) and got.item() == value
    negative = node(Op.SUB, (const(-3, I64), const(-4, I64)), I64)
    assert program((negative,))({})[0].item() == 1


def test_fake_tensors_pass_through():
    root = node(Op.ADD, (SCORE, node(Op.MUL, (_table(B, Q), cast(node(Op.SUB, (Q, KV), I64), F32)), F32)), F32)
    with FakeTensorMode():
        env = {Op.B: 0, Op.Q: torch.arange(4)[:, None], Op.KV: torch.arange(6)[None], Op.SCORE: torch.empty(2, 4, 6)}
        got = program((root,))(env, (torch.empty(3, 9),))[0]
    assert got.shape == (2, 4, 6) and got.dtype is torch.float32


def test_zero_dim_indices_are_not_read_back():
    """`t[i]` with a 0-d tensor i would: under FakeTensorMode that is an error."""
    with FakeTensorMode():
        got = program((_table(Q),))({Op.Q: torch.tensor(2)}, (torch.empty(5),))[0]
    assert got.shape == ()


def test_autograd_records():
    table = torch.randn(5, requires_grad=True)
    program((_table(Q),))({Op.Q: torch.tensor([1, 1, 3])}, (table,))[0].sum().backward()
    assert table.grad.tolist() == [0, 2, 0, 1, 0]


def test_deep_graphs_run():
    total = SCORE
    for _ in range(3000):
        total = node(Op.ADD, (total, SCORE), F32)
    assert program((total,))({Op.SCORE: torch.ones(1)})[0].item() == 3001


def test_programs_are_cached():
    assert program((SCORE,)) is program((SCORE,))


def test_float64_scores():
    score = node(Op.SCORE, (), DType.F64)
    root = node(Op.MUL, (score, const(0.1, DType.F64)), DType.F64)
    got = program((root,))({Op.SCORE: torch.ones(1, dtype=torch.float64)})[0]
    assert got.item() == pytest.approx(0.1, abs=1e-17)
