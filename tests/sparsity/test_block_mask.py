"""BlockMask: laziness, freshness, errors and their wording, pictures, masks given as data."""
import numpy as np
import pytest
import torch

from flexfa4 import BlockMask, and_masks, block_mask_from_tiles, create_block_mask, mods, not_mask, or_masks
from flexfa4.errors import LookupOutOfRange, ShapeError, StaleMaskError, TraceError
from flexfa4.sparsity import Kind
from tests.sparsity.dense import check_spans, dense, kinds


def test_spans_are_built_once():
    mask = create_block_mask(mods.causal_mask, None, None, 1000, 1000)
    assert mask.shape == (1, 1, 1000, 1000)
    assert mask.spans(128, 64) is mask.spans(128, 64)
    assert mask.spans(128, 64) is not mask.spans(64, 128)


def test_causal_at_a_million_tokens_is_two_runs_a_row():
    spans = create_block_mask(mods.causal_mask, 1, 1, 1 << 20, 1 << 20).spans()
    assert len(spans.runs) == 2 * 8192 - 1 and spans.nbytes < 256 * 1024
    assert spans.row(0, 0, 0) == [(0, 1, Kind.PARTIAL)]
    assert spans.row(0, 0, 8191) == [(0, 8191, Kind.FULL), (8191, 8192, Kind.PARTIAL)]


def test_unequal_lengths_and_a_ragged_end():
    mask = create_block_mask(mods.causal_bottom_right(130, 1000), 1, 1, 130, 1000)
    check_spans(mask.spans(64, 192), kinds(dense(mask.mask_mod, 1, 1, 130, 1000), 64, 192))
    everything = create_block_mask(lambda b, h, q, kv: kv >= 0, 1, 1, 130, 1000)
    assert everything.spans(128, 128).runs.tolist() == [[0, 8, 2], [0, 8, 2]], "a ragged last tile is FULL"


