"""Spans rebuilt in place, in buffers of fixed size."""
import pytest
import torch

from flexfa4 import create_block_mask, mods, not_mask
from flexfa4.errors import ShapeError
from flexfa4.sparsity import rebuild as rebuilds
from flexfa4.sparsity.device_tiles import device_states, fits
from flexfa4.sparsity.spans import Kind, Tiling
from flexfa4.trace import bind
from tests.sparsity.dense import dense, kinds
from tests.sparsity.test_exact import documents


@pytest.mark.parametrize("tiles", [(128, 128), (64, 96)], ids=str)
def test_a_rebuild_follows_its_captures(tiles):
    labels = torch.zeros(2, 500, dtype=torch.int64)
    mask = create_block_mask(mods.document_causal(labels), 2, 3, 500, 500)
    fixed = mask.reserve(200, *tiles)
    address = fixed.runs.data_ptr(), fixed.row_ptr.data_ptr()
    for step in (500, 130, 64, 7):
        labels.copy_((torch.arange(500) // step + torch.tensor([[0], [3]])) % 5)
        mask.rebuild_into(fixed)
        fixed.check()
        mask.check_fresh()
        expected = mask.spans(*tiles)
        assert torch.equal(fixed.row_ptr, expected.row_ptr) and int(fixed.needed) == len(expected.runs)
        assert torch.equal(fixed.runs[:len(expected.runs)], expected.runs)
    assert address == (fixed.runs.data_ptr(), fixed.row_ptr.data_ptr())


def test_overflow_is_reported():
    mask = create_block_mask(mods.causal_mask, 1, 1, 1000, 1000)
    fixed = mask.reserve(4)
    mask.rebuild_into(fixed)
    assert int(fixed.needed) == 15 and int(fixed.row_ptr.max()) == 4
    with pytest.raises(ShapeError, match="needs 15 runs and these buffers hold 4"):
        fixed.check()


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
    mask.rebuild_into(fixed)
    fixed.check()
    expected = mask.spans()
    assert torch.equal(fixed.row_ptr, expected.row_ptr) and torch.equal(fixed.runs[:len(expected.runs)], expected.runs)


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
    mask.rebuild_into(fixed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mask.rebuild_into(fixed)
    for order in orders:
        labels.copy_(order)
        graph.replay()
        fixed.check()
        expected = mask.resize(n, n).spans()
        assert torch.equal(fixed.row_ptr, expected.row_ptr) and torch.equal(fixed.runs[:len(expected.runs)], expected.runs)
