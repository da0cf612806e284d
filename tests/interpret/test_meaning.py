"""Each op against Python's or numpy's own arithmetic, and the corners where they are not torch's."""
import math

import numpy as np
import pytest
import torch

from flexfa4.interpret import program
from flexfa4.interpret.meaning import EVALUATE
from flexfa4.ir import DType, Op, cast, const, node
from flexfa4.ir.graph import KV, SCORE, Q
from flexfa4.ir.ops import FLOAT_TESTS, FLOAT_UNARY, LEAVES
from flexfa4.errors import UnsupportedError
from flexfa4.tensors import dtype_of, torch_dtype

F32, F64, I64, BOOL = DType.F32, DType.F64, DType.I64, DType.BOOL
S64 = node(Op.SCORE, (), F64)
FLOATS = np.array([0.3, -0.7, 2.5, -3.5, 1.5, 0.0, 9.25, -100.0, np.inf, -np.inf, np.nan])
INTS = np.array([-9, -8, -3, -1, 0, 1, 2, 5, 7, 100])

UNARY = {
    Op.NEG: np.negative, Op.ABS: np.abs, Op.SIGN: lambda x: np.where(np.isnan(x), 0, np.sign(x)), Op.FLOOR: np.floor,
    Op.CEIL: np.ceil, Op.ROUND: np.round, Op.TRUNC: np.trunc, Op.EXP: np.exp, Op.EXP2: np.exp2, Op.EXPM1: np.expm1,
    Op.LOG: np.log, Op.LOG2: np.log2,
    Op.LOG10: np.log10, Op.LOG1P: np.log1p, Op.SQRT: np.sqrt, Op.RSQRT: lambda x: 1 / np.sqrt(x), Op.RECIPROCAL: lambda x: 1 / x,
    Op.TANH: np.tanh, Op.SIGMOID: lambda x: 1 / (1 + np.exp(-x)), Op.ERF: np.vectorize(math.erf), Op.SIN: np.sin, Op.COS: np.cos,
    Op.TAN: np.tan, Op.ATAN: np.arctan, Op.ISNAN: np.isnan, Op.ISINF: np.isinf,
}
FLOAT_BINARY = {
    Op.ADD: np.add, Op.SUB: np.subtract, Op.MUL: np.multiply, Op.DIV: np.divide, Op.FLOORDIV: lambda a, b: np.floor(a / b),
    Op.TRUNCDIV: lambda a, b: np.trunc(a / b), Op.MOD: np.mod, Op.FMOD: np.fmod, Op.POW: np.power, Op.MIN: np.minimum,
    Op.MAX: np.maximum, Op.ATAN2: np.arctan2, Op.LT: np.less, Op.LE: np.less_equal, Op.EQ: np.equal, Op.NE: np.not_equal,
}
INT_BINARY = {
    Op.ADD: lambda a, b: a + b, Op.SUB: lambda a, b: a - b, Op.MUL: lambda a, b: a * b, Op.FLOORDIV: lambda a, b: a // b,
    Op.MOD: lambda a, b: a % b, Op.TRUNCDIV: lambda a, b: int(math.trunc(a / b)), Op.FMOD: lambda a, b: int(math.fmod(a, b)),
    Op.MIN: min, Op.MAX: max, Op.AND: lambda a, b: a & b, Op.OR: lambda a, b: a | b, Op.XOR: lambda a, b: a ^ b,
    Op.LT: lambda a, b: a < b, Op.LE: lambda a, b: a <= b, Op.EQ: lambda a, b: a == b, Op.NE: lambda a, b: a != b,
}
COMPARISONS = (Op.LT, Op.LE, Op.EQ, Op.NE)


def _run(root, tensors=(), literals=(), **env):
    return program((root,))({Op[k.upper()]: v for k, v in env.items()}, tensors, literals)[0]


def test_every_op_has_a_row():
    assert set(EVALUATE) == set(Op)


def test_the_references_cover_the_ops():
    covered = {*UNARY, *FLOAT_BINARY, *INT_BINARY, *LEAVES, Op.NOT, Op.SHL, Op.SHR, Op.WHERE, Op.CAST, Op.LOAD}
    assert covered == set(Op)


@pytest.mark.parametrize("op", UNARY, ids=repr)
def test_unary_on_floats(op):
    with np.errstate(all="ignore"):
        expected = UNARY[op](FLOATS)
    got = _run(node(op, (S64,), BOOL if op in FLOAT_TESTS else F64), score=torch.from_numpy(FLOATS))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("op", FLOAT_BINARY, ids=repr)
