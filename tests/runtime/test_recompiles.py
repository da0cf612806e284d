"""What may change from call to call without another kernel, and without waiting for one: counted. The kernel is replaced by one
that notes its launches; `by_hand` lets those arrive that calls do not wait for."""
import sys

import pytest
import torch
from by_hand import by_hand  # noqa: F401
from launched import launches  # noqa: F401

from flexfa4 import create_block_mask, flex_attention, mods
from flexfa4.runtime import engine, kernels

DIM = 64


def tensors(batch, heads, kv_heads, q_len, kv_len, rows_first=False):
    def make(h, n):
        return torch.zeros(batch, n, h, DIM, dtype=torch.bfloat16).transpose(1, 2) if rows_first else \
            torch.zeros(batch, h, n, DIM, dtype=torch.bfloat16)
    return make(heads, q_len), make(kv_heads, kv_len), make(kv_heads, kv_len)


def sweep():
    """Calls of one mod with other batches, heads, lengths, strides, literals, captures and their shapes."""
    for batch, heads, q_len, kv_len in ((1, 8, 300, 300), (3, 2, 1000, 700), (2, 16, 4096, 4096), (1, 5, 129, 4000)):
        for rows_first in (False, True):
            for size, cap in ((100, 20.0), (7, 3.5)):
                table = torch.rand(heads, kv_len + size)

                def score(s, b, h, q, kv, table=table, cap=cap):
                    return torch.tanh(s / cap) * cap + table[h, kv]

                mask = create_block_mask(lambda b, h, q, kv, size=size: (q - kv).abs() <= size, None, None, q_len, kv_len)
                yield tensors(batch, heads, heads, q_len, kv_len, rows_first), dict(score_mod=score, block_mask=mask)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_what_changes_from_call_to_call_compiles_nothing(launches, monkeypatch, arch):  # noqa: F811
    monkeypatch.setattr(engine, "architecture", lambda device: arch)
    calls = list(sweep())
    for qkv, given in calls:
        flex_attention(*qkv, **given)
    forwards = {signature for kind, signature, _ in launches if kind == "forward"}
    assert len(calls) == 16 and sum(kind == "forward" for kind, *_ in launches) == 16
    # Rows that are too few for the device are split, in a kernel of its own, on sm90.
    assert {s.plan.split for s in forwards} <= {False, True}
    assert len(forwards) == len({s.plan.split for s in forwards}) and len(kernels._found) <= len(forwards) + 1


def test_decisions_that_compile_are_few(launches):  # noqa: F811
    """All that lengths, batches and heads decide: whether rows are split, heads packed, and the tile of few rows."""
    for batch, heads, kv_heads in ((1, 8, 8), (4, 8, 8), (1, 8, 2), (2, 8, 1)):
        for q_len in (1, 16, 100, 300, 2000):
            for kv_len in (64, 500, 5000):
                flex_attention(*tensors(batch, heads, kv_heads, q_len, kv_len), enable_gqa=True)
    plans = {signature.plan for kind, signature, _ in launches if kind == "forward"}
    assert len(plans) <= 2 * len({(plan.tiles, plan.pack) for plan in plans}) <= 12
    assert {plan.split for plan in plans} == {False, True}


def test_another_mod_compiles(launches):  # noqa: F811
    q, k, v = tensors(1, 8, 8, 300, 300)
    flex_attention(q, k, v, mask_mod=mods.causal_mask)
    flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i > j)
    assert len({signature for _, signature, _ in launches}) == 2


def shapes():
    """Batch, heads, KV heads, queries and keys that choose other kernels: whole and split rows, few and long, packed heads."""
    for batch, heads, kv_heads in ((1, 8, 8), (4, 8, 8), (1, 8, 2), (2, 8, 1), (1, 6, 2)):
        for q_len, kv_len in ((1000, 700), (1, 5000), (16, 64), (300, 300), (4096, 4096), (4096, 20000)):
            yield batch, heads, kv_heads, q_len, kv_len


def run(shape, masked: bool):
    mask = create_block_mask(lambda b, h, q, kv: kv > 3, None, None, *shape[3:]) if masked else None
    flex_attention(*tensors(*shape), enable_gqa=True, block_mask=mask)


@pytest.mark.parametrize("arch, dim, masked", [("sm90", DIM, False), ("sm90", DIM, True), ("sm90", 256, True),
                                               ("sm100", DIM, False), ("sm100", DIM, True)])
def test_one_kernel_of_a_mod_is_waited_for(launches, by_hand, monkeypatch, arch, dim, masked):  # noqa: F811
    monkeypatch.setattr(engine, "architecture", lambda device: arch)
    monkeypatch.setattr(sys.modules[__name__], "DIM", dim)
    for shape in shapes():
        run(shape, masked)
    assert [kind for kind, _ in by_hand.waited] == ["forward"] and len(launches) >= 30
    stood_in = {signature for kind, signature, _ in launches if kind == "forward"}
    assert stood_in == {by_hand.waited[0][1]}
    # What calls would have waited for otherwise arrives, and is what they run with from then on.
    by_hand.arrive()
    launches.clear()
    for shape in shapes():
        run(shape, masked)
    own = {signature for kind, signature, _ in launches if kind == "forward"}
    assert len(by_hand.waited) == 1 and own == by_hand.signatures() | stood_in
    assert {s.plan.split for s in own} == {False, True} and len({(s.plan.tiles.rows, s.plan.pack) for s in own}) >= 3
