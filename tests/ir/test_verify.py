"""Illegal graphs are refused, and the message names the node."""
import pytest

from flexfa4.ir import Capture, DType, Graph, Op, cast, const, node
from flexfa4.ir.graph import D, KV, SCORE, Q
from flexfa4.ir.verify import RULES, IllegalGraphError, verify

F32, I64, I32, BOOL = DType.F32, DType.I64, DType.I32, DType.BOOL


def _score(n, captures=(), slots=()):
    return Graph("score", cast(n, F32), captures, slots)


ILLEGAL = {
    "mixed operands": (_score(node(Op.ADD, (SCORE, Q), F32)), r"add\(score:f32, q:i64\):f32: .*one type"),
    "wrong result": (_score(node(Op.ADD, (Q, KV), I32)), "add.*one type"),
    "too few operands": (_score(node(Op.ADD, (SCORE,), F32)), "takes 2 operands, has 1"),
    "true division of ints": (_score(node(Op.DIV, (Q, KV), I64)), "div.*not one of"),
    "bits of a float": (_score(node(Op.AND, (SCORE, SCORE), F32)), "and.*not one of"),
    "comparison with an int result": (_score(node(Op.LT, (Q, KV), I64)), "lt.*expected bool"),
    "where on an int": (_score(node(Op.WHERE, (Q, SCORE, SCORE), F32)), "where.*expected bool"),
    "narrow index leaf": (_score(node(Op.Q, (), I32)), "q:i32"),
    "half score": (_score(node(Op.SCORE, (), DType.F16)), "score:f16"),
    "attribute where none belongs": (_score(node(Op.NEG, (SCORE,), F32, 3)), "has an attribute: 3"),
    "tie of ints": (_score(node(Op.MIN, (Q, KV), I64, 0)), "has no operand 0 for ties"),
    "tie of a third operand": (_score(node(Op.MAX, (SCORE, SCORE), F32, 2)), "has no operand 2 for ties"),
    "float constant of an int type": (_score(node(Op.CONST, (), I64, 1.0)), "must be a int"),
    "constant out of range": (_score(const(300, DType.U8)), r"not in \[0, 255\]"),
    "slot that is not there": (_score(node(Op.SLOT, (), F32, 1), slots=(F32,)), "there are 1 slots"),
    "slot of another type": (_score(node(Op.SLOT, (), F32, 0), slots=(I64,)), "the slot is i64"),
    "capture that is not there": (_score(node(Op.LOAD, (), F32, 0)), "there are 0 captures"),
    "capture of another type": (_score(node(Op.LOAD, (), F32, 0), (Capture(I64, 0),)), "the capture is i64"),
    "too few indices": (_score(node(Op.LOAD, (Q,), F32, 0), (Capture(F32, 2),)), "2 dimensions, 1 indices"),
    "narrow index": (_score(node(Op.LOAD, (cast(Q, I32),), F32, 0), (Capture(F32, 1),)), "expected i64, have i32"),
    "division by zero": (_score(node(Op.FLOORDIV, (Q, const(0, I64)), I64)), "division by zero"),
    "shift past the width": (_score(node(Op.SHL, (Q, const(64, I64)), I64)), "shift by 64"),
    "negative integer power": (_score(node(Op.POW, (Q, const(-1, I64)), I64)), "integer power -1"),
    "leaf of another kind": (_score(D), "a score graph has no d"),
    "score in a mask": (Graph("mask", node(Op.LT, (SCORE, SCORE), BOOL)), "a mask graph has no score"),
    "mask of floats": (Graph("mask", const(1.0, F32)), "root of a mask graph may not be f32"),
    "boolean score": (Graph("score", node(Op.LT, (SCORE, SCORE), BOOL)), "root of a score graph may not be bool"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_graph_is_refused(name):
    graph, message = ILLEGAL[name]
    with pytest.raises(IllegalGraphError, match=message):
        verify(graph)


def test_legal_graph_is_returned():
    graph = _score(node(Op.ADD, (SCORE, node(Op.LOAD, (Q, KV), F32, 0)), F32), (Capture(F32, 2),))
    assert verify(graph) is graph


def test_every_op_has_a_typing_rule():
    assert set(RULES) == set(Op)


def test_unknown_kind():
    with pytest.raises(ValueError, match="kind='scores'"):
        Graph("scores", SCORE)
