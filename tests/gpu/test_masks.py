"""Masks of captures on a GPU: the spans of the same mask on the CPU, with one wait."""
import pytest
import torch

from flexfa4 import create_block_mask, mods
from flexfa4.sparsity import build
from tests.sparsity.test_exact import documents

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("order", ["rising", "shuffled", "recurring"])
@pytest.mark.parametrize("make", [mods.document_mask, mods.document_causal])
def test_same_spans_as_on_the_host(order, make):
    labels = documents(5000, 20, 1, order)
    here = create_block_mask(make(labels), 1, 1, 5000, 5000).spans(128, 128)
    there = create_block_mask(make(labels.cuda()), 1, 1, 5000, 5000).spans(128, 128)
    assert there.device.type == "cuda"
    assert torch.equal(there.row_ptr.cpu(), here.row_ptr) and torch.equal(there.compact.cpu(), here.compact)


def test_documents_wait_once(monkeypatch):
    """Labels stay where they are: only numbers a tile are copied."""
    copied = []
    plain = torch.Tensor.cpu

    def counted(self, *args, **kwargs):
        copied.append(self.numel())
        return plain(self, *args, **kwargs)

    labels = documents(50000, 40).cuda()
    mask = create_block_mask(mods.document_causal(labels), 1, 1, 50000, 50000)
    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    monkeypatch.setattr(build, "on_host", None)                # would raise where it is called
    mask.spans(128, 128)
    assert len(copied) == 1 and copied[0] < 1000
