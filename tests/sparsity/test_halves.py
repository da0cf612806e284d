"""Spans whose kinds tell two halves of a work tile apart, against the spans of the halves themselves."""
import pytest
import torch

from flexfa4 import create_block_mask, mods
from flexfa4.schedule import CostModel, row_costs
from flexfa4.sparsity import Kind

LENGTHS = ((1000, 1000), (300, 700), (128, 300), (129, 64), (1, 1))


def states(row_ptr, runs, rows: int, columns: int) -> torch.Tensor:
    found = torch.zeros(rows, columns, dtype=torch.int64)
    for row in range(rows):
        for begin, end, kind in runs[row_ptr[row]:row_ptr[row + 1]].tolist():
            assert begin < end and not found[row, begin:end].any()
            found[row, begin:end] = kind
    return found


def seldom(b, h, q, kv):
    return (q == 7) | ((q % 3 == 0) & (kv < 128) & (h > 0)) | ((q > 300) & (kv > 200) & (kv % 300 > 200))


@pytest.mark.parametrize("q_len, kv_len", LENGTHS)
@pytest.mark.parametrize("mask", [mods.causal_mask, mods.sliding_window(130), seldom, lambda b, h, q, kv: q < 0])
def test_each_half_has_the_kinds_of_its_own_spans(mask, q_len, kv_len):
    made = create_block_mask(mask, 2, 2, q_len, kv_len)
    fine, whole = made.spans(128, 64), made.work_spans(256, 64, halved=True)
    assert whole.halved and whole.q_tiles == -(-q_len // 256) and (whole.Bm, whole.Hm) == (fine.Bm, fine.Hm)
    kinds = states(whole.row_ptr, whole.runs, whole.rows, whole.kv_tiles).view(whole.Bm, whole.Hm, whole.q_tiles, -1)
    want = fine.states().long()
    for tile in range(want.shape[2]):
        assert torch.equal(kinds[:, :, tile // 2] >> 2 * (tile % 2) & 3, want[:, :, tile])
    if want.shape[2] % 2:
        assert not (kinds[:, :, -1] >> 2).any()
    # Runs are maximal.
    runs, row_ptr = whole.runs, whole.row_ptr
    inner = torch.ones(max(0, len(runs) - 1), dtype=torch.bool)
    inner[[i - 1 for i in row_ptr[1:-1].tolist() if 0 < i < len(runs)]] = False
    assert not (inner & (runs[1:, 0] == runs[:-1, 1]) & (runs[1:, 2] == runs[:-1, 2])).any()


def documents(*sizes: int):
    ids = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return sum(sizes), lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv)


@pytest.mark.parametrize("sizes", [(1, 128, 129, 300, 2, 77, 5), (700,), (40, 500, 300, 260), (256, 128, 384), (3,) * 200])
def test_halves_of_documents(sizes):
    length, mask = documents(*sizes)
    made = create_block_mask(mask, 1, 1, length, length)
    whole = made.work_spans(256, 128, halved=True)
    plain = made.work_spans(256, 128)
    assert whole.by_document == plain.by_document and torch.equal(whole.tiles, plain.tiles)
    dense = made.to_dense()[0, 0]
    for row, (q0, q1, k0, k1) in enumerate(whole.tiles.tolist()):
        seen = torch.zeros(length, length, dtype=torch.bool)
        for begin, end, kind in whole.runs[whole.row_ptr[row]:whole.row_ptr[row + 1]].tolist():
            for half in range(2):
                rows = slice(min(q0 + 128 * half, q1), min(q0 + 128 * (half + 1), q1))
                keys = slice(k0 + 128 * begin, min(k0 + 128 * end, k1))
                own = kind >> 2 * half & 3
                if own == Kind.FULL:
                    assert k0 + 128 * end <= k1 and dense[rows, keys].all()
                if own != Kind.EMPTY:
                    seen[rows, keys] = True
        assert not (dense[q0:q1] & ~seen[q0:q1]).any()


def test_a_half_that_sees_nothing_costs_nothing():
    length = 1024
    made = create_block_mask(mods.causal_mask, 1, 1, length, length)
    whole, cost = made.work_spans(256, 128, halved=True), CostModel(full=1.0, partial=3.0, fixed=0.0)
    costs = row_costs(whole.row_ptr.numpy(), whole.runs.numpy(), cost, halved=True)
    # Of each pair one tile is seen by half, and each half has one on the diagonal.
    assert costs.tolist() == [((4 * t + 1) * 1.0 + 2 * 3.0) / 2 for t in range(4)]
