"""Masks of comparisons between query and key: built from intervals a row, exactly, and from labels that stay on a device."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4 import and_masks, create_block_mask, mods, not_mask
from flexfa4.facts.terms import terms_of
from flexfa4.trace import bind
from tests.sparsity.dense import check_spans, dense, kinds
from tests.sparsity.test_exact import documents

SHIFT = torch.tensor([5, 90, 17])


def _within(times: torch.Tensor):
    return lambda b, h, q, kv: (times[kv] <= times[q]) & (times[kv] + 20.5 > times[q])


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
    "documents, strictly below": lambda n: and_masks(mods.document_mask(documents(n, 7)), lambda b, h, q, kv: q > kv),
    "documents, a window": lambda n: and_masks(mods.document_mask(documents(n, 7)), mods.sliding_window(20)),
    "documents that come back": lambda n: mods.document_causal(documents(n, 9, 2, "recurring")),
    "documents that come back, a window": lambda n: and_masks(mods.document_mask(documents(n, 9, 2, "recurring")),
                                                              mods.sliding_window(90)),
    "other documents": lambda n: not_mask(mods.document_mask(documents(n, 7))),
    "never": lambda n: lambda b, h, q, kv: (q >= kv) & (q < kv),
    "never, of three": lambda n: lambda b, h, q, kv: (q >= kv) & (q - kv >= -1) & (q < kv),
    "floats that rise": lambda n: lambda b, h, q, kv: torch.sqrt(q + 1.0) > torch.log(kv + 1.0) * 1.5,
    "a time of each position": lambda n: _within(torch.arange(n).float() * 0.75),
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


# Any number of the terms may be uncertain in a tile at once, beside each other or where the others are long over.
TERMS = {
    "causal": lambda n, x: lambda b, h, q, kv: q >= kv,
    "window": lambda n, x: lambda b, h, q, kv: q - kv < 1 + x % 70,
    "ahead": lambda n, x: lambda b, h, q, kv: kv - q <= x % 50 - 20,
    "documents": lambda n, x: mods.document_mask(documents(n, 2 + x % 9, x)),
    "documents in any order": lambda n, x: mods.document_mask(documents(n, 2 + x % 30, x, "shuffled")),
    "first keys": lambda n, x: lambda b, h, q, kv: kv < x % n,
    "a limit a query": lambda n, x: _limits(n, x),
    "times": lambda n, x: _times(n, x),
    "blocks": lambda n, x: lambda b, h, q, kv: q // (3 + x % 40) == kv // (3 + x % 40),
}


def _limits(n, x):
    ends = torch.randint(0, n, (n,), generator=torch.Generator().manual_seed(x))
    return lambda b, h, q, kv: kv <= ends[q]


def test_tables_without_a_label_in_common():
    """All runs of both tables are labels of their own: not those of one table, whose runs are numbered along queries and keys."""
    queries, keys = torch.arange(4).repeat_interleave(20), torch.arange(4, 8).repeat_interleave(20)
    mask = create_block_mask(lambda b, h, q, kv: queries[q] == keys[kv], 1, 1, 80, 80)
    assert not mask.spans(16, 16).states().any()


def _times(n, x):
    """Floats of any type in some order, with repeats and infinities, compared in one of the four ways."""
    draw = torch.Generator().manual_seed(x)
    dtype = (torch.float16, torch.bfloat16, torch.float32, torch.float64)[x % 4]
    times = (torch.rand(n, generator=draw) * (5, n)[x // 4 % 2]).round(decimals=x // 8 % 2).to(dtype)
    if x % 3:
        times = times.sort(descending=x % 3 == 2).values
    times[torch.randint(n, (2,), generator=draw)] = torch.tensor([torch.inf, -torch.inf]).to(dtype)
    compare = (torch.eq, torch.ne, torch.lt, torch.le)[x // 16 % 4]
    return lambda b, h, q, kv: compare(times[q], times[kv])


@settings(max_examples=250, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(TERMS)), st.integers(0, 1000)), min_size=2, max_size=4), st.integers(40, 300),
       st.sampled_from([(16, 16), (32, 16), (16, 48), (7, 5), (64, 64)]), st.booleans())
def test_terms_together(terms, n, tiles, transposed):
    mask_mod = and_masks(*(TERMS[name](n, x) for name, x in terms))
    spans = create_block_mask(mask_mod, 1, 1, n, n).spans(*tiles, transposed)
    want = kinds(dense(mask_mod, 1, 1, n, n), *tiles)
    check_spans(spans, want)
