"""Labels that come back, in any number of runs: tiles straight from pairs of runs, against a count of every element."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4 import and_masks, create_block_mask, mods, not_mask, or_masks
from tests.sparsity.dense import check_spans, dense, kinds

TILES = [(16, 16), (32, 16), (16, 48), (7, 5), (64, 64)]


@st.composite
def labels(draw, total: int, names: int, edge: int):
    """int32 [total]: runs of few labels, some of them a single element, some ending where tiles of `edge` do."""
    found = []
    while len(found) < total:
        length = draw(st.sampled_from([1, 3, 17, 40, 64])) if draw(st.booleans()) else -len(found) % edge or edge
        found += [draw(st.integers(0, names - 1))] * length
    return torch.tensor(found[:total], dtype=torch.int32)


OTHERS = {
    "alone": lambda n, x, doc: lambda b, h, q, kv: doc[q] == doc[kv],
    "causal": lambda n, x, doc: lambda b, h, q, kv: (q >= kv) & (doc[q] == doc[kv]),
    "window": lambda n, x, doc: and_masks(mods.document_mask(doc), mods.sliding_window(1 + x % 70)),
    "ahead": lambda n, x, doc: lambda b, h, q, kv: (doc[kv] == doc[q]) & (kv - q <= x % 50 - 20),
    "first keys": lambda n, x, doc: lambda b, h, q, kv: (doc[q] == doc[kv]) & (kv < x % n),
    "blocks": lambda n, x, doc: lambda b, h, q, kv: (doc[q] == doc[kv]) & (q // (3 + x % 40) == kv // (3 + x % 40)),
    "never": lambda n, x, doc: lambda b, h, q, kv: (doc[q] == doc[kv]) & (q >= kv + 9) & (q < kv),
    "other labels": lambda n, x, doc: not_mask(mods.document_mask(doc)),
    "or first keys": lambda n, x, doc: or_masks(mods.document_mask(doc), lambda b, h, q, kv: kv < x % n),
    "or near": lambda n, x, doc: or_masks(mods.document_causal(doc), lambda b, h, q, kv: (q - kv).abs() < x % 30),
    "but not": lambda n, x, doc: lambda b, h, q, kv: (q >= kv) & ~((doc[q] == doc[kv]) & (q - kv > x % 40)),
}


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(sorted(OTHERS)), st.integers(40, 300), st.sampled_from(TILES), st.booleans())
def test_any_runs_are_told_apart_exactly(data, name, n, tiles, transposed):
    doc = data.draw(labels(n, data.draw(st.sampled_from([2, 3, 8])), tiles[0]))
    mask_mod = OTHERS[name](n, data.draw(st.integers(0, 1000)), doc)
    check_spans(create_block_mask(mask_mod, 1, 1, n, n).spans(*tiles, transposed), kinds(dense(mask_mod, 1, 1, n, n), *tiles))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(40, 300), st.integers(40, 300), st.sampled_from(TILES), st.booleans())
def test_several_captures_batches_and_places(data, q_len, kv_len, tiles, transposed):
    """Labels of their own for queries and for keys, a row a batch; and others, that begin a few positions later."""
    rows = [torch.stack([data.draw(labels(n, 4, tile)) for _ in range(2)]) for n, tile in zip((q_len, kv_len), tiles)]
    parts, late = data.draw(labels(max(q_len, kv_len) + 9, 3, 16)), data.draw(st.integers(0, 9))

    def mask_mod(b, h, q, kv):
        return (rows[0][b, q] == rows[1][b, kv]) & (q + late >= kv) & (parts[q + late] == parts[kv])

    spans = create_block_mask(mask_mod, 2, 1, q_len, kv_len).spans(*tiles, transposed)
    check_spans(spans, kinds(dense(mask_mod, 2, 1, q_len, kv_len), *tiles))


def test_reads_past_its_table_are_left_to_others():
    doc = torch.tensor([0, 1, 0]).repeat_interleave(40)

    def mask_mod(b, h, q, kv):
        return (q >= kv) & (doc[q - 60] == doc[kv])

    check_spans(create_block_mask(mask_mod, 1, 1, 120, 120).spans(16, 16), kinds(dense(mask_mod, 1, 1, 120, 120), 16, 16))


@pytest.mark.parametrize("length", [64, 4096])
def test_costs_a_look_for_each_row_of_tiles(length):
    """Of a million pairs of tiles; runs of labels at random are a thousand, or sixteen."""
    count = 65536 // length
    doc = torch.randint(0, 1 + count // 10, (count,), generator=torch.Generator().manual_seed(0)).repeat_interleave(length)
    mask = create_block_mask(mods.document_causal(doc), None, None, 65536, 65536)
    states = mask.spans(64, 64).states()[0, 0]
    assert mask.work.analysed == 2 * 1024 and mask.work.settled == 0
    i, j = torch.arange(1024)[:, None], torch.arange(1024)
    same = doc[::64][:, None] == doc[::64]
    assert torch.equal(states.long(), torch.where(same & (i > j), 2, 0) + (i == j).long())


def test_two_labels_by_turns_are_too_many_pairs():
    """Each of 512 runs meets 256: looking at every tile once is as good, and as exact."""
    doc = (torch.arange(16384) // 32 % 2).int()
    mask = create_block_mask(mods.document_mask(doc), None, None, 16384, 16384)
    assert torch.equal(mask.spans(64, 64).states().unique(), torch.tensor([1], dtype=torch.uint8))
    assert mask.work.paired == 256 * 256
