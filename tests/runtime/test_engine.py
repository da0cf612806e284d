"""Which engine takes a call and why, and the work lists that a kernel is launched with; no GPU needed."""
import numpy as np
import pytest
import torch

from flexfa4 import create_block_mask, mods
from flexfa4.plan import WIDE, Assumptions, Plan, plan_forward
from flexfa4.ir import DType
from flexfa4.runtime import engine, lists
from flexfa4.trace import bind


def call(dtype=torch.bfloat16, dims=(128, 128), q_len=64, kv_len=64, heads=2):
    return (torch.empty(1, heads, q_len, dims[0], dtype=dtype), torch.empty(1, 2, kv_len, dims[0], dtype=dtype),
            torch.empty(1, 2, kv_len, dims[1], dtype=dtype))


def many(q_len=64, kv_len=64, heads=2):
    """Inputs of any length in the room of one row."""
    one = torch.empty(1, 1, 1, 128, dtype=torch.bfloat16)
    return one.expand(1, heads, q_len, 128), *[one.expand(1, 2, kv_len, 128)] * 2


def far(distance):
    return bind(lambda b, h, q, kv: q - kv < distance, "mask")


@pytest.mark.parametrize("arch, tensors, scale, bounds, said", [
    (None, call(), 0.1, (), "no kernel exists for cpu"),
    ("sm90", call(torch.float32), 0.1, (), "not torch.float32"),
    ("sm90", call(dims=(512, 512)), 0.1, (), "head_dim=512"),
    ("sm90", call(), 0.0, (), "scale=0.0"),
    ("sm90", call(), -1.0, (), "scale=-1.0"),
    ("sm90", call(), 1e-40, (), "scale=1e-40"),
    ("sm90", call(), 1e38, (), "scale=1e+38"),
    ("sm90", call(q_len=0), 0.1, (), "a dimension is empty"),
    ("sm100", many(kv_len=2**31), 0.1, (), "key has shape (1, 2, 2147483648, 128): the kernels count in 32 bits"),
    ("sm100", many(q_len=2**30, heads=256), 0.1, (), "query has shape (1, 256, 1073741824, 128): the kernels count"),
    ("sm100", call(), 0.1, (bind(lambda s, b, h, q, kv, t=torch.zeros(1).expand(2**31): s + t[kv], "score"),),
     "a captured tensor has shape (2147483648,)"),
    ("sm90", call(), 0.1, (bind(lambda s, b, h, q, kv, t=torch.zeros(0): s + t[kv], "score"),), "a captured tensor is empty"),
])
def test_what_no_kernel_takes_is_said(arch, tensors, scale, bounds, said):
    choice = engine.choose(arch, *tensors, scale, bounds)
    assert choice.plan is None and said in choice.reason


def test_a_number_that_narrow_integers_do_not_hold_takes_the_wide_plan():
    assert engine.choose("sm90", *call(), 0.1, (None, far(100), None)).plan.assume == Assumptions()
    assert engine.choose("sm90", *call(), 0.1, (None, far(10**12), None)).plan.assume == WIDE


def test_many_entries_take_the_wide_plan():
    """b << 15 is below 2**31 for 2**16 entries."""
    shifted = bind(lambda s, b, h, q, kv: torch.where((b << 15) >= kv, s, -s), "score")
    one = torch.empty(1, 2, 1, 64, dtype=torch.bfloat16)
    for batch, assume in ((2**16, Assumptions()), (2**16 + 1, WIDE)):
        assert engine.choose("sm100", *[one.expand(batch, -1, -1, -1)] * 3, 0.1, (shifted, None, None)).plan.assume == assume


def test_the_same_call_gets_the_same_plan():
    first, second = (engine.choose("sm90", *call(q_len=n), 0.1, (None, far(n), None)).plan for n in (1000, 3000))
    assert first is second


def keys_of(group: int, q_len: int, bound=(None, None, None)) -> Plan:
    return engine.choose("sm90", *call(q_len=q_len, heads=2 * group), 0.1, bound).plan


def test_short_queries_of_a_group_share_a_tile():
    plan = keys_of(8, 1)
    assert (plan.pack, plan.tiles.rows, plan.q_tile) == (8, 64, 8)
    # Three heads have four places, and the same kernel as four.
    assert keys_of(3, 1) is keys_of(4, 2)
    # No matter how long, where tiles are full already; under a mask smaller tiles skip more.
    assert keys_of(8, 10**5).pack == 1 and keys_of(8, 10**5, (None, far(100), None)).pack == 8
    assert keys_of(3, 10**5, (None, far(100), None)).pack == 1
    cap = bind(mods.tanh_softcap(2.0), "score")
    assert keys_of(8, 10**5, (cap, far(100), None)).pack == 1 and keys_of(8, 1, (cap, far(100), None)).pack == 8


