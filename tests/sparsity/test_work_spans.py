"""Spans of work tiles against the dense mask: which tiles there are, and that each kind is exactly what its elements say."""
import numpy as np
import pytest
import torch
from dense import dense as dense_of
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4 import mods
from flexfa4.sparsity import block_mask_from_tiles, create_block_mask, work_spans
from flexfa4.sparsity.spans import Kind
from flexfa4.sparsity.work_spans import INSIDE

Q_TILE, KV_TILE = 32, 16


def dense(*arguments) -> np.ndarray:
    return dense_of(*arguments).numpy()


def labels(lengths) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def ragged(seed: int, count: int, most: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, most, count).tolist()


def document(ids, other=None, more=lambda b, h, q, kv: kv >= 0):
    other = ids if other is None else other
    return lambda b, h, q, kv: (ids[q] == other[kv]) & more(b, h, q, kv)


def causal(b, h, q, kv):
    return q >= kv


def window(b, h, q, kv):
    return (q >= kv) & (q - kv < 40)


UNEVEN = labels([1, 32, 33, 200, 7, 3, 5, 16, 90, 129])
N = len(UNEVEN)
BACK = torch.where(torch.arange(N) < N - 60, UNEVEN, 3)
PER_BATCH = torch.stack([UNEVEN, UNEVEN.flip(0), BACK])
OTHER = labels([20, 50, 10, 60, 1, 1, 1, 70, 200, 40])
MASKS = {
    "documents": (document(UNEVEN), 1, N, N, True),
    "causal": (document(UNEVEN, more=causal), 1, N, N, True),
    "window": (document(UNEVEN, more=window), 1, N, N, True),
    "labels in any order": (document(torch.tensor([7, 2, 9, 0, 1, 5, 3, 4, 8, 6])[UNEVEN], more=causal), 1, N, N, True),
    "a label comes back": (document(BACK, more=causal), 1, N, N, False),
    "tiny documents": (document(labels([1] * 20 + [2, 3] * 40 + [5] * 20), more=causal), 1, 320, 320, False),
    "one document": (document(torch.zeros(200, dtype=torch.int32), more=causal), 1, 200, 200, False),
    "each batch its own": (lambda b, h, q, kv: (PER_BATCH[b, q] == PER_BATCH[b, kv]) & (q >= kv), 3, N, N, True),
    "other keys": (document(UNEVEN, OTHER), 1, N, len(OTHER), True),
    "keys missing": (document(torch.tensor([0, 1, 99, 3, 4, 98, 6, 7, 8, 9])[UNEVEN], OTHER), 1, N, len(OTHER), True),
    "keys in another order": (document(UNEVEN, OTHER.flip(0)), 1, N, len(OTHER), False),
    "padding": (document(UNEVEN, more=lambda b, h, q, kv: UNEVEN[q] < 8), 1, N, N, True),
    "an offset": (lambda b, h, q, kv: UNEVEN[q + 40] == UNEVEN[kv], 1, N - 40, N, True),
    "per head": (lambda b, h, q, kv: (UNEVEN[q] == UNEVEN[kv]) & (q - kv < 20 * (h + 1)), 1, N, N, True),
    "two kinds of labels": (document(UNEVEN, more=lambda b, h, q, kv: BACK[q] == BACK[kv]), 1, N, N, True),
}


def same_label(name: str, B: int, H: int, q_len: int, kv_len: int) -> np.ndarray:
    """The label tests of a mask alone, dense."""
    tests = {
        "each batch its own": lambda b, h, q, kv: PER_BATCH[b, q] == PER_BATCH[b, kv], "padding": document(UNEVEN),
        "two kinds of labels": MASKS["two kinds of labels"][0], "per head": document(UNEVEN),
        "a label comes back": document(BACK), "one document": lambda b, h, q, kv: kv >= 0,
        "labels in any order": document(UNEVEN), "causal": document(UNEVEN), "window": document(UNEVEN),
        "tiny documents": document(labels([1] * 20 + [2, 3] * 40 + [5] * 20)),
    }
    return dense(tests.get(name, MASKS[name][0]), B, H, q_len, kv_len)


