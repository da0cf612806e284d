"""Values that are the same along columns and diagonals: random graphs by evaluation, and well-known mods."""
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4 import mods
from flexfa4.facts.lines import Line, lines
from flexfa4.interpret import program
from flexfa4.ir import DType, Node, Op, node, topological
from flexfa4.ir.graph import KV, Q
from flexfa4.trace import bind
from tests.random_graphs import cases, same

# How far (q, kv) may move without a change of the value.
MOVES = {Line.TILE: (3, -2), Line.COLUMN: (5, 0), Line.DIAGONAL: (4, 4)}


def of_distances(root: Node) -> Node:
    """The graph with q - kv for q and kv - q for kv; random graphs seldom have a distance."""
    made = {}
    for n in topological(root):
        position = {Op.Q: (Q, KV), Op.KV: (KV, Q)}.get(n.op)
        made[n] = node(Op.SUB, position, n.dtype) if position else node(n.op, tuple(made[a] for a in n.args), n.dtype, n.attr)
    return made[root]


def test_values_stay_the_same_along_their_line():
    found = []

    dtypes = DType.I64, DType.I32, DType.F32, DType.BOOL

    @given(st.booleans(), cases("score", dtypes=dtypes, in_range=True, static_operands=True, max_ops=14))
    @settings(max_examples=200, deadline=None)
    def check(by_distance, case):
        root = case.bound.graph.root
        for n, line in lines(of_distances(root) if by_distance else root).items():
            found.append(line)
            dq, dkv = MOVES[line]
            moved = {**case.env, Op.Q: case.env[Op.Q] + dq, Op.KV: case.env[Op.KV] + dkv}
            here, there = (program((n,))(env, case.bound.tensors, case.bound.literals)[0] for env in (case.env, moved))
            assert same(*torch.broadcast_tensors(here, there)), (n, line)
    check()
    assert set(found) == set(Line)


def line_of_addition(mod):
    """Of what a score mod adds to the score."""
    root = bind(mod, "score").graph.root
    found = lines(root)
    assert root not in found
    return [found.get(a) for a in root.args]


def test_lines_of_known_mods():
    table, ramp = torch.zeros(4, 65), torch.zeros(400)
    assert line_of_addition(mods.learned_relative_bias(table)) == [None, Line.DIAGONAL]
    assert line_of_addition(mods.t5_bias(torch.zeros(32, 4))) == [None, Line.DIAGONAL]
    assert line_of_addition(lambda s, b, h, q, kv: s + ramp[kv]) == [None, Line.COLUMN]
    assert line_of_addition(lambda s, b, h, q, kv: s + ramp[h]) == [None, Line.TILE]
    assert line_of_addition(lambda s, b, h, q, kv: s + ramp[q]) == [None, None]
    assert line_of_addition(lambda s, b, h, q, kv: s + ramp[q + kv]) == [None, None]
    assert line_of_addition(mods.relative_bias_2d(torch.zeros(4, 19, 19), 10)) == [None, None]
