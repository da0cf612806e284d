"""The last rewrites before emission: what they change, what they leave alone, and that comparisons come out the same."""
import pytest
import torch
from hypothesis import given, settings

from flexfa4.emit.lower import lower
from flexfa4.interpret import evaluate, program
from flexfa4.ir import Capture, DType, Graph, Op, cast, const, node
from flexfa4.ir.bound import BoundGraph, Origin
from flexfa4.ir.graph import KV, SCORE, H, Q
from flexfa4.ir.verify import verify
from flexfa4.plan.ranges import WIDE, Assumptions
from tests.random_graphs import Options, cases

F32, F64, I64, BOOL = DType.F32, DType.F64, DType.I64, DType.BOOL
NARROW = Assumptions()
LOW, HIGH = -(2**31), 2**31 - 1
PER_HEAD = node(Op.LOAD, (H,), F32, 0)
BIG = node(Op.MUL, (node(Op.LOAD, (H,), I64, 0), const(1 << 20, I64)), I64)      # once a tile, does not fit 32 bits
PER_ELEMENT = node(Op.LOAD, (node(Op.SUB, (Q, KV), I64),), I64, 0)


def one(n, precise=False, assume=NARROW):
    return lower((n,), precise, assume)[0]


def saturated(n):
    return node(Op.MIN, (node(Op.MAX, (n, const(LOW, I64)), I64), const(HIGH, I64)), I64)


def test_a_division_by_what_is_computed_less_often_is_a_product_with_the_reciprocal():
    n = node(Op.DIV, (SCORE, PER_HEAD), F32)
    assert one(n) is node(Op.MUL, (SCORE, node(Op.RECIPROCAL, (PER_HEAD,), F32)), F32)
    assert one(n, precise=True) is n
    by_column = node(Op.DIV, (SCORE, cast(KV, F32)), F32)
    assert one(by_column).op is Op.MUL


def test_other_divisions_stay():
    by_element = node(Op.DIV, (PER_HEAD, SCORE), F32)
    half = node(Op.DIV, (cast(SCORE, DType.F16), cast(PER_HEAD, DType.F16)), DType.F16)
    floored = node(Op.FLOORDIV, (SCORE, PER_HEAD), F32)
    assert [one(n) for n in (by_element, half, floored)] == [by_element, half, floored]


@pytest.mark.parametrize("op", [Op.LT, Op.LE, Op.EQ, Op.NE])
def test_the_wide_side_of_a_comparison_is_saturated(op):
    assert one(node(op, (KV, BIG), BOOL)) is node(op, (KV, saturated(BIG)), BOOL)
    assert one(node(op, (BIG, KV), BOOL)) is node(op, (saturated(BIG), KV), BOOL)


def test_comparisons_that_are_narrow_already_or_wide_in_every_element_stay():
    narrow = node(Op.LE, (KV, Q), BOOL)
    element = node(Op.LE, (KV, PER_ELEMENT), BOOL)
    both = node(Op.LE, (BIG, node(Op.ADD, (BIG, KV), I64)), BOOL)
    # 2^31 - 1 is a value that the other side may have: saturating could make two different numbers equal.
    edge = node(Op.EQ, (const(HIGH, I64), BIG), BOOL)
    floats = node(Op.LE, (SCORE, PER_HEAD), BOOL)
    assert [one(n) for n in (narrow, element, both, edge, floats)] == [narrow, element, both, edge, floats]
    # What does not fit under one assumption may fit under another.
    bound = node(Op.SLOT, (), I64, 0)
    assert one(node(Op.LT, (KV, bound), BOOL)) is node(Op.LT, (KV, bound), BOOL)
    assert one(node(Op.LT, (Q, bound), BOOL), assume=Assumptions(slot_bits=63)) is node(Op.LT, (Q, saturated(bound)), BOOL)


@pytest.mark.parametrize("op", [Op.LT, Op.LE, Op.EQ, Op.NE])
def test_saturated_comparisons_come_out_the_same_at_the_edges(op):
    table = torch.tensor([0, 1, 5, -1, 1 << 11, -(1 << 11), (1 << 11) - 1, 1 << 40])
    for sides in ((KV, BIG), (BIG, KV)):
        graph = Graph("mask", node(op, sides, BOOL), (Capture(I64, 1),))
        changed = Graph("mask", one(graph.root), graph.captures)
        assert changed.root is not graph.root
        env = {Op.H: torch.arange(8)[:, None], Op.KV: torch.tensor([0, 1, 2, (1 << 20), (1 << 28) - 1])}
        before, after = (evaluate(BoundGraph(g, (table,), (), Origin("m", "m.py", 1)), env) for g in (graph, changed))
        assert torch.equal(before, after)


@settings(max_examples=150, deadline=None)
@given(cases("mask", Options(static_operands=True, float_to_int=False, in_range=True)))
def test_random_masks_come_out_the_same(case):
    root = lower((case.bound.graph.root,), True, WIDE)[0]
    verify(Graph("mask", root, case.bound.graph.captures, case.bound.graph.slots))
    after = program((root,))(case.env, case.bound.tensors, case.bound.literals)[0]
    assert torch.equal(after, evaluate(case.bound, case.env))


def test_several_roots_are_lowered_together():
    a, b = node(Op.DIV, (SCORE, PER_HEAD), F32), node(Op.LT, (KV, BIG), BOOL)
    assert lower((a, b), False, NARROW) == (one(a), one(b))
