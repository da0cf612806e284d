"""One small graph for every Op and operand category that it takes, for tests that compile them."""

from __future__ import annotations

from flexfa4.ir import Capture, DType, Graph, Op, cast, const, node
from flexfa4.ir.graph import B, D, H, KV, LSE, OUT, Q, SCORE
from flexfa4.ir.ops import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    FLOAT_BINARY,
    FLOAT_LEAVES,
    FLOAT_TESTS,
    FLOAT_UNARY,
    INDEX_LEAVES,
    NUMBER_UNARY,
    SHIFTS,
)

F32, I64, I32, BOOL = DType.F32, DType.I64, DType.I32, DType.BOOL
SIGNED = node(Op.SUB, (Q, KV), I64)
LIKELY = node(Op.LE, (KV, Q), BOOL)


def _scored(n) -> Graph:
    """A score graph whose value is `n`."""
    return Graph("score", node(Op.ADD, (SCORE, cast(n, F32)), F32))


def _integers(op: Op, dtype: DType) -> Graph:
    a, b = cast(SIGNED, dtype), cast(node(Op.ADD, (H, const(1, I64)), I64), dtype)
    return _scored(node(op, (a, b) if op not in NUMBER_UNARY | {Op.NOT} else (a,), dtype))


def _leaf(op: Op) -> Graph:
    by_op = {n.op: n for n in (B, H, Q, KV, SCORE, OUT, LSE, D)}
    if op in (Op.OUT, Op.LSE, Op.D):
        return Graph("out", node(Op.ADD, (OUT, cast(by_op[op], F32)), F32))
    return _scored(by_op[op])


def _load(dtype: DType, rank: int) -> Graph:
    index = (SIGNED, KV, H)[:rank]
    loaded = node(Op.LOAD, index, dtype, 0)
    return Graph("score", node(Op.ADD, (SCORE, cast(loaded, F32)), F32), (Capture(dtype, rank),))


def _slot(dtype: DType) -> Graph:
    return Graph("score", node(Op.ADD, (SCORE, cast(node(Op.SLOT, (), dtype, 0), F32)), F32), (), (dtype,))


def _in_order(ops) -> list[Op]:
    """Workers of one test run must collect the tests in the same order, which that of a set is not."""
    return sorted(ops, key=lambda op: op.value)


def samples() -> dict[str, Graph]:
    """Name -> graph; every member of Op occurs as the first word of a name."""
    found: dict[str, Graph] = {}
    slot = node(Op.SLOT, (), F32, 0)
    for op in _in_order(INDEX_LEAVES | FLOAT_LEAVES):
        found[f"{op!r}"] = _leaf(op)
    for op in _in_order(FLOAT_UNARY | {Op.NEG, Op.ABS, Op.SIGN}):
        found[f"{op!r} f32"] = Graph("score", node(op, (SCORE,), F32))
    for op in _in_order(FLOAT_BINARY | ARITHMETIC):
        found[f"{op!r} f32"] = Graph("score", node(op, (SCORE, slot), F32), (), (F32,))
    for op in _in_order(
        {Op.ADD, Op.SUB, Op.MUL, Op.FLOORDIV, Op.MOD, Op.TRUNCDIV, Op.FMOD, Op.MIN, Op.MAX, Op.NOT} | BITWISE | NUMBER_UNARY
    ):
        for dtype in (I32, I64, DType.I8, DType.U8):
            found[f"{op!r} {dtype!r}"] = _integers(op, dtype)
    found["pow i64"] = _scored(node(Op.POW, (KV, const(3, I64)), I64))
    found["pow i32 run-time exponent"] = _scored(
        node(Op.POW, (cast(KV, I32), cast(node(Op.MOD, (H, const(7, I64)), I64), I32)), I32)
    )
    for op in _in_order(SHIFTS):
        found[f"{op!r} static"] = _scored(node(op, (SIGNED, const(3, I64)), I64))
        found[f"{op!r} run-time"] = _scored(node(op, (cast(SIGNED, I32), cast(H, I32)), I32))
    for op in _in_order(COMPARISONS):
        found[f"{op!r} i64"] = Graph("mask", node(op, (SIGNED, H), BOOL))
        found[f"{op!r} f32"] = Graph("mask", node(op, (cast(Q, F32), cast(KV, F32)), BOOL))
    for op in _in_order(BITWISE):
        found[f"{op!r} bool"] = Graph("mask", node(op, (LIKELY, node(Op.LT, (KV, H), BOOL)), BOOL))
    found["not bool"] = Graph("mask", node(Op.NOT, (LIKELY,), BOOL))
    found["where f32"] = Graph("score", node(Op.WHERE, (LIKELY, SCORE, const(float("-inf"), F32)), F32))
    found["where i64"] = _scored(node(Op.WHERE, (LIKELY, Q, SIGNED), I64))
    found["where bool"] = Graph("mask", node(Op.WHERE, (LIKELY, node(Op.LT, (KV, H), BOOL), node(Op.LT, (B, H), BOOL)), BOOL))
    for dtype in DType:
        found[f"cast i64 to {dtype!r}"] = _scored(cast(SIGNED, dtype))
        found[f"cast f32 to {dtype!r}"] = _scored(cast(SCORE, dtype))
        found[f"load {dtype!r}"] = _load(dtype, 2)
        found[f"slot {dtype!r}"] = _slot(dtype)
    for rank in (0, 1, 3):
        found[f"load rank {rank}"] = _load(F32, rank)
    found["const f32"] = Graph("score", node(Op.MUL, (SCORE, const(2.0, F32)), F32))
    for op in _in_order(FLOAT_TESTS):
        found[f"{op!r} f32"] = _scored(cast(node(op, (SCORE,), BOOL), F32))
    found["mul bf16"] = _scored(node(Op.MUL, (cast(SCORE, DType.BF16), cast(Q, DType.BF16)), DType.BF16))
    return found