def check(spans, allowed: np.ndarray, same: np.ndarray) -> None:
    rows = spans.tiles.reshape(spans.Bm, spans.Hm, spans.q_tiles, 4).tolist()
    pointer, runs = spans.row_ptr.tolist(), spans.runs.tolist()
    for b in range(spans.Bm):
        for h in range(spans.Hm):
            seen = np.zeros(allowed.shape[2:], bool)
            queries = [q for q0, q1, *_ in rows[b][h] for q in range(q0, q1)]
            assert queries == list(range(allowed.shape[2]))
            for i, (q0, q1, k0, k1) in enumerate(rows[b][h]):
                assert q1 - q0 <= spans.q_tile
                r = (b * spans.Hm + h) * spans.q_tiles + i
                previous = (-1, -1, None)
                for begin, end, kind in runs[pointer[r]:pointer[r + 1]]:
                    assert begin >= previous[1] and end > begin and (begin, kind) != (previous[1], previous[2])
                    previous = begin, end, kind
                    for t in range(begin, end):
                        first, last = k0 + t * spans.kv_tile, k0 + (t + 1) * spans.kv_tile
                        part = allowed[b, h, q0:q1, first:min(last, k1)]
                        assert part.size and part.any()
                        full, holds = part.all() and last <= k1, same[b, h, q0:q1, first:min(last, k1)].all()
                        assert kind == (Kind.FULL if full else INSIDE if holds else Kind.PARTIAL), (b, h, i, t)
                        seen[q0:q1, first:min(last, k1)] = True
            assert not (allowed[b, h] & ~seen).any()


@pytest.mark.parametrize("name", MASKS)
def test_tiles_and_kinds_are_those_of_the_elements(name):
    mask_mod, B, q_len, kv_len, by_document = MASKS[name]
    H = 2 if name == "per head" else 1
    spans = create_block_mask(mask_mod, B, H, q_len, kv_len).work_spans(Q_TILE, KV_TILE)
    assert spans.by_document is by_document
    shape = spans.Bm, spans.Hm, q_len, kv_len
    check(spans, dense(mask_mod, *shape), same_label(name, *shape))


@pytest.mark.parametrize("seed", range(4))
def test_random_lengths(seed):
    ids = labels(ragged(seed, 40, (4, 40, 100, 300)[seed]))
    mask_mod = document(ids, more=causal)
    spans = create_block_mask(mask_mod, 1, 1, len(ids), len(ids)).work_spans(Q_TILE, KV_TILE)
    check(spans, dense(mask_mod, 1, 1, len(ids), len(ids)), dense(document(ids), 1, 1, len(ids), len(ids)))


