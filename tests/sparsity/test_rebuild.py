"""Spans rebuilt in place, in buffers of fixed size."""
import copy

import pytest
import torch

from flexfa4 import block_mask_from_tiles, create_block_mask, mods, not_mask
from flexfa4.errors import ShapeError
from flexfa4.sparsity import fixed as fixed_masks
from flexfa4.sparsity import rebuild as rebuilds
from flexfa4.sparsity.device_tiles import device_states, fits
from flexfa4.sparsity.halves import halved
from flexfa4.sparsity.spans import Kind, Tiling
from flexfa4.trace import bind
from tests.sparsity.dense import dense, kinds
from tests.sparsity.test_exact import documents


def same(found, expected, rows: slice = slice(None)) -> bool:
    """Whether buffers hold these spans, in all rows or in some runs of them."""
    runs = found.runs[:len(expected.runs)]
    return torch.equal(found.row_ptr, expected.row_ptr) and torch.equal(runs, expected.runs) and found.halved == expected.halved


@pytest.mark.parametrize("capacity", [None, 200])
@pytest.mark.parametrize("tiles", [(128, 128), (64, 96)], ids=str)
def test_a_rebuild_follows_its_captures(tiles, capacity):
    labels = torch.zeros(2, 500, dtype=torch.int64)
    mask = create_block_mask(mods.document_causal(labels), 2, 3, 500, 500)
    fixed = mask.reserve(capacity)
    found = fixed.spans(*tiles)
    address = found.runs.data_ptr(), found.row_ptr.data_ptr()
    for step in (500, 130, 64, 7):
        labels.copy_((torch.arange(500) // step + torch.tensor([[0], [3]])) % 5)
        mask.rebuild_into(fixed)
        fixed.check()
        expected = mask.spans(*tiles)
        assert same(found, expected) and int(found.needed) == len(expected.runs)
    assert fixed.spans(*tiles) is found and address == (found.runs.data_ptr(), found.row_ptr.data_ptr())


def test_buffers_are_written_where_a_capture_changed_and_only_there(monkeypatch):
    written = []
    plain = fixed_masks.rebuild
    monkeypatch.setattr(fixed_masks, "rebuild", lambda bound, spans: written.append(spans) or plain(bound, spans))
    labels = torch.arange(300) // 100
    mask = create_block_mask(mods.document_mask(labels), 1, 1, 300, 300)
    fixed = mask.reserve()
    for _ in range(2):
        small, large = fixed.spans(32, 32), fixed.spans(64, 64)
    assert written == [small, large]
    labels.fill_(0)
    assert same(fixed.spans(64, 64), mask.spans(64, 64)) and written == [small, large, large]
    mask.rebuild_into(fixed)
    assert written[3:] == [small, large] and same(small, mask.spans(32, 32))


def test_a_capture_is_written_by_itself(monkeypatch):
    """A buffer that was written while a graph was captured holds nothing until the graph is replayed."""
    captures = [None]
    monkeypatch.setattr(fixed_masks, "capture_on", lambda device: captures[0])
    written = []
    monkeypatch.setattr(fixed_masks, "rebuild", lambda bound, spans: written.append(captures[0]))
    labels = torch.arange(300) // 100
    mask = create_block_mask(mods.document_mask(labels), 1, 1, 300, 300)
    fixed = mask.reserve()
    for captures[0] in (7, 7, None, None, 7, 8, 8, None):
        fixed.spans(64, 64)
    assert written == [7, None, 8]
    captures[0] = 9
    mask.rebuild_into(fixed)
    fixed.spans(64, 64)
    labels.fill_(3)                                       # by an operation that is captured too
    fixed.spans(64, 64)
    assert written == [7, None, 8, 9, 9]


@pytest.mark.parametrize("entry", mods.GALLERY, ids=lambda e: e.name)
def test_every_mask_of_the_gallery(entry):
    example = entry(seq_len=330, heads=4, kv_heads=2, batch=2)
    mask_mod = example.make().get("mask_mod")
    if mask_mod is None:
        assert entry.kind != "mask"
        return
    mask = create_block_mask(mask_mod, 2, 4, example.q_len, example.kv_len)
    fixed = mask.reserve()
    assert same(fixed.spans(64, 96), mask.spans(64, 96))
    assert same(fixed.kept_spans(64, 96, halved=True), halved(mask.spans(32, 96)))
    fixed.check()


def test_masks_given_as_data():
    tiles = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.4
    mask = block_mask_from_tiles(tiles, 300, 430, 64, mods.causal_bottom_right(300, 430))
    fixed = mask.reserve()
    for size in ((128, 128), (64, 32)):
        assert same(fixed.spans(*size), mask.spans(*size))


def banded(b, h, q, kv):
    """Rows with gaps, rows without keys, and queries past the last whole tile."""
    return ((q - kv).abs() % 330 < 20) & (q % 400 > 160)


@pytest.mark.parametrize("lengths", [(500, 700), (129, 300), (64, 64)], ids=str)
@pytest.mark.parametrize("name", ["causal", "banded", "by head", "documents"])
def test_halves(name, lengths):
    """Kinds that tell the halves of a tile apart are those found on the host."""
    n = max(lengths)
    mask_mod = dict(causal=mods.causal_mask, banded=banded, documents=mods.document_causal(documents(n, 7)))
    mask = create_block_mask(mask_mod.get(name, MASKS["by head, a table"](n)), 2, 3, *lengths)
    fixed = mask.reserve().kept_spans(64, 48, halved=True)
    assert same(fixed, halved(mask.spans(32, 48)))


def joined(spans, halved: bool) -> list[list[tuple]]:
    """What is expected of each row on an overflow, from its runs."""
    rows = []
    for first, last in zip(spans.row_ptr.tolist(), spans.row_ptr[1:].tolist()):
        runs = spans.runs[first:last].tolist()
        kind = sum(part for part, bits in ((1, 3), (4, 12)) if any(k & bits for *_, k in runs)) if halved else int(Kind.PARTIAL)
        rows.append([(runs[0][0], runs[-1][1], kind)] if runs else [])
    return rows


@pytest.mark.parametrize("in_halves", [False, True])
def test_an_overflow_is_reported_and_keeps_the_mask(in_halves):
    mask = create_block_mask(banded, 1, 1, 1000, 1000)
    expected = halved(mask.spans(64, 64)) if in_halves else mask.spans(128, 64)
    needed = len(expected.runs)
    for capacity in (8, needed - 1, needed):
        fixed = mask.reserve(capacity)
        found = fixed.kept_spans(128, 64, in_halves)
        assert int(found.needed) == needed and len(found.runs) == capacity
        if capacity == needed:
            fixed.check()
            assert same(found, expected)
            continue
        with pytest.raises(ShapeError, match=rf"test_rebuild.*capacity={capacity}, and the mask of banded needs {needed} runs in "
                                             f"tiles of 128 x 64.*expected a capacity of at least {needed}"):
            fixed.check()
        ends = found.row_ptr.tolist()
        runs = [[tuple(run) for run in found.runs[a:b].tolist()] for a, b in zip(ends, ends[1:])]
        assert runs == joined(expected, in_halves)


def test_words_of_errors():
    mask = create_block_mask(mods.causal_mask, 1, 1, 1000, 1000)
    for capacity in (0, -1, 2.0, True, "all"):
        with pytest.raises(ShapeError, match=f"capacity={capacity!r}: expected a positive number of runs, or None"):
            mask.reserve(capacity)
    with pytest.raises(ShapeError, match="capacity=7, and the mask of causal_mask has 8 rows of tiles of 128 x 128: expected at "
                                         "least one run for each, 8, or None"):
        mask.reserve(7).spans()
    with pytest.raises(ShapeError, match="q_tile=0, kv_tile=128: tile sizes are positive"):
        mask.reserve().spans(0)
    other = mask.resize(500, 500)
    with pytest.raises(ShapeError, match="fixed=FixedMask.*expected what reserve.. of this very mask returned"):
        mask.rebuild_into(other.reserve())
    with pytest.raises(ShapeError, match="fixed=3: expected"):
        mask.rebuild_into(3)


def test_copies_have_buffers_of_their_own():
    labels = torch.arange(300) // 100
    mask = create_block_mask(mods.document_mask(labels), 1, 1, 300, 300)
    fixed = mask.reserve(50)
    copied = copy.deepcopy(fixed)
    assert same(copied.spans(64, 64), mask.spans(64, 64)) and copied.capacity == 50
    assert copied.spans(64, 64).runs is not fixed.spans(64, 64).runs and copied.mask is not mask


def test_no_positions():
    mask = create_block_mask(mods.causal_mask, 1, 1, 0, 100)
    fixed = mask.reserve()
    assert fixed.spans().row_ptr.tolist() == [0] and mask.rebuild_into(fixed) is None
    fixed.check()


def test_many_tiles_get_room_for_some_runs_a_row():
    mask = create_block_mask(mods.causal_mask, 1, 1, 10 * (1 << 11), 1 << 15)
    monkey = mask.reserve()
    assert monkey._room(Tiling(10, 1, *mask.shape[2:])) == fixed_masks._ALL_TILES
    assert monkey._room(Tiling(1, 1, *mask.shape[2:])) == max(fixed_masks._ALL_TILES, fixed_masks._RUNS_A_ROW * 20480)


MASKS = {
    "causal": lambda n: mods.causal_mask,
    "window": lambda n: mods.sliding_window(70),
    "sink and window": lambda n: mods.sink_window(4, 50),
    "two-sided": lambda n: lambda b, h, q, kv: (q - kv).abs() <= 40,
    "prefix": lambda n: mods.prefix_lm(n // 3),
    "blocks": lambda n: lambda b, h, q, kv: (q // 37 >= kv // 37) & (kv < n - 5),
    "by head, a table": lambda n: lambda b, h, q, kv: q - kv < SHIFT[h],
    "documents": lambda n: mods.document_mask(documents(n, 7)),
    "documents, causal, any order": lambda n: mods.document_causal(documents(n, 40, 1, "shuffled")),
    "other documents": lambda n: not_mask(mods.document_mask(documents(n, 7))),
    "never": lambda n: lambda b, h, q, kv: (q >= kv) & (q < kv),
    "by batch": lambda n: mods.document_causal(torch.stack([documents(n, 9, seed, "shuffled") for seed in range(2)])),
    "documents that come back": lambda n: mods.document_causal(documents(n, 30) * 7 % 11),
}
SHIFT = torch.tensor([5, 90, 17], dtype=torch.int32)


@pytest.mark.parametrize("tiles", [(16, 16), (32, 24)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_tile_by_tile(name, tiles):
    """With room for twice as many elements as the tiles along both axes have, as if all were evaluated."""
    n = 700
    mask_mod = MASKS[name](n)
    mask = create_block_mask(mask_mod, 2, 3, n, n)
    tiling = Tiling(*tiles, n, n, *mask.mask_shape)
    assert fits(mask.bound, tiling)
    room = 2 * 2 * n * max(tiles) if name != "documents that come back" else n * n
    found = device_states(mask.bound, tiling, torch.device("cpu"), room)
    assert torch.equal(found, kinds(dense(mask_mod, *mask.mask_shape, n, n), *tiles))


def test_what_there_is_no_room_for_stays_partial():
    mask = create_block_mask(MASKS["documents that come back"](700), 1, 1, 700, 700)
    found = device_states(mask.bound, Tiling(16, 16, 700, 700), torch.device("cpu"), 1)
    wrong = found != mask.spans(16, 16).states()
    assert wrong.any() and (found[wrong] == Kind.PARTIAL).all()


def test_large_masks_are_taken_tile_by_tile(monkeypatch):
    monkeypatch.setattr(rebuilds, "evaluate", None)           # would raise where every element is evaluated
    mask = create_block_mask(mods.document_causal(documents(5000, 20)), 1, 1, 5000, 5000)
    fixed = mask.reserve(400)
    assert same(fixed.spans(), mask.spans())
    fixed.check()


@pytest.mark.parametrize("mask_mod", [
    lambda b, h, q, kv: (q - kv) % 3 == 0,                                       # no comparison of two sides
    lambda b, h, q, kv: q * 0.5 < kv,                                            # NaN, were there one, would hide in a minimum
    lambda b, h, q, kv: q - kv < WIDE[h],                                        # a sum that may wrap around
])
def test_other_masks_are_evaluated(mask_mod):
    assert not fits(bind(mask_mod, "mask"), Tiling(16, 16, 500, 500, 1, 3))


WIDE = torch.tensor([5, 90, 2**62])


@pytest.mark.gpu
@pytest.mark.parametrize("n, capacity, orders", [
    (1024, 200, [torch.arange(1024) // 100]),
    (16384, 2000, [documents(16384, 40, 5, order) for order in ("rising", "shuffled", "recurring")]),
])
def test_inside_a_cuda_graph(n, capacity, orders):
    labels = torch.zeros(n, dtype=torch.int64, device="cuda")
    mask = create_block_mask(mods.document_causal(labels), 1, 1, n, n)
    fixed = mask.reserve(capacity)
    found = fixed.spans()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mask.rebuild_into(fixed)
    for order in orders:
        labels.copy_(order)
        graph.replay()
        fixed.check()
        assert same(found, mask.resize(n, n).spans())
