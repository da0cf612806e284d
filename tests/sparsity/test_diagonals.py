"""Masks of q - kv, whose tiles are classified once a distance, against the dense mask and against the general way."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4 import create_block_mask
from flexfa4.sparsity import diagonals
from tests.sparsity.dense import check_spans, dense, kinds

MASKS = {
    "causal": lambda b, h, q, kv: q >= kv,
    "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 50),
    "two sides": lambda b, h, q, kv: (q - kv).abs() < 37,
    "far": lambda b, h, q, kv: q - kv > 100,
    "dilated": lambda b, h, q, kv: (q - kv) % 3 == 0,
    "coarse": lambda b, h, q, kv: (q - kv) // 40 % 2 == 0,
    "none": lambda b, h, q, kv: (q - kv) != (q - kv),
    "all": lambda b, h, q, kv: (q - kv) == (q - kv),
    "by head": lambda b, h, q, kv: (q >= kv) & (q - kv < 16 * (h + 1)),
    "by batch and head": lambda b, h, q, kv: q + b >= kv + h + 20,
}


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(sorted(MASKS)), st.integers(1, 300), st.integers(1, 300),
       st.sampled_from([(16, 16), (32, 16), (64, 16), (16, 32)]), st.booleans())
def test_equal_to_dense(name, q_len, kv_len, tiles, transposed):
    spans = create_block_mask(MASKS[name], 2, 3, q_len, kv_len).spans(*tiles, transposed)
    if not transposed:
        check_spans(spans, kinds(dense(MASKS[name], 2, 3, q_len, kv_len), *tiles))
    else:
        want = kinds(dense(MASKS[name], 2, 3, q_len, kv_len), *tiles)
        assert torch.equal(spans.states().expand(want.shape), want)


@pytest.mark.parametrize("name", sorted(MASKS))
@pytest.mark.parametrize("tiles", [(128, 128), (256, 128)])
def test_each_distance_is_looked_at_once(name, tiles):
    """Not each tile: 64 x 64 tiles and more have at most 3 * 2 * 191 distances."""
    mask = create_block_mask(MASKS[name], 2, 3, 8192 * tiles[0] // 128, 8192)
    spans = mask.spans(*tiles)
    assert mask.work.analysed <= 6 * 191 * 20       # an undecided tile is cut in parts, which are looked at again
    assert spans.rows == spans.Bm * spans.Hm * 64


def test_one_that_changes_from_tile_to_tile_goes_the_general_way(monkeypatch):
    mask = create_block_mask(MASKS["coarse"], None, None, 300, 300)
    want = mask.spans(16, 16).states()
    monkeypatch.setattr(diagonals, "_MOST_RUNS", 3)
    again = create_block_mask(MASKS["coarse"], None, None, 300, 300)
    assert torch.equal(again.spans(16, 16).states(), want)
    assert again.work.analysed >= 19 * 19
