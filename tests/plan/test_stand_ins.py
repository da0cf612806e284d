"""Which kernels may compute the calls of another one: all that sizes choose among, and none that would be wrong."""
from dataclasses import replace
from itertools import product

import pytest

from flexfa4 import mods
from flexfa4.ir import DType
from flexfa4.plan import WIDE, Asked, Assumptions, Heads, plan_forward, row_layout, stand_ins, wide_layout
from flexfa4.trace import trace

MODS = {
    "plain": (),
    "mask": (trace(mods.causal_mask, "mask").graph,),
    "by head": (trace(lambda s, b, h, q, kv: s * (h + 1), "score").graph, trace(mods.causal_mask, "mask").graph),
    "mask by head": (trace(lambda b, h, q, kv: q > kv + h, "mask").graph,),
}


def chosen(asked: Asked, group: int) -> set:
    """What lengths and batches choose among, whole and split."""
    heads, found = Heads.of(group, asked.graphs), set()
    for q_len, alike in product((1, 16, 64, 128, 500, 1000, 8192, 100000), (4, 64)):
        layout = row_layout(asked.arch, *asked.dims, heads, q_len)
        for one in (layout, wide_layout(layout, asked.arch, asked.dims, heads, q_len, 0 if heads.masked else alike)):
            found.add(plan_forward(asked.arch, asked.dtype, *asked.dims, asked.graphs, one, precise=asked.precise))
    return {replace(plan, split=split) for plan in found for split in (False, True)}


@pytest.mark.parametrize("name", MODS)
@pytest.mark.parametrize("arch, dims", [("sm90", (64, 64)), ("sm90", (256, 256)), ("sm100", (64, 64)), ("sm100", (128, 128))])
def test_whatever_sizes_choose_stands_in_for_each_other(arch, dims, name):
    asked = Asked(arch, DType.BF16, dims, MODS[name], False)
    for group in (1, 2, 3, 8, 12):
        mine = chosen(asked, group)
        assert len(mine) >= 2
        for plan in mine:
            others = stand_ins(plan, asked, group)
            assert plan not in others and mine - {plan} <= set(others) and len(set(others)) == len(others)


@pytest.mark.parametrize("name", MODS)
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_what_differs_is_the_layout_of_rows_alone(arch, name):
    asked = Asked(arch, DType.F16, (64, 64), MODS[name], False)
    plan = plan_forward(arch, DType.F16, 64, 64, MODS[name])
    for group in (1, 3, 4, 6, 12):
        for other in stand_ins(plan, asked, group):
            same = replace(other, tiles=plan.tiles, pack=plan.pack, split=plan.split, assume=plan.assume)
            assert same == plan and (other.tiles.head_dim, other.tiles.head_dim_v) == (64, 64)
            # A query tile of fewer places than heads takes them in whole turns.
            assert group <= other.pack or group % other.pack == 0
            assert other.pack == 1 or name != "mask by head"


def test_64_bits_stand_in_for_32_and_never_the_other_way_round():
    asked = Asked("sm90", DType.BF16, (64, 64), (), False)
    narrow = plan_forward("sm90", DType.BF16, 64, 64)
    wide = replace(narrow, assume=WIDE)
    assert narrow.assume == Assumptions() and wide in stand_ins(narrow, asked, 1)
    assert {other.assume for other in stand_ins(wide, asked, 1)} == {WIDE}


def test_the_nearest_come_first():
    asked = Asked("sm90", DType.BF16, (64, 64), (), False)
    plan = plan_forward("sm90", DType.BF16, 64, 64)
    first, *others = stand_ins(plan, asked, 4)
    assert first == replace(plan, split=True)                # the same tiles
    split = stand_ins(first, asked, 4)
    assert [other.split for other in split] == sorted((other.split for other in split), reverse=True)
    assert {other.tiles.rows for other in others} > {plan.tiles.rows}
