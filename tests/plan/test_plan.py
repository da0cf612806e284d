"""Budgets that refuse, barrier tables, and a compile key without lengths and literal values."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4.ir import DType, Graph, Op, const, node
from flexfa4.ir.graph import H, KV, Q, SCORE
from flexfa4.ir.text import show
from flexfa4.plan import (
    WIDE,
    Assumptions,
    BudgetError,
    Heads,
    Level,
    Plan,
    Reach,
    Role,
    RowLayout,
    Signal,
    Sm90Forward,
    Sm100Forward,
    hoist,
    integer_ranges,
    plan_forward,
    row_layout,
    show_table,
    unpaired,
    wide_layout,
)
from flexfa4.plan.budget import Buffer, check_smem
from flexfa4.plan.roofline import TENSOR_CORE, clocks, shared_memory

I64 = DType.I64


def window(slots: int = 1) -> Graph:
    distance = node(Op.SUB, (Q, KV), I64)
    return Graph("mask", node(Op.LT, (distance, node(Op.SLOT, (), I64, 0)), DType.BOOL), (), (I64,) * slots)


def by_head(kind: str) -> Graph:
    equal = node(Op.EQ, (H, const(3, I64)), DType.BOOL)
    return Graph(kind, equal if kind == "mask" else node(Op.WHERE, (equal, SCORE, node(Op.NEG, (SCORE,), DType.F32)), DType.F32))


def capped(score) -> Graph:
    return Graph("score", node(Op.TANH, (score,), DType.F32), (), ())


def test_scores_with_special_functions_take_three_warpgroups_on_sm90():
    def warpgroups(graph, dim=128):
        tiles = plan_forward("sm90", DType.BF16, dim, dim, (graph,)).tiles
        return tiles.consumers, tiles.kv_tile, tiles.kv_stages

    untouched = Graph("score", SCORE, (), ())
    row = node(Op.TANH, (node(Op.CAST, (Q,), DType.F32),), DType.F32)
    assert warpgroups(capped(SCORE)) == (3, 80, 3)
    assert warpgroups(Graph("score", node(Op.MUL, (SCORE, row), DType.F32), (), ())) == warpgroups(untouched) == (2, 128, 2)
    assert warpgroups(capped(SCORE), 64) == warpgroups(untouched, 64) == (3, 128, 2)
    assert warpgroups(capped(SCORE), 256) == warpgroups(untouched, 256) == (2, 80, 2)


@pytest.mark.parametrize("dims, heads, q_len, batch_heads, wide", [
    ((128, 128), Heads(), 16384, 32, (3, 80)), ((96, 96), Heads(), 8192, 32, (3, 96)), ((64, 128), Heads(), 8192, 32, (3, 80)),
    ((128, 128), Heads(), 2048, 64, None),           # 704 tiles of 192 rows are 5.3 rounds of 132, 1,024 of 128 are 7.8
    ((128, 128), Heads(), 4096, 128, (3, 80)), ((128, 128), Heads(), 2048, 16, None), ((128, 128), Heads(), 40, 64, None),
    ((64, 64), Heads(), 16384, 32, None), ((192, 128), Heads(), 16384, 32, None), ((256, 256), Heads(), 16384, 32, None),
    ((128, 128), Heads(special=True), 16384, 32, None), ((128, 128), Heads(masked=True), 16384, 0, (3, 80)),
    ((128, 128), Heads(masked=True), 4096, 0, (3, 80)), ((128, 128), Heads(masked=True), 1000, 0, None),
])  # fmt: skip
def test_wide_tiles_on_sm90(dims, heads, q_len, batch_heads, wide):
    layout = row_layout("sm90", *dims, heads, q_len)
    found = wide_layout(layout, "sm90", dims, heads, q_len, batch_heads)
    assert found.wide == (wide is not None) and replace(found, wide=False) == layout
    if wide:
        tiles = plan_forward("sm90", DType.BF16, *dims, layout=found).tiles
        assert (tiles.consumers, tiles.kv_tile) == wide and tiles.q_stages == 3
    assert not wide_layout(RowLayout(), "sm100", dims, heads, q_len, batch_heads).wide


def test_the_key_holds_neither_lengths_nor_literal_values():
    keys = {
        plan_forward("sm100", DType.BF16, 128, 128, (window(),), lengths=lengths, literals=literals).compile_key()
        for lengths in ((4096, 4096), (1 << 20, 77777))
        for literals in ((256,), (1024,), (-3,))
    }
    assert len(keys) == 1
    other = {
        plan_forward("sm100", dtype, d, 128, graphs).compile_key()
        for dtype in (DType.BF16, DType.F16)
        for d in (128, 64)
        for graphs in ((), (window(),))
    }
    assert len(other) == 8


def test_a_huge_literal_takes_the_wide_plan():
    assert plan_forward("sm90", DType.BF16, 64, 64, (window(),), literals=(1 << 40,)).assume == WIDE
    assert plan_forward("sm90", DType.BF16, 64, 64, (window(),), literals=(1 << 20,)).assume == Assumptions()


@pytest.mark.parametrize("head_dims", [(64, 64), (96, 96), (128, 128), (192, 128), (31, 17)])
def test_the_head_dims_of_the_paper_fit(head_dims):
    tiles = plan_forward("sm100", DType.BF16, *head_dims).tiles
    assert sum(b.total for b in tiles.smem) <= 227 * 1024
    assert max(r.end for r in tiles.tmem) <= 512
    assert sum(32 * warps * n for _, warps, n in tiles.register_table) <= 65536


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("special", [False, True])
def test_hopper_takes_all_head_dims_up_to_256(short, special):
    """And a row of the output fits where that of the queries was, whichever is wider; with one query tile it goes out of
    registers."""
    layout, graphs = RowLayout(short=short), (capped(SCORE),) if special else ()
    for head_dim, head_dim_v in product(range(8, 257, 8), repeat=2):
        tiles = plan_forward("sm90", DType.BF16, head_dim, head_dim_v, graphs, layout).tiles
        buffers = {b.name: b for b in tiles.smem}
        assert ("out" in buffers) == tiles.out_over_q == (tiles.q_stages > 1) and not (short and tiles.out_over_q)
        assert buffers["work tile"].count == 1 + max(2, tiles.q_stages)
        columns = tiles.head_dim
        if tiles.out_over_q:
            out, columns = buffers["out"], max(tiles.head_dim, tiles.head_dim_v)
            assert out.aliases == "q" and out.bytes == tiles.rows * tiles.head_dim_v * 2
        assert buffers["q"].bytes == tiles.rows * columns * 2


def test_a_buffer_takes_the_place_of_one_that_is_as_large():
    """Two buffers of 60 bytes fit over three of 40 together, but the first of them reaches into the second."""
    with pytest.raises(BudgetError, match="does not fit over q"):
        check_smem((Buffer("q", 40, 3), Buffer("out", 60, 2, aliases="q")))
    assert check_smem((Buffer("q", 60, 3), Buffer("out", 60, 2, aliases="q"))) == 192


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Sm100Forward(256, 256), "columns of tensor memory, 512 exist"),
        (lambda: Sm100Forward(128, 128, kv_stages=4), "bytes of shared memory, 232448 exist"),
        (lambda: Sm100Forward(128, 128, registers=(200, 72, 56)), "registers, 65536 exist"),
        (lambda: Sm100Forward(128, 128, registers=(190, 72, 56)), "steps of 8"),
        (lambda: Sm100Forward(100, 128), "head_dim=100"),
        (lambda: Sm100Forward(128, 48, ctas=2), "columns in steps of 32"),
        (lambda: Sm100Forward(128, 128, ctas=2, scheduler="clc"), "not pairs"),
        (lambda: Sm100Forward(128, 128, ctas=3), "ctas=3"),
        (lambda: Sm100Forward(128, 128, early_p=100), "early_p=100"),
        (lambda: Sm90Forward(128, 128, consumers=3, registers=(160, 32)), "consumer thread holds"),
        (lambda: Plan("sm100", DType.F32, Sm100Forward(64, 64)), "inputs, not f32"),
        (lambda: Plan("sm90", DType.F16, Sm100Forward(64, 64)), "takes Sm90Forward"),
        (lambda: Plan("sm100", DType.F16, Sm100Forward(64, 64), pack=3), "pack=3"),
        (lambda: Plan("sm100", DType.F16, Sm100Forward(64, 64), pack=2, mask=show(by_head("mask"))), "from head to head"),
        (lambda: Plan("sm90", DType.F16, Sm90Forward(64, 64), pack=16, score=show(by_head("score"))), "of one head up to 8"),
    ],
)
def test_a_plan_refuses_to_be_wrong(make, message):
    with pytest.raises(BudgetError, match=message):
        make()


@pytest.mark.parametrize("head_dim, head_dim_v, pays", [
    (64, 64, False), (96, 96, False), (112, 112, False), (128, 64, False), (128, 128, True), (192, 128, True), (256, 256, True),
    (31, 17, False),
])  # fmt: skip
def test_pairs_of_ctas_are_for_head_dims_that_shared_memory_holds_up(head_dim, head_dim_v, pays):
    layout = row_layout("sm100", head_dim, head_dim_v, Heads(), 4096)
    assert layout.pair == pays
    plan = plan_forward("sm100", DType.BF16, head_dim, head_dim_v, layout=layout)
    assert plan.ctas == 1 + pays and ("two CTAs" in str(plan)) == pays
    if pays:
        single = plan_forward("sm100", DType.BF16, head_dim, head_dim_v).tiles
        alone, pair = clocks(single), clocks(plan.tiles)
        assert shared_memory(alone) >= max(alone.values()) > shared_memory(pair)
        assert pair[TENSOR_CORE] == alone[TENSOR_CORE] and plan.tiles.rows == 2 * single.rows


@pytest.mark.parametrize("heads, q_len, pair, why", [
    (Heads(), 512, True, ""), (Heads(), 513, False, "3 tiles of rows"), (Heads(), 256, False, "1 tiles"),
    (Heads(), 1, False, "1 tiles"),
    (Heads(), 31 * 256, False, "31 tiles"), (Heads(), 33 * 256 - 7, True, ""), (Heads(masked=True), 4096, False, "under a mask"),
    (Heads(scored=True), 4096, False, "score graph"), (Heads(group=8), 65, False, "3 tiles"), (Heads(group=8), 40, True, ""),
])  # fmt: skip
def test_pairs_of_ctas_are_taken_where_nothing_is_wasted(heads, q_len, pair, why):
    assert row_layout("sm100", 128, 128, heads, q_len).pair == pair
    assert why in unpaired("sm100", 128, 128, heads, q_len) and bool(unpaired("sm100", 128, 128, heads, q_len)) != pair
    assert not row_layout("sm90", 128, 128, heads, q_len).pair


def test_what_a_pair_announces_reaches_where_it_is_waited_for():
    """The products are issued in the first CTA, and their commits reach both; what a CTA hands to itself stays there."""
    tiles = plan_forward("sm100", DType.BF16, 128, 128, layout=RowLayout(pair=True)).tiles
    alone = {b.name: b for b in replace(tiles, ctas=1, kv_stages=3).barriers}
    for b in tiles.barriers:
        if b.waited_on_by == (Role.MMA,) and b.name != "tmem_free":
            assert b.reach is Reach.FIRST
        elif b.signalled_by == (Role.MMA,):
            assert b.reach is Reach.BOTH
        waits_for_both = b.signal is Signal.WARPS and b.reach is not Reach.OWN
        assert b.arrivals == alone[b.name].arrivals * (2 if waits_for_both else 1)


def test_the_barrier_table_prints_every_barrier():
    tiles = Sm100Forward(128, 128)
    text = show_table(tiles.barriers)
    assert all(f"`{b.name}`" in text for b in tiles.barriers)
    assert next(b for b in tiles.barriers if b.name == "p_ready").arrivals == 8  # a softmax and the correction warpgroup


def test_values_are_hoisted_to_their_level():
    slope = node(Op.MUL, (H, const(3, I64)), I64)
    row, column = node(Op.ADD, (Q, slope), I64), node(Op.NEG, (KV,), I64)
    whole = node(Op.ADD, (SCORE, node(Op.CAST, (node(Op.ADD, (row, column), I64),), DType.F32)), DType.F32)
    placed = hoist(Graph("score", whole)).operations
    assert placed[Level.TILE] == (slope,) and placed[Level.ROW] == (row,) and placed[Level.COLUMN] == (column,)
    assert len(placed[Level.ELEMENT]) == 3


PYTHON = {
    Op.ADD: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.MUL: lambda a, b: a * b,
    Op.MIN: min,
    Op.MAX: max,
    Op.FLOORDIV: lambda a, b: a // b,
    Op.MOD: lambda a, b: a % b,
    Op.AND: lambda a, b: a & b,
    Op.OR: lambda a, b: a | b,
    Op.XOR: lambda a, b: a ^ b,
    Op.FMOD: lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(PYTHON, key=lambda op: op.value)), st.integers(0, 9), st.integers(0, 9)), max_size=8
    ),
    st.integers(0, 2**28 - 1),
    st.integers(0, 2**28 - 1),
    st.integers(-(2**28) + 1, 2**28 - 1),
)
def test_ranges_hold_the_value(steps, q, kv, slot):
    pool = [(Q, q), (KV, kv), (node(Op.SLOT, (), I64, 0), slot), (const(7, I64), 7), (const(-3, I64), -3)]
    for op, i, j in steps:
        (a, x), (b, y) = pool[i % len(pool)], pool[j % len(pool)]
        if op in (Op.FLOORDIV, Op.MOD, Op.FMOD) and y == 0:
            continue
        value = (PYTHON[op](x, y) + 2**63) % 2**64 - 2**63
        pool.append((node(op, (a, b), I64), value))
    for n, value in pool:
        low, high = integer_ranges((n,))[n]
        assert low <= value <= high
