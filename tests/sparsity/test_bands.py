"""Masks of comparisons between query and key: built from intervals a row, exactly, and from labels that stay on a device."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4 import create_block_mask, mods, not_mask
from flexfa4.facts.device_labels import run_ends
from flexfa4.facts.terms import terms_of
from flexfa4.sparsity import build
from flexfa4.sparsity.spans import Tiling
from flexfa4.trace import bind
from tests.sparsity.dense import check_spans, dense, kinds
from tests.sparsity.test_exact import documents

SHIFT = torch.tensor([5, 90, 17])
MASKS = {
    "causal": lambda n: mods.causal_mask,
    "strictly below": lambda n: lambda b, h, q, kv: kv < q,
    "anti-causal": lambda n: lambda b, h, q, kv: q < kv,
    "negated sides": lambda n: lambda b, h, q, kv: -kv >= 20 - q,
    "window": lambda n: mods.sliding_window(70),
    "one key": lambda n: mods.sliding_window(1),
    "two-sided": lambda n: lambda b, h, q, kv: (q - kv).abs() <= 40,
    "outside": lambda n: lambda b, h, q, kv: (q - kv).abs() > 40,
    "diagonal": lambda n: lambda b, h, q, kv: q == kv + 3,
    "off the diagonal": lambda n: lambda b, h, q, kv: q != kv,
    "prefix or causal": lambda n: mods.prefix_lm(n // 3),
    "sink and window": lambda n: mods.sink_window(4, 50),
    "blocks": lambda n: lambda b, h, q, kv: (q // 37 >= kv // 37) & (kv < n - 5),
    "by head": lambda n: lambda b, h, q, kv: (q >= kv) & (q - kv < 30 * (h + 1)),
    "by head, a table": lambda n: lambda b, h, q, kv: q - kv < SHIFT[h],
    "documents": lambda n: mods.document_mask(documents(n, 7)),
    "documents, causal": lambda n: mods.document_causal(documents(n, 7, 1, "shuffled")),
    "other documents": lambda n: not_mask(mods.document_mask(documents(n, 7))),
    "never": lambda n: lambda b, h, q, kv: (q >= kv) & (q < kv),
    "limits of rows and keys": lambda n: lambda b, h, q, kv: (q >= 20) & (kv < n - 30) | (kv == 3),
}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(MASKS)), st.integers(10, 260), st.sampled_from([(16, 16), (32, 16), (16, 48), (7, 5)]),
       st.booleans())
def test_exact(name, n, tiles, transposed):
    mask_mod = MASKS[name](n)
    want = kinds(dense(mask_mod, 1, 3, n, n), *tiles)
    spans = create_block_mask(mask_mod, 1, 3, n, n).spans(*tiles, transposed)
    if transposed:
        assert torch.equal(spans.states().expand(want.shape), want)
    else:
        check_spans(spans, want)


@pytest.mark.parametrize("name", sorted(MASKS))
def test_costs_a_look_for_each_row_of_tiles(name):
    """Not one for each of the 4096 tiles, of which those whose corners are alike are cut and looked at again."""
    mask = create_block_mask(MASKS[name](2048), 1, 3, 2048, 2048)
    mask.spans(32, 32)
    assert terms_of(mask.bound.graph) is not None
    assert mask.work.analysed <= 3 * (64 + 64) + 32 * mask.work.settled < 4600


@pytest.mark.parametrize("mask_mod", [lambda b, h, q, kv: (q * kv) % 5 == 0, lambda b, h, q, kv: (q - kv) % 3 == 0,
                                      lambda b, h, q, kv: torch.where(q > kv, q, kv) > 40])
def test_other_masks_have_no_terms(mask_mod):
    assert terms_of(bind(mask_mod, "mask").graph) is None


def test_a_wrapped_sum_is_not_taken_apart():
    """q + kv + large wraps around in int64: what torch says holds, not algebra."""
    large = 2**63 - 100

    def mask_mod(b, h, q, kv):
        return q + kv + large > 0

    check_spans(create_block_mask(mask_mod, 1, 1, 90, 90).spans(16, 16), kinds(dense(mask_mod, 1, 1, 90, 90), 16, 16))


@pytest.mark.parametrize("order", ["rising", "shuffled"])
@pytest.mark.parametrize("tiles", [(16, 16), (32, 8), (100, 37)], ids=str)
@pytest.mark.parametrize("make", [mods.document_mask, mods.document_causal])
def test_labels_worked_out_where_they_are(order, tiles, make):
    """The torch code that a GPU runs, on the CPU."""
    labels = documents(501, 9, 2, order)
    bound, tiling = bind(make(labels), "mask"), Tiling(*tiles, 480, 501)
    found = build.spans_from_device(bound, tiling, False, here=lambda t: False)
    # Tiles across the diagonal that are no squares may have four corners alike.
    if found is None:
        assert tiles[0] != tiles[1] and make is mods.document_causal
        return
    check_spans(found[0], kinds(dense(make(labels), 1, 1, 480, 501), *tiles))
    assert build.spans_from_device(bound, tiling, False) is None          # captures that are here need no device


def test_labels_that_come_back_are_left_to_the_host():
    labels = documents(501, 9, 2, "recurring")
    bound = bind(mods.document_causal(labels), "mask")
    assert build.spans_from_device(bound, Tiling(16, 16, 501, 501), False, here=lambda t: False) is None
    short = bind(mods.document_causal(labels[:400]), "mask")
    assert build.spans_from_device(short, Tiling(16, 16, 501, 501), False, here=lambda t: False) is None


def test_run_ends():
    first, last, unique = run_ends(torch.tensor([4, 4, 4, 9, 9, 2, 2, 2]), [(3, 8)])
    assert (first.tolist(), last.tolist(), unique.tolist()) == ([0, 1, 2], [0, 2, 2], [1])
    assert run_ends(torch.tensor([4, 9, 4]), [(3, 3)])[-1].tolist() == [0]