def test_documents_with_a_table_of_kept_tiles():
    kept = torch.rand(1, 1, -(-N // 64), -(-N // 64), generator=torch.Generator().manual_seed(0)) < 0.6
    mask = block_mask_from_tiles(kept, N, N, 64, document(UNEVEN, more=causal))
    allowed = dense(document(UNEVEN, more=causal), 1, 1, N, N) & kept.repeat_interleave(64, 2).repeat_interleave(64, 3)[
        :, :, :N, :N].numpy()
    spans = mask.work_spans(Q_TILE, KV_TILE)
    assert spans.by_document
    check(spans, allowed, dense(document(UNEVEN), 1, 1, N, N))


def tiles_of_varlen(lengths, q_tile, kv_tile) -> int:
    return sum(-(-min(n, first + q_tile) // kv_tile) for n in lengths for first in range(0, n, q_tile))


def test_ragged_documents_cost_no_more_tiles_than_variable_length_calls():
    lengths = (349, 258, 3417, 1107, 2420, 2330, 482, 936, 3589, 452, 197, 847)
    mask = create_block_mask(document(labels(lengths), more=causal), 1, 1, sum(lengths), sum(lengths))
    counts = mask.work_spans(128, 128).counts()
    assert sum(counts.values()) == tiles_of_varlen(lengths, 128, 128) == 1337
    assert counts[INSIDE] == sum(-(-n // 128) for n in lengths) and counts[Kind.PARTIAL] == 0
    on_the_grid = mask.spans(128, 128).counts()
    assert on_the_grid[Kind.PARTIAL] + on_the_grid[Kind.FULL] == 1396


def test_short_documents_share_work_tiles():
    lengths = ragged(5, 1000, 33)
    mask = create_block_mask(document(labels(lengths), more=causal), 1, 1, sum(lengths), sum(lengths))
    spans = mask.work_spans(128, 128)
    assert spans.by_document and int(spans.present.sum()) < 1.2 * sum(lengths) / 128
    assert len(spans.runs) == int(spans.present.sum())


def test_masks_without_labels_stay_on_the_grid():
    mask = create_block_mask(mods.causal_mask, 1, 1, 300, 300)
    assert mask.work_spans(Q_TILE, KV_TILE) is mask.kept_spans(Q_TILE, KV_TILE, device="cpu")


# Beside an equality of labels: what bands and rectangles take, and ("every third key", "by parity") what is refined.
OTHERS = {
    "alone": lambda x, n: lambda b, h, q, kv: kv >= 0,
    "causal": lambda x, n: causal,
    "window": lambda x, n: lambda b, h, q, kv: (q >= kv) & (q - kv < 1 + x % 70),
    "ahead": lambda x, n: lambda b, h, q, kv: kv - q <= x % 50 - 20,
    "first keys": lambda x, n: lambda b, h, q, kv: kv < x % n,
    "a batch each": lambda x, n: lambda b, h, q, kv: q - kv >= x % 60 * b,
    "or near": lambda x, n: lambda b, h, q, kv: (q >= kv) | ((q - kv).abs() < x % 30),
    "every third key": lambda x, n: lambda b, h, q, kv: (q >= kv) & (kv % 3 != x % 3),
    "by parity": lambda x, n: lambda b, h, q, kv: (q + kv) % 2 == x % 2,
}


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(sorted(OTHERS)), st.integers(40, 300),
       st.sampled_from([(16, 16), (32, 16), (48, 20), (16, 64)]), st.sampled_from(["coming back", "rising", "two captures"]))
def test_any_labels_and_tiles(data, name, n, tiles, how):
    sizes = st.lists(st.sampled_from([1, 3, 17, 40, 64, 16, 90]), min_size=8, max_size=20)

    def drawn():
        lengths = data.draw(sizes)
        names = torch.arange(len(lengths)) if how == "rising" else torch.tensor([data.draw(st.integers(0, 4)) for _ in lengths])
        return torch.nn.functional.pad(torch.repeat_interleave(names, torch.tensor(lengths)), (0, n), value=7)[:n].int()

    doc = drawn()
    other = drawn() if how == "two captures" else doc
    more, B = OTHERS[name](data.draw(st.integers(0, 1000)), n), 2 if name == "a batch each" else 1
    mask_mod = document(doc, other, more)
    spans = create_block_mask(mask_mod, B, 1, n, n).work_spans(*tiles)
    check(spans, dense(mask_mod, B, 1, n, n), dense(document(doc, other), B, 1, n, n))


def test_labels_that_come_back_take_no_look_at_pairs_of_tiles(monkeypatch):
    monkeypatch.setattr(work_spans, "walk", lambda *_: pytest.fail("refined"))
    doc = torch.randint(0, 30, (120,), generator=torch.Generator().manual_seed(0)).repeat_interleave(40)
    mask_mod = document(doc, more=causal)
    for tiles in ((64, 64), (96, 40)):
        spans = create_block_mask(mask_mod, 1, 1, len(doc), len(doc)).work_spans(*tiles)
        check(spans, dense(mask_mod, 1, 1, len(doc), len(doc)), dense(document(doc), 1, 1, len(doc), len(doc)))