def test_a_changed_capture_is_seen():
    window = torch.tensor(10)
    labels = torch.zeros(300, dtype=torch.int64)

    def mask_mod(b, h, q, kv):
        return (q - kv < window) & (labels[q] == labels[kv])

    mask = create_block_mask(mask_mod, 1, 1, 300, 300)
    for change in (lambda: None, lambda: window.fill_(200), lambda: labels[100:].fill_(1),
                   lambda: labels.copy_(torch.arange(300) // 50)):
        change()
        mask.check_fresh()
        expected = dense(mask_mod, 1, 1, 300, 300)
        check_spans(mask.spans(64, 64), kinds(expected, 64, 64))
        assert torch.equal(mask.to_dense(), expected)


def test_an_unchanged_mask_keeps_its_spans():
    labels = torch.arange(300) // 70
    mask = create_block_mask(mods.document_mask(labels), 1, 1, 300, 300)
    spans = mask.spans()
    mask.check_fresh()
    assert mask.spans() is spans


def test_a_changed_number_or_another_tensor_is_seen():
    state = {"window": 10, "labels": torch.zeros(300, dtype=torch.int64)}

    def make():
        window, labels = state["window"], state["labels"]
        return lambda b, h, q, kv: (q - kv < window) & (labels[q] == labels[kv])

    class Mod:
        def __init__(self):
            self.inner = make()

        def __call__(self, b, h, q, kv):
            return self.inner(b, h, q, kv)

    mod = Mod()
    mask = create_block_mask(mod, 1, 1, 300, 300)
    before = mask.spans(64, 64).states()
    state["window"] = 200
    mod.inner = make()
    mask.check_fresh()
    assert not torch.equal(mask.spans(64, 64).states(), before)
    check_spans(mask.spans(64, 64), kinds(dense(mod, 1, 1, 300, 300), 64, 64))


@pytest.mark.parametrize("change", ["in place", "another tensor"])
def test_every_reading_sees_a_change(change):
    held = {"labels": torch.arange(256) // 64}

    def make():
        labels = held["labels"]

        def same(b, h, q, kv):
            return labels[q] == labels[kv]

        def change_it():
            nonlocal labels
            labels = torch.zeros_like(labels)
        return same, change_it

    function, rebind = make()
    mask = create_block_mask(function, 1, 1, 256, 256)
    readings = {
        "spans": lambda: mask.spans(64, 64).counts()[Kind.FULL] == 16,
        "transposed": lambda: mask.spans(64, 64, True).counts()[Kind.FULL] == 16,
        "to_dense": lambda: bool(mask.to_dense().all()),
        "resize": lambda: bool(mask.resize(128, 128).to_dense().all()),
        "sparsity": lambda: mask.sparsity() == 0,
        "repr": lambda: "100.00% full" in repr(mask),
        "to_torch": lambda: int(mask.to_torch(64).full_kv_num_blocks.sum()) == 16,
        "rebuild_into": lambda: _rebuilt(mask) == 16,
    }
    assert [name for name, reading in readings.items() if reading()] == []
    if change == "in place":
        held["labels"].fill_(0)
    else:
        rebind()
    for name, reading in readings.items():
        assert reading(), name
        if change == "in place":                      # each reading is to see it by itself
            held["labels"].copy_(torch.arange(256) // 64)
            assert not reading(), name
            held["labels"].fill_(0)


def _rebuilt(mask) -> int:
    fixed = mask.reserve(64)
    found = fixed.kept_spans(64, 64)
    mask.rebuild_into(fixed)
    runs = found.runs[:found.row_ptr[-1]]
    return int((runs[:, 1] - runs[:, 0])[runs[:, 2] == Kind.FULL].sum())


def test_captures_that_moved_away():
    class Mod:
        def __init__(self):
            self.table = torch.zeros(64, dtype=torch.int64)

        def __call__(self, b, h, q, kv):
            return self.table[q] == self.table[kv]

    mod = Mod()
    mask = create_block_mask(mod, 1, 1, 64, 64)
    mod.table = torch.zeros(64, dtype=torch.int64, device="meta")
    with pytest.raises(StaleMaskError, match="moved to meta.*made on cpu.*create_block_mask again"):
        mask.check_fresh()


def test_resize():
    mask = create_block_mask(mods.causal_mask, 2, 3, 100, 100)
    assert mask.resize(300, 200).shape == (2, 3, 300, 200)
    check_spans(mask.resize(300, 200).spans(64, 64), kinds(dense(mods.causal_mask, 1, 1, 300, 200), 64, 64))
    with pytest.raises(ShapeError, match="table of tiles for Q_LEN=128, KV_LEN=128.*block_mask_from_tiles"):
        block_mask_from_tiles(torch.ones(2, 2, dtype=torch.bool), 128, 128).resize(256, 256)


def test_lengths_stay():
    mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 100, 100)
    with pytest.raises(AttributeError, match="shape"):
        mask.shape = (1, 1, 50, 50)


def test_lookup_past_a_capture_names_it():
    table = torch.zeros(100, dtype=torch.bool)

    def reads_past(b, h, q, kv):
        return table[kv]

    with pytest.raises(LookupOutOfRange, match=r"test_block_mask.py:\d+: .*reads_past looks up table .*100"):
        create_block_mask(reads_past, 1, 1, 128, 300).spans()
    with pytest.raises(LookupOutOfRange, match="table"):
        create_block_mask(reads_past, 1, 1, 128, 300).to_dense()


@pytest.mark.parametrize("tile", [32, 128])
def test_a_guarded_lookup_is_fine(tile):
    table = torch.arange(100) % 3 > 0
    for mask_mod in (lambda b, h, q, kv: (kv < 100) & table[kv], lambda b, h, q, kv: torch.where(kv < 100, table[kv], q > kv),
                     lambda b, h, q, kv: (kv >= 100) | table[kv]):
        mask = create_block_mask(mask_mod, 1, 1, 130, 300)
        padded = torch.cat([table, torch.zeros(200, dtype=torch.bool)])
        reference = {0: lambda b, h, q, kv: (kv < 100) & padded[kv],
                     1: lambda b, h, q, kv: torch.where(kv < 100, padded[kv], q > kv),
                     2: lambda b, h, q, kv: (kv >= 100) | padded[kv]}
        candidates = [kinds(dense(r, 1, 1, 130, 300), tile, tile) for r in reference.values()]
        got = mask.spans(tile, tile).states()
        assert any(torch.equal(got.expand(c.shape), c) for c in candidates)


@pytest.mark.parametrize("arguments, message", [
    ((mods.causal_mask, 1, 1, -1, 10), "Q_LEN=-1: expected a whole number of at least 0"),
    ((mods.causal_mask, 1, 1, 10, -3), "KV_LEN=-3: expected a whole number of at least 0"),
    ((mods.causal_mask, 1, 1, 10, 10.0), "KV_LEN=10.0: expected a whole number of at least 0"),
    ((mods.causal_mask, 1, 0, 10, 10), "H=0: expected a whole number of at least 1 or None"),
    ((mods.causal_mask, 1, True, 10, 10), "H=True: expected a whole number of at least 1 or None"),
    ((torch.ones(3, 3), 1, 1, 10, 10), r"mask_mod is Tensor: expected a function \(b, h, q, kv\) -> bool"),
])
def test_errors_of_create_block_mask(arguments, message):
    with pytest.raises(ShapeError, match=message):
        create_block_mask(*arguments)


def test_errors_of_devices():
    table = torch.zeros(10, device="meta")
    other = torch.zeros(10)
    with pytest.raises(ShapeError, match="captures tensors on meta, and device=cpu was asked for"):
        create_block_mask(lambda b, h, q, kv: table[q] > 0, 1, 1, 10, 10, device="cpu")
    with pytest.raises(ShapeError, match="captures tensors on cpu and meta"):
        create_block_mask(lambda b, h, q, kv: table[q] > other[kv], 1, 1, 10, 10)


def test_a_mask_that_is_no_mask():
    with pytest.raises(TraceError):
        create_block_mask(lambda b, h, q, kv: q - kv, 1, 1, 10, 10)


def test_composition():
    a, b = mods.causal_mask, mods.sliding_window(20)
    grid = dense(a, 1, 1, 90, 90), dense(b, 1, 1, 90, 90)
    assert torch.equal(create_block_mask(and_masks(a, b), 1, 1, 90, 90).to_dense(), grid[0] & grid[1])
    assert torch.equal(create_block_mask(or_masks(a, not_mask(b)), 1, 1, 90, 90).to_dense(), grid[0] | ~grid[1])
    with pytest.raises(TypeError, match="and_masks.* got no masks"):
        and_masks()
    with pytest.raises(TypeError, match="or_masks: argument 1 is BlockMask.*mask.mask_mod"):
        or_masks(a, create_block_mask(a, 1, 1, 8, 8))


def test_printed_form():
    text = repr(create_block_mask(mods.causal_mask, 2, 3, 1024, 1024))
    assert "causal_mask" in text and "B=2, H=3, Q_LEN=1024, KV_LEN=1024" in text and "one mask for all" in text
    assert "43.75% full, 12.50% partial, 43.75% empty" in text
    per_head = repr(create_block_mask(lambda b, h, q, kv: q - kv < h, 2, 3, 1024, 1024))
    assert "one mask per head" in per_head
    assert create_block_mask(mods.causal_mask, 2, 3, 1024, 1024).sparsity() == 43.75


def test_picture(tmp_path):
    path = tmp_path / "tiles.png"
    create_block_mask(mods.sliding_window(100), 1, 1, 1000, 1000).picture(str(path))
    assert path.read_bytes()[:4] == b"\x89PNG"


def random_tiles(*shape, share=0.3, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def spread(tiles, tile, q_len, kv_len):
    """The tiles as a dense mask."""
    return tiles.repeat_interleave(tile[0], -2).repeat_interleave(tile[1], -1)[..., :q_len, :kv_len]


@pytest.mark.parametrize("tile", [(64, 64), (128, 128), (32, 96), (100, 17)], ids=str)
@pytest.mark.parametrize("span_tile", [(64, 64), (128, 128), (192, 64)], ids=str)
def test_masks_given_as_data(tile, span_tile):
    q_len, kv_len = 700, 501
    tiles = random_tiles(2, 3, -(-q_len // tile[0]), -(-kv_len // tile[1]), share=0.6)
    tiles[:, :, :3] = True
    expected = spread(tiles, tile, q_len, kv_len)
    mask = block_mask_from_tiles(tiles, q_len, kv_len, tile)
    assert mask.shape == (2, 3, q_len, kv_len)
    assert torch.equal(mask.to_dense(), expected)
    for transposed in (False, True):
        check_spans(mask.spans(*span_tile, transposed=transposed), kinds(expected, *span_tile))


@pytest.mark.parametrize("span_tile", [(64, 64), (128, 192)], ids=str)
def test_data_and_a_function(span_tile):
    q_len, kv_len = 700, 700
    tiles = random_tiles(2, 3, 11, 11, share=0.5)
    for mask_mod in (mods.causal_mask, lambda b, h, q, kv: (q >= kv) & (q - kv < 100 * (h + 1) + b)):
        expected = spread(tiles, (64, 64), q_len, kv_len) & dense(mask_mod, 2, 3, q_len, kv_len)
        mask = block_mask_from_tiles(tiles, q_len, kv_len, 64, mask_mod)
        assert torch.equal(mask.to_dense(), expected)
        for transposed in (False, True):
            check_spans(mask.spans(*span_tile, transposed=transposed), kinds(expected, *span_tile))


def test_data_as_indices():
    index = torch.tensor([[2, 0, -1], [1, -1, -1], [0, 1, 2]])
    mask = block_mask_from_tiles(index, 300, 300, 128)
    assert mask.spans(128, 128).states()[0, 0].tolist() == [[2, 0, 2], [0, 2, 0], [2, 2, 2]]


@pytest.mark.parametrize("arguments, message", [
    ((torch.ones(3, 2, dtype=torch.bool), 300, 300, 128), "tiles has 2 key tiles; KV_LEN=300 in tiles of 128 needs 3"),
    ((torch.ones(2, 3, dtype=torch.bool), 300, 300, 128), "tiles has 2 query tiles; Q_LEN=300 in tiles of 128 needs 3"),
    ((torch.ones(3, 3), 300, 300, 128), "tiles is torch.float32: expected bool .* or integer"),
    ((torch.full((3, 1), 3), 300, 300, 128), "tiles holds key tile 3; there are 3"),
    ((torch.ones(3, dtype=torch.bool), 300, 300, 128), "tiles has shape"),
    (([[True]], 100, 100, 128), "tiles is list"),
    ((torch.ones(3, 3, dtype=torch.bool), 300, 300, 0), "tile=0"),
    ((torch.ones(3, 3, dtype=torch.bool), 0, 300, 128), "q_len=0"),
    ((torch.ones(3, 3, dtype=torch.bool), 300, 300, 128, lambda b, h, q, kv: q > h), "depends on the head.*expand"),
])
def test_errors_of_data(arguments, message):
    with pytest.raises(ShapeError, match=message):
        block_mask_from_tiles(*arguments)


def test_is_a_public_name():
    assert BlockMask.__module__.startswith("flexfa4.sparsity")


def test_spans_print_in_one_line():
    spans = create_block_mask(lambda b, h, q, kv: kv <= q, None, None, 1000, 1000).spans(128, 64)
    assert repr(spans) == ("Spans(1,000 x 1,000 in tiles of 128 x 64, Bm=1, Hm=1, 56 empty, 16 partial, 56 full; 15 runs, cpu)")


def test_lengths_may_be_numbers_of_numpy():
    """As lengths read out of an array are."""
    mask = create_block_mask(lambda b, h, q, kv: q >= kv, np.int64(2), np.int32(3), np.int64(20), np.uint8(30))
    assert mask.shape == (2, 3, 20, 30) and {type(n) for n in mask.shape} == {int}
    assert mask.resize(np.int64(7), np.int16(9)).shape == (2, 3, 7, 9)
    assert block_mask_from_tiles(torch.ones(2, 2, dtype=torch.bool), np.int64(30), np.int64(20), 16).shape == (1, 1, 30, 20)
    for wrong in (np.float64(20), np.bool_(True)):
        with pytest.raises(ShapeError, match="Q_LEN"):
            create_block_mask(lambda b, h, q, kv: q >= kv, None, None, wrong, 30)
