"""Masks whose labels or ranks come in any order, by each way that a build may take once others have too much to do, against a
count of every element; and that none does more than its budget."""
from contextlib import ExitStack, contextmanager
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4 import create_block_mask, mods
from flexfa4.sparsity import bands, halves, rectangles, refine, shared_labels, squares, tile_pairs
from flexfa4.sparsity.spans import Kind
from tests.sparsity.dense import check_spans, dense, kinds
from tests.sparsity.test_rectangles import OTHERS, TILES, labels
from tests.sparsity.test_work_spans import check, document

# What is set to force a way, beside that rectangles and squares are too many; those that leave tiles PARTIAL that are not.
WAYS = {
    "as it is": {},
    "few pairs at once": {tile_pairs: {"_AT_ONCE": 30}},
    "labels as places": {shared_labels: {"_WORDS_A_PLACE": 1e-9}},
    "several columns": {tile_pairs: {"MOST_PAIRS": 7}},
    "no tile looked into": {tile_pairs: {"_MOST_OPEN": 0}},
}
INEXACT = {"several columns", "no tile looked into"}


@contextmanager
def by(way: str):
    with ExitStack() as stack:
        early = {rectangles: {"_MOST_MET": -1}, bands: {"_MOST_OPEN": 4}, squares: {"FEW_SQUARES": 0}, refine: {"_AT_ONCE": -1}}
        for module, values in {**early, **WAYS[way]}.items():
            stack.enter_context(mock.patch.multiple(module, **values))
        yield


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(sorted(OTHERS)), st.integers(40, 300), st.sampled_from(TILES), st.booleans(),
       st.sampled_from(sorted(WAYS)))
def test_any_runs(data, name, n, tiles, transposed, way):
    doc = data.draw(labels(n, data.draw(st.sampled_from([2, 3, 8])), tiles[0]))
    mask_mod = OTHERS[name](n, data.draw(st.integers(0, 1000)), doc)
    with by(way):
        spans = create_block_mask(mask_mod, 1, 1, n, n).spans(*tiles, transposed)
    check_spans(spans, kinds(dense(mask_mod, 1, 1, n, n), *tiles), exact=way not in INEXACT)


def _at_random(n: int, names: int, seed: int) -> torch.Tensor:
    return torch.randint(0, names, (n,), generator=torch.Generator().manual_seed(seed))


# Of n tokens, `names` labels and a seed.
ANY = {
    "a label each": lambda n, x, s: lambda b, h, q, kv: (q >= kv) & (x[q] == x[kv]),
    "of pairs": lambda n, x, s: lambda b, h, q, kv: x[q // 2] == x[kv // 2],
    "worked out": lambda n, x, s: lambda b, h, q, kv: (x[q] * 3 + q % 5 == x[kv] + 2) & (q >= kv),
    "half precision": lambda n, x, s: (lambda y: lambda b, h, q, kv: y[q] == y[kv])((x / 3).bfloat16()),
    "none like it": lambda n, x, s: lambda b, h, q, kv: ~(x[q] == x[kv]) | (q < kv),
    "two": lambda n, x, s: (lambda y: lambda b, h, q, kv: (x[q] == x[kv]) & (y[q] == y[kv]))(_at_random(n, 3, s + 1)),
    "either": lambda n, x, s: (lambda y: lambda b, h, q, kv: (x[q] == x[kv]) | (y[q] == y[kv]))(_at_random(n, 40, s + 1)),
    "each batch and head": lambda n, x, s: (lambda y: lambda b, h, q, kv: (y[b, q] == y[b, kv]) & (q - kv < 9 * h + 9))(
        torch.stack([x, x.flip(0)])),
    "ranks": lambda n, x, s: lambda b, h, q, kv: x[q] >= x[kv],
    "near ranks": lambda n, x, s: lambda b, h, q, kv: ((x[q] - x[kv]).abs() < 2) & (kv < n - 9),
    "ranks and labels": lambda n, x, s: (lambda y: lambda b, h, q, kv: (x[q] < x[kv]) & (y[q] == y[kv]))(_at_random(n, 5, s)),
    "odd queries": lambda n, x, s: lambda b, h, q, kv: (x[q] == x[kv]) & (q % 3 < 2) & (kv % 4 > 0),
}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(ANY)), st.integers(40, 200), st.sampled_from([2, 4, 30, 1000]), st.integers(0, 99),
       st.sampled_from(TILES), st.booleans(), st.sampled_from(sorted(WAYS)))
def test_any_order(name, n, names, seed, tiles, transposed, way):
    mask_mod = ANY[name](n, _at_random(n, names, seed), seed)
    with by(way):
        spans = create_block_mask(mask_mod, 2, 2, n, n).spans(*tiles, transposed)
    check_spans(spans, kinds(dense(mask_mod, 2, 2, n, n), *tiles), exact=way not in INEXACT)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(["alone", "causal", "ranks"]), st.integers(40, 300), st.booleans(),
       st.sampled_from(sorted(WAYS)), st.sampled_from([(16, 16), (32, 16), (48, 20)]), st.booleans())
