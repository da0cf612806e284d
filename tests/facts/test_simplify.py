"""Simplification keeps every bit (by evaluation of random graphs), and does what it is there for."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_graphs import cases, same

from flexfa4.facts.simplify import RULES, simplifier, simplify
from flexfa4.interpret import evaluate_checked, program
from flexfa4.ir import DType, Graph, Op, cast, const, node, topological
from flexfa4.ir.bound import BoundGraph
from flexfa4.ir.graph import KV, SCORE, B, Q
from flexfa4.ir.text import show
from flexfa4.ir.verify import verify

F32, I64, I32, BOOL = DType.F32, DType.I64, DType.I32, DType.BOOL
FEW = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.AND, Op.OR, Op.XOR, Op.NOT, Op.LT, Op.LE, Op.EQ, Op.NE, Op.WHERE, Op.CAST,
                 Op.MIN,
                 Op.MAX, Op.POW, Op.SHL, Op.DIV, Op.FLOORDIV, Op.MOD})


def _keeps_every_bit(case):
    simple = verify(simplify.__wrapped__(case.bound.graph))
    bound = case.bound
    before, bad = evaluate_checked(bound, case.env)
    after = program((simple.root,))(case.env, bound.tensors, bound.literals)[0]
    if bad is not None and bad.any():
        before, after, bad = torch.broadcast_tensors(before, after, bad)
        before, after = before[~bad], after[~bad]
    assert same(before, after), f"\n{show(bound.graph)}\n->\n{show(simple)}\n{before}\n{after}"
    twin = BoundGraph(simple, bound.tensors, bound.literals, bound.origin)
    worse = evaluate_checked(twin, case.env)[1]
    if worse is not None:
        assert bad is None and not worse.any() or bad is not None and not (worse & ~bad).any()


# Casts of floats to integers are left out where the value may not fit: their result depends on the code path taken.
@given(st.sampled_from(["score", "mask"]).flatmap(lambda kind: cases(kind, float_to_int=False)))
@settings(max_examples=300, deadline=None)
def test_random_graphs_keep_every_bit(case):
    _keeps_every_bit(case)


TYPES = [(BOOL,), (I64,), (DType.U8,), (F32,), (DType.F16, F32), (BOOL, I32, I64), tuple(DType)]


@pytest.mark.parametrize("dtypes", TYPES, ids=repr)
def test_dense_random_graphs_keep_every_bit(dtypes):
    """Few ops on few types: rules meet often."""
    @given(cases("mask", ops=FEW, dtypes=dtypes, max_ops=10, float_to_int=False))
    @settings(max_examples=120, deadline=None)
    def check(case):
        _keeps_every_bit(case)
    check()


def _int(op, *args):
    return node(op, args, I64)


def _bool(op, *args):
    return node(op, args, BOOL)


def _f(op, *args):
    return node(op, args, F32)


C = lambda value: const(value, I64)  # noqa: E731
CAUSAL, SAME = _bool(Op.LE, KV, Q), _bool(Op.EQ, B, Q)
TRUE, FALSE, ZERO, ONE = const(True, BOOL), const(False, BOOL), const(0.0, F32), const(1.0, F32)
WIDE = [cast(node(Op.LOAD, (i,), I32, 0), I64) for i in (Q, KV)]
EXPECTED = {
    "a - b + b": (_int(Op.ADD, _int(Op.SUB, Q, KV), KV), Q),
    "a + b - a": (_int(Op.SUB, _int(Op.ADD, Q, KV), Q), KV),
    "a - (a - b)": (_int(Op.SUB, Q, _int(Op.SUB, Q, KV)), KV),
    "a - a": (_int(Op.SUB, Q, Q), C(0)),
    "(a - 3) + 5": (_int(Op.ADD, _int(Op.SUB, Q, C(3)), C(5)), _int(Op.ADD, Q, C(2))),
    "0 - a": (_int(Op.SUB, C(0), Q), _int(Op.NEG, Q)),
    "a * 0": (_int(Op.MUL, Q, C(0)), C(0)),
    "(a * 3) * 2": (_int(Op.MUL, C(2), _int(Op.MUL, Q, C(3))), _int(Op.MUL, Q, C(6))),
    "a // 1 % 1": (_int(Op.MOD, _int(Op.FLOORDIV, Q, C(1)), C(1)), C(0)),
    "min of min": (_int(Op.MIN, _int(Op.MIN, Q, C(7)), C(4)), _int(Op.MIN, Q, C(4))),
    "constants": (_int(Op.FLOORDIV, _int(Op.MUL, C(-7), C(1)), C(2)), C(-4)),
    "wrapping constants": (_int(Op.ADD, C(2**63 - 1), C(1)), C(-(2**63))),
    "not not": (_bool(Op.NOT, _bool(Op.NOT, CAUSAL)), CAUSAL),
    "not le": (_bool(Op.NOT, CAUSAL), _bool(Op.LT, Q, KV)),
    "and true": (_bool(Op.AND, TRUE, CAUSAL), CAUSAL),
    "and false": (_bool(Op.AND, CAUSAL, FALSE), FALSE),
    "or itself": (_bool(Op.OR, CAUSAL, CAUSAL), CAUSAL),
    "or its negation": (_bool(Op.OR, CAUSAL, _bool(Op.NOT, CAUSAL)), TRUE),
    "and its negation through a flip": (_bool(Op.AND, SAME, _bool(Op.NOT, SAME)), FALSE),
    "absorption": (_bool(Op.AND, CAUSAL, _bool(Op.OR, SAME, CAUSAL)), CAUSAL),
    "where true": (_f(Op.WHERE, TRUE, SCORE, ZERO), SCORE),
    "where alike": (_f(Op.WHERE, CAUSAL, SCORE, SCORE), SCORE),
    "where of bools": (_bool(Op.WHERE, CAUSAL, TRUE, FALSE), CAUSAL),
    "where not": (_f(Op.WHERE, _bool(Op.NOT, SAME), SCORE, ZERO), _f(Op.WHERE, _bool(Op.NE, B, Q), SCORE, ZERO)),
    "nested where": (_f(Op.WHERE, CAUSAL, _f(Op.WHERE, CAUSAL, SCORE, ONE), ZERO), _f(Op.WHERE, CAUSAL, SCORE, ZERO)),
    "score * 1": (_f(Op.MUL, ONE, SCORE), SCORE),
    "score - 0": (_f(Op.SUB, SCORE, ZERO), SCORE),
    "score + 0 stays": (_f(Op.ADD, SCORE, ZERO), _f(Op.ADD, SCORE, ZERO)),
    "score * 0 stays": (_f(Op.MUL, SCORE, ZERO), _f(Op.MUL, SCORE, ZERO)),
    "not of a float comparison stays": (_bool(Op.NOT, _bool(Op.LT, SCORE, ZERO)), _bool(Op.NOT, _bool(Op.LT, SCORE, ZERO))),
    "score / 1 squared": (_f(Op.POW, _f(Op.DIV, SCORE, ONE), const(2.0, F32)), _f(Op.MUL, SCORE, SCORE)),
    "there and back": (cast(cast(_f(Op.ABS, SCORE), DType.F64), F32), _f(Op.ABS, SCORE)),
    "comparison of widened captures": (_bool(Op.EQ, *WIDE), _bool(Op.EQ, *(w.args[0] for w in WIDE))),
    "widened capture and a number": (_bool(Op.NE, WIDE[0], C(2**40)), TRUE),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_rule(name):
    before, after = EXPECTED[name]
    # The expectation goes through the simplifier for the canonical order of its operands alone: it has as many nodes after it.
    expected = simplifier()(after)
    assert simplifier()(before) is expected
    assert len(list(topological(expected))) == len(list(topological(after)))


def test_simplifying_twice_changes_nothing():
    @given(cases("score"))
    @settings(max_examples=100, deadline=None)
    def check(case):
        once = simplify(case.bound.graph)
        assert simplify.__wrapped__(once).root is once.root
    check()


def test_commuted_graphs_become_one():
    a, b = _f(Op.ADD, SCORE, cast(Q, F32)), _f(Op.ADD, cast(Q, F32), SCORE)
    assert a is not b and simplify(Graph("score", a)) == simplify(Graph("score", b))


def test_deep_graphs_do_not_recurse():
    total = SCORE
    for i in range(4000):
        total = _f(Op.ADD, total, cast(_int(Op.ADD, Q, C(i % 7)), F32))
    assert simplify(Graph("score", total)).root.dtype is F32


def test_every_op_can_be_folded_or_is_left():
    assert set(RULES) == set(Op)
