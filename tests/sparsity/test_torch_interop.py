"""torch's BlockMask, there and back, and what its own create_block_mask says."""
import pytest
import torch
from tests.sparsity.dense import check_spans, dense, kinds
from torch.nn.attention import flex_attention as torch_flex

from flexfa4 import BlockMask, create_block_mask, mods


@pytest.mark.parametrize("mask_mod", [mods.causal_mask, mods.sliding_window(70), lambda b, h, q, kv: (q - kv) * (h + 1) < 300],
                         ids=["causal", "window", "per_head"])
def test_to_torch_is_what_torch_builds(mask_mod):
    ours = create_block_mask(mask_mod, 2, 3, 512, 384).to_torch(128)
    theirs = torch_flex.create_block_mask(mask_mod, 2, 3, 512, 384, device="cpu", BLOCK_SIZE=128)
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert ours.seq_lengths == (512, 384)


@pytest.mark.parametrize("lengths", [(512, 384), (500, 300)])
def test_there_and_back(lengths):
    def mask_mod(b, h, q, kv):
        return (q >= kv) & (q - kv < 50 * (h + 1))

    theirs = torch_flex.create_block_mask(mask_mod, 2, 3, *lengths, device="cpu", BLOCK_SIZE=64)
    back = BlockMask.from_torch(theirs)
    expected = dense(mask_mod, 2, 3, *lengths)
    assert torch.equal(back.to_dense(), expected)
    check_spans(back.spans(128, 64), kinds(expected, 128, 64))


def test_from_torch_keeps_to_its_lists():
    """Blocks in no list are masked whatever the mask_mod says; full blocks are taken whatever it says."""
    num, index = torch.tensor([[[1, 1]]], dtype=torch.int32), torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    full_num, full_index = torch.tensor([[[0, 1]]], dtype=torch.int32), torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)
    theirs = torch_flex.BlockMask.from_kv_blocks(num, index, full_num, full_index, BLOCK_SIZE=128, mask_mod=mods.causal_mask)
    ours = BlockMask.from_torch(theirs).to_dense()[0, 0]
    assert not ours[:128, :128].any(), "in neither list"
    assert not ours[:128, 128:].any(), "partial, and above the diagonal"
    assert ours[128:, :128].all(), "partial, and below the diagonal"
    assert ours[128:, 128:].all(), "full"


def test_a_mask_of_blocks_alone():
    num, index = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    ours = BlockMask.from_torch(torch_flex.BlockMask.from_kv_blocks(num, index, BLOCK_SIZE=128))
    assert ours.spans(128, 128).states().tolist() == [[[[0, 2], [2, 2]]]]