def test_heads_that_a_mask_tells_apart_share_no_tile():
    by_head = bind(lambda b, h, q, kv: q >= kv + h, "mask")
    assert keys_of(8, 1, (None, by_head, None)).pack == 1
    # A thread of sm90 has two rows, 8 apart: of one head where a graph depends on it.
    scores = bind(lambda s, b, h, q, kv: s * h, "score")
    assert keys_of(16, 1, (scores, None, None)).pack == 8 and keys_of(16, 1).pack == 16
    assert keys_of(12, 1, (scores, None, None)).pack == 4


def covered(found: lists.Lists, q_tiles: int) -> dict:
    """(batch, head, q_tile) -> KV tiles that the work list covers, in order."""
    tiles: dict = {}
    for batch, head, q_tile, begin, end, _ in found.work.tolist():
        tiles.setdefault((batch, head, q_tile), []).append((begin, end))
    assert all(key[2] < q_tiles for key in tiles)
    return {key: sorted(ranges) for key, ranges in tiles.items()}


def test_few_rows_are_split_and_every_part_has_its_place():
    found = lists.make_lists(None, lists.dense_schedule((1, 64), (2, 4, 2), 32), grid=(128, 100))
    assert (found.combine_rows[:, 2:] == torch.tensor([0, 100])).all()
    assert found.parts > 8 and found.row_ptr is None
    for ranges in covered(found, 1).values():
        assert ranges[0][0] == 0 and ranges[-1][1] == 64
        assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:]))
    parts = found.work[:, 5]
    assert sorted(parts[parts >= 0].tolist()) == list(range(found.parts))
    assert found.combine_ptr.tolist()[-1] == found.parts and len(found.combine_rows) == len(found.combine_ptr) - 1


def test_many_rows_stay_whole():
    assert lists.dense_schedule((64, 64), (2, 16, 16), 32).parts == 0


def test_lists_of_a_mask_by_head_and_of_one_without_tiles():
    by_head = create_block_mask(lambda b, h, q, kv: q >= kv + h, 2, 4, 300, 300).spans(128, 128)
    found = lists.make_lists(by_head, None)
    assert (found.batch_stride, found.head_stride) == (0, 3)
    nothing = create_block_mask(lambda b, h, q, kv: q < 0, None, None, 300, 300).spans(128, 128)
    found = lists.make_lists(nothing, None)
    assert found.runs.shape == (1, 3) and found.row_ptr.tolist() == [0, 0, 0, 0]


def test_work_covers_the_spans():
    plan = plan_forward("sm90", DType.BF16, 128, 128)
    spans = create_block_mask(mods.causal_mask, None, None, 1000, 1000).spans(plan.tiles.rows, plan.tiles.kv_tile)
    work = lists.work_of(spans, (1, 2, 1))
    assert work.rows == 2 * spans.q_tiles
    begin, end = work.kv_bounds(np.arange(work.rows))
    assert (begin == 0).all() and end.tolist() == [*range(1, 9), *range(1, 9)]


@pytest.mark.parametrize("window, consumers", [(1 << 20, 3), (5000, 3), (3000, 2), (100, 2)])
def test_masks_of_long_rows_take_three_warpgroups(window, consumers):
    """Whatever the mask's form: the same graph with another number."""
    mask = create_block_mask(lambda b, h, q, kv: (q >= kv) & (q - kv < window), None, None, 16384, 16384)
    choice = engine.choose("sm90", *call(q_len=16384, kv_len=16384), 0.1, (None, mask.bound, None))
    asked = []

    def spans_at(plan: Plan):
        asked.append(plan)
        return mask.work_spans(plan.q_tile, plan.tiles.kv_tile)

    plan, spans = choice.settled(spans_at)
    assert asked == [choice.plan, choice.wide][:consumers - 1] and plan is asked[-1]
    assert (plan.tiles.consumers, spans.q_tile, spans.kv_tile) == (consumers, plan.q_tile, plan.tiles.kv_tile)
    # Of a call without a mask: long, but a tile a processor at the most.
    assert engine.choose("sm90", *call(q_len=4096, kv_len=16384), 0.1, (None, None, None)).plan.tiles.consumers == 2


@pytest.mark.parametrize("long, parts", [(24576, False), (40000, True)])
def test_an_outsize_document_is_whole_where_its_keys_of_two_heads_fit_in_l2(long, parts):
    """In sections of one head, as all keys would have it, its rows are split."""
    lengths = [1000] * 20 + [long] + [1000] * ((65536 - 20000 - long) // 1000)
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = create_block_mask(lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv), None, None, len(ids), len(ids))
    plan = plan_forward("sm90", DType.BF16, 128, 128, (mask.bound.graph,))
    spans, key = mask.work_spans(plan.q_tile, plan.tiles.kv_tile), call(q_len=8, kv_len=len(ids))[1]
    work = lists.work_of(spans, (1, 2, 2))
    keys = lists.most_keys(spans, work)
    assert keys == long and (lists.section_of(plan, key), lists.section_of(plan, key, keys)) == (1, 1 if parts else 2)
    assert (lists.schedule_of(spans, work, plan, key, 132).parts > 0) == parts
