"""The text of graphs: a round trip to the identical object, the same in every process."""
import subprocess
import sys

import pytest
from hypothesis import given, settings
from tests.random_graphs import cases

from flexfa4.ir import Capture, DType, Graph, Op, const, node
from flexfa4.ir.graph import KV, SCORE, Q, B
from flexfa4.ir.text import parse, show


@given(cases("score"))
@settings(max_examples=150, deadline=None)
def test_parse_gives_the_identical_graph(case):
    graph = case.bound.graph
    again = parse.__wrapped__(show.__wrapped__(graph))
    assert again == graph and again.root is graph.root


def _example() -> Graph:
    index = node(Op.SUB, (Q, node(Op.SUB, (KV, const(-3, DType.I64)), DType.I64)), DType.I64)
    bias = node(Op.LOAD, (B, index), DType.BF16, 0)
    scaled = node(Op.MUL, (node(Op.CAST, (bias,), DType.F32), node(Op.SLOT, (), DType.F32, 0)), DType.F32)
    total = node(Op.ADD, (SCORE, scaled), DType.F32)
    root = node(Op.WHERE, (node(Op.LE, (KV, Q), DType.BOOL), total, const(float("-inf"), DType.F32)), DType.F32)
    return Graph("score", root, (Capture(DType.BF16, 2),), (DType.F32,))


TEXT = """score(captures bf16[2], slots f32)
%0 = kv : i64
%1 = q : i64
%2 = le(%0, %1) : bool
%3 = score : f32
%4 = b : i64
%5 = const[-3] : i64
%6 = sub(%0, %5) : i64
%7 = sub(%1, %6) : i64
%8 = load[0](%4, %7) : bf16
%9 = cast(%8) : f32
%10 = slot[0] : f32
%11 = mul(%9, %10) : f32
%12 = add(%3, %11) : f32
%13 = const[-inf] : f32
%14 = where(%2, %12, %13) : f32
return %14"""


def test_text_of_an_example():
    assert show(_example()) == TEXT


def test_text_is_the_same_in_another_process():
    code = f"from flexfa4.ir.text import parse, show; print(show(parse({TEXT!r})))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7"})
    assert out.stdout.strip() == TEXT


def test_numbers_that_compare_equal_stay_apart():
    for value in (0.0, -0.0, float("nan"), float("inf"), 1e-45, 0.1):
        graph = Graph("score", const(value, DType.F32))
        assert parse.__wrapped__(show(graph)).root is graph.root
    assert const(0.0, DType.F32) is not const(-0.0, DType.F32)


def test_deep_graphs_do_not_recurse():
    total = SCORE
    for _ in range(5000):
        total = node(Op.ADD, (total, SCORE), DType.F32)
    graph = Graph("score", total)
    assert parse(show(graph)).root is total


@pytest.mark.parametrize("change, line", [
    (("score(", "score["), 1), (("%2 = le", "%2 = less"), 4), (("%2 = le", "%3 = le"), 4), ((": bf16\n", ": f8\n"), 10),
    (("(%4, %7)", "(%4, %70)"), 10), (("[-3]", "[three]"), 7),
])
def test_bad_text_names_its_line(change, line):
    with pytest.raises(ValueError, match=f"line {line}:"):
        parse(TEXT.replace(*change))


def test_text_without_return():
    with pytest.raises(ValueError, match="without a return"):
        parse(TEXT.rsplit("\n", 1)[0])