def test_work_spans(data, name, n, by_document, way, tiles, halved):
    """Of documents too, each with ranks of its own in any order, that are tiles of many blocks."""
    rank = _at_random(n, 50, data.draw(st.integers(0, 9)))
    doc = torch.arange(n) // 30 if by_document else data.draw(labels(n, 3, 16))
    more = {"alone": lambda b, h, q, kv: kv >= 0, "causal": lambda b, h, q, kv: q >= kv,
            "ranks": lambda b, h, q, kv: rank[q] >= rank[kv]}[name]
    mask_mod = document(doc, more=more)
    made = create_block_mask(mask_mod, 1, 1, n, n)
    allowed = made.to_dense()
    with by(way), mock.patch.multiple(halves, _AT_ONCE=9, _TILES_A_RUN=data.draw(st.sampled_from([0, 1 << 20]))):
        spans = made.work_spans(*tiles, halved)
    if not halved and way not in INEXACT:
        return check(spans, allowed.numpy(), dense(document(doc), 1, 1, n, n).numpy())
    height = tiles[0] // 2 if halved else tiles[0]
    for row, (q0, q1, k0, k1) in enumerate(spans.tiles.tolist()):
        for half in range(1 + halved):
            rows = allowed[0, 0, min(q0 + half * height, q1):min(q0 + (half + 1) * height, q1)]
            seen = torch.zeros(rows.shape, dtype=torch.bool)
            for begin, end, kind in spans.runs[spans.row_ptr[row]:spans.row_ptr[row + 1]].tolist():
                own = kind >> 2 * half & 3
                keys = slice(k0 + tiles[1] * begin, min(k0 + tiles[1] * end, k1))
                assert own != Kind.FULL or k0 + tiles[1] * end <= k1 and rows[:, keys].all()
                assert own == Kind.EMPTY or not seen[:, keys].any()
                seen[:, keys] |= own != Kind.EMPTY
            assert not (rows & ~seen).any()


def two_by_turns(n: int) -> torch.Tensor:
    return _at_random(n // 64, 2, 0).repeat_interleave(64)


@pytest.mark.parametrize("pairs", [tile_pairs.MOST_PAIRS, 1 << 22])
def test_two_labels_by_turns_are_within_the_budget(pairs, monkeypatch):
    """At a million tokens: a look for each pair of tiles, or of several columns where the budget is smaller, none at an element
    but where labels meet the diagonal."""
    monkeypatch.setattr(tile_pairs, "MOST_PAIRS", pairs)
    tokens = 1 << 20
    rows = tokens // 128
    mask = create_block_mask(mods.document_causal(two_by_turns(tokens)), None, None, tokens, tokens)
    spans, work = mask.spans(128, 128), mask.work
    assert work.paired == min(pairs, rows * rows) and work.analysed <= 4 * rows and len(spans.compact) <= work.paired // 2
    assert work.sampled + work.settled <= 2 * rows and work.over_budget == 0


def test_masks_of_many_heads_share_one_budget():
    n, doc = 8192, two_by_turns(8192)
    mask = create_block_mask(lambda b, h, q, kv: (doc[q] == doc[kv]) & (q - kv < 999 * h), 1, 16, n, n)
    with mock.patch.object(rectangles, "_MOST_MET", -1), mock.patch.object(tile_pairs, "MOST_PAIRS", 1 << 14):
        spans = mask.spans(64, 64)
    # 16 heads of 128 rows, of 128 columns each: 16 columns together are 8 a row.
    assert mask.work.paired == 1 << 14 and len(spans.compact) <= 1 << 13


def test_large_squares_of_one_kind_come_before_pairs_of_tiles():
    """Sides that do not rise, where most of the square is one kind: squares tell as much with a fraction of the looks."""
    n, mask_mod = 32768, lambda b, h, q, kv: (q // 64 % 256 < kv // 64 % 256) & (q < kv)
    mask = create_block_mask(mask_mod, 1, 1, n, n)
    mask.spans(32, 32)
    assert mask.work.paired == 0 and mask.work.analysed < n // 32 * n // 32 // 8


def test_other_masks_are_cut_within_the_budget(monkeypatch):
    """Neither terms nor a function of q - kv: a mask that interval analysis decides nowhere."""
    def mask_mod(b, h, q, kv):
        return (q * kv) % 7 < 3

    n = 8192
    monkeypatch.setattr(squares, "MOST_SQUARES", 1 << 12)
    mask = create_block_mask(mask_mod, 1, 1, n, n)
    states = mask.spans(16, 16).states()
    assert mask.work.analysed <= 1 << 12 and mask.work.over_budget == 512 * 512 and (states == Kind.PARTIAL).all()
    monkeypatch.setattr(squares, "MOST_SQUARES", 1 << 20)
    exact = create_block_mask(mask_mod, 1, 1, n, n)
    assert torch.equal(exact.spans(16, 16).states(), states) and exact.work.over_budget == 0


def test_a_look_up_past_its_end_is_found_whatever_the_budget(monkeypatch):
    monkeypatch.setattr(squares, "MOST_SQUARES", 0)
    table = torch.zeros(4000, dtype=torch.int32)
    mask = create_block_mask(lambda b, h, q, kv: (q * kv) % 7 + table[kv] < 3, 1, 1, 8192, 4001)
    with pytest.raises(Exception, match="4000"):
        mask.spans(16, 16)