@pytest.mark.parametrize("form", ["tensors", "literal second", "literal first"])
def test_binary_on_floats(op, form):
    a, b = np.meshgrid(FLOATS, FLOATS)
    dtype = BOOL if op in COMPARISONS else F64
    slot = node(Op.SLOT, (), F64, 0)
    if form == "tensors":
        x = node(Op.LOAD, (Q, KV), F64, 0)
        env = {"q": torch.arange(11)[:, None], "kv": torch.arange(11)[None]}
        got = _run(node(op, (S64, x), dtype), (torch.from_numpy(b),), score=torch.from_numpy(a), **env).numpy()
    else:
        args = (S64, slot) if form == "literal second" else (slot, S64)
        got = np.stack([_run(node(op, args, dtype), (), (float(v),), score=torch.from_numpy(FLOATS)).numpy() for v in FLOATS])
        a, b = (a, b) if form == "literal second" else (b, a)
    with np.errstate(all="ignore"):
        expected = FLOAT_BINARY[op](a, b)
    if op is Op.FLOORDIV:
        # numpy's and torch's floor of a quotient differ from floor(a / b) where that overflows or rounds; only finite ones count.
        fine = np.isfinite(a) & np.isfinite(b)
        got, expected = got[fine], expected[fine]
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("op", INT_BINARY, ids=repr)
@pytest.mark.parametrize("static", [False, True])
def test_binary_on_ints(op, static):
    dtype = BOOL if op in COMPARISONS else I64
    values = torch.from_numpy(INTS)
    for b in INTS.tolist():
        if b == 0 and op in (Op.FLOORDIV, Op.MOD, Op.TRUNCDIV, Op.FMOD):
            continue
        root = node(op, (Q, const(b, I64) if static else KV), dtype)
        got = _run(root, q=values, kv=b).tolist()
        assert got == [INT_BINARY[op](a, b) for a in INTS.tolist()], b


def test_integer_division_by_zero_does_not_crash():
    quotient = node(Op.FLOORDIV, (Q, KV), I64)
    safe = node(Op.WHERE, (node(Op.EQ, (KV, const(0, I64)), BOOL), const(-1, I64), quotient), I64)
    assert _run(safe, q=torch.tensor([7]), kv=torch.tensor([0, 2])).tolist() == [-1, 3]
    by_literal = node(Op.MOD, (Q, node(Op.SLOT, (), I64, 0)), I64)
    assert _run(by_literal, (), (0,), q=torch.tensor([7])).dtype is torch.int64
    assert _run(by_literal, (), (4,), q=torch.tensor([7])).tolist() == [3]


@pytest.mark.parametrize("dtype", [DType.I8, DType.I16, DType.I32, I64])
@pytest.mark.parametrize("op, expected", [(Op.FLOORDIV, None), (Op.TRUNCDIV, None), (Op.MOD, 0), (Op.FMOD, 0)])
def test_the_least_number_by_minus_one_does_not_stop_the_process(op, dtype, expected):
    """A quotient that wraps, as negation does."""
    least = torch.iinfo(torch_dtype(dtype)).min
    values = torch.tensor([least, 6])
    quotients = [least, -6] if expected is None else [0, 0]
    by_tensor = node(op, (cast(Q, dtype), cast(KV, dtype)), dtype)
    assert _run(by_tensor, q=values, kv=torch.tensor([-1])).tolist() == quotients
    by_literal = node(op, (cast(Q, dtype), node(Op.SLOT, (), dtype, 0)), dtype)
    assert _run(by_literal, (), (-1,), q=values).tolist() == quotients
    by_constant = node(op, (cast(Q, dtype), const(-1, dtype)), dtype)
    assert _run(by_constant, q=values).tolist() == quotients


def test_small_integers_wrap():
    narrow = cast(Q, DType.I8)
    assert _run(node(Op.ADD, (narrow, narrow), DType.I8), q=torch.tensor([100, -100])).tolist() == [-56, 56]
    unsigned = cast(Q, DType.U8)
    assert _run(node(Op.SUB, (unsigned, const(1, DType.U8)), DType.U8), q=torch.tensor([0])).tolist() == [255]
    assert _run(node(Op.NEG, (unsigned,), DType.U8), q=torch.tensor([1])).tolist() == [255]


@pytest.mark.parametrize("value, dtype, expected", [
    (-2.7, I64, -2), (2.7, DType.I32, 2), (0.1, BOOL, True), (float("nan"), BOOL, True), (-0.0, BOOL, False),
    (2049.0, DType.F16, 2048.0),
])
def test_casts(value, dtype, expected):
    assert _run(cast(SCORE, dtype), score=torch.tensor([value])).tolist() == [expected]


def test_a_literal_is_rounded_by_its_casts():
    slot = node(Op.SLOT, (), F64, 0)
    assert _run(cast(cast(slot, F32), F64), (), (0.1,)).item() == float(np.float32(0.1))
    assert _run(cast(cast(slot, DType.BF16), F64), (), (0.1,)).item() == float(torch.tensor(0.1).bfloat16())
    assert _run(cast(cast(slot, F32), F64), (), (1e300,)).item() == math.inf


def test_bits():
    assert _run(node(Op.NOT, (Q,), I64), q=torch.tensor([5])).tolist() == [~5]
    assert _run(node(Op.NOT, (node(Op.LT, (Q, KV), BOOL),), BOOL), q=torch.tensor([1, 2]), kv=2).tolist() == [False, True]
    assert _run(node(Op.SHR, (Q, const(1, I64)), I64), q=torch.tensor([-5])).tolist() == [-3]
    assert _run(node(Op.SHL, (Q, KV), I64), q=torch.tensor([3]), kv=4).tolist() == [48]


def test_half_functions_round_once():
    x = torch.linspace(-3, 3, 101).half()
    root = node(Op.EXP, (node(Op.LOAD, (Q,), DType.F16, 0),), DType.F16)
    assert torch.equal(_run(root, (x,), q=torch.arange(101)), x.float().exp().half())


def test_dtypes_go_both_ways():
    for dtype in DType:
        assert dtype_of(torch_dtype(dtype)) is dtype
    with pytest.raises(UnsupportedError, match="complex64"):
        dtype_of(torch.complex64)
    assert FLOAT_UNARY <= set(UNARY)
