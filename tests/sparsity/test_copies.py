"""A BlockMask that is copied or sent to another process means the same, and follows its own captures from then on."""
import copy
import pickle

import pytest
import torch

from flexfa4 import block_mask_from_tiles, create_block_mask, flex_attention, mods, reference


class Reach:
    """A mask as an object: it can be pickled, tensors and all."""

    def __init__(self, reach):
        self.reach = reach

    def __call__(self, b, h, q, kv):
        return (kv <= q) & (q - kv < self.reach[h])


TILES = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0]], dtype=torch.bool)
MASKS = {
    "function": lambda: create_block_mask(mods.causal_mask, None, None, 41, 41),
    "object with a tensor": lambda: create_block_mask(Reach(torch.tensor([3, 20])), None, 2, 41, 41),
    "data": lambda: block_mask_from_tiles(TILES, 41, 41, tile=16),
    "data and a function": lambda: block_mask_from_tiles(TILES, 41, 41, tile=16, mask_mod=mods.causal_mask),
}
COPIES = {"pickle": lambda mask: pickle.loads(pickle.dumps(mask)), "deepcopy": copy.deepcopy, "copy": copy.copy}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", MASKS)
def test_a_copy_means_the_same(name, how):
    mask = MASKS[name]()
    q = torch.randn(1, 2, 41, 8, dtype=torch.float64)
    want, _ = reference.attention(q, q, q, mask_mod=mask.mask_mod)
    flex_attention(q, q, q, block_mask=mask)
    other = COPIES[how](mask)
    assert other.shape == mask.shape and other.device == mask.device and torch.equal(other.to_dense(), mask.to_dense())
    torch.testing.assert_close(flex_attention(q, q, q, block_mask=other), want)


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_a_copy_follows_its_own_captures(how):
    mask = create_block_mask(Reach(torch.tensor([3, 20])), None, 2, 41, 41)
    before = mask.to_dense().clone()
    other = COPIES[how](mask)
    other.mask_mod.reach.add_(5)
    assert torch.equal(mask.to_dense(), before)
    assert torch.equal(other.to_dense(), reference.dense_mask(Reach(torch.tensor([8, 25])), (1, 2, 41, 41)))


def test_tiles_of_a_copy_are_its_own():
    mask = block_mask_from_tiles(TILES.clone(), 41, 41, tile=16)
    before = mask.to_dense().clone()
    other = copy.deepcopy(mask)
    other._data.kept.fill_(True)
    assert bool(other.to_dense().all()) and int(other.spans(16, 16).states().min()) == 2
    assert torch.equal(mask.to_dense(), before)
