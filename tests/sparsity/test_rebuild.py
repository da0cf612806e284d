"""Spans rebuilt in place, in buffers of fixed size."""
import pytest
import torch

from flexfa4 import create_block_mask, mods
from flexfa4.errors import ShapeError


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


@pytest.mark.gpu
def test_inside_a_cuda_graph():
    labels = torch.zeros(1024, dtype=torch.int64, device="cuda")
    mask = create_block_mask(mods.document_causal(labels), 1, 1, 1024, 1024)
    fixed = mask.reserve(200)
    mask.rebuild_into(fixed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mask.rebuild_into(fixed)
    labels.copy_(torch.arange(1024, device="cuda") // 100)
    graph.replay()
    fixed.check()
    expected = mask.resize(1024, 1024).spans()
    assert torch.equal(fixed.runs[:len(expected.runs)], expected.runs) and torch.equal(fixed.row_ptr, expected.row_ptr)
