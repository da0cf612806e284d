"""Masks of captures on a GPU: the spans of the same mask on the CPU, with one wait."""
import pytest
import torch

from flexfa4 import create_block_mask, mods
from flexfa4.sparsity import host
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


def watch(monkeypatch) -> list[int]:
    """Bytes of each fetch to come, outside of which an operation that waits for the device raises."""
    copied, plain = [], host.fetch

    def fetch(parts):
        copied.append(sum(part.nbytes for part in parts))
        torch.cuda.set_sync_debug_mode("default")
        try:
            return plain(parts)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    monkeypatch.setattr(host, "fetch", fetch)
    return copied


@pytest.fixture(autouse=True)
def usual_syncs():
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("order", ["rising", "recurring"])
def test_documents_wait_once(order, monkeypatch):
    """Labels stay where they are: only where runs begin is copied, and torch itself waits for nothing."""
    copied = watch(monkeypatch)
    labels = documents(50000, 40, 0, order).cuda()
    mask = create_block_mask(mods.document_causal(labels), 1, 1, 50000, 50000)
    mask.spans(64, 64)
    copied.clear()
    mask.spans(128, 128)
    assert len(copied) == 1 and copied[0] < labels.nbytes / 4


def test_many_kinds_of_captures_wait_once(monkeypatch):
    copied = watch(monkeypatch)
    labels = torch.stack([documents(6000, 9, seed, "recurring") for seed in range(2)])
    limits, last = torch.randint(0, 6000, (6000,)), torch.tensor(5900)

    def build(device):
        ids, ends, end = (t.to(device) for t in (labels, limits, last))
        return create_block_mask(lambda b, h, q, kv: (ids[b, q] == ids[b, kv]) & (kv <= ends[q]) & (kv < end), 2, 1, 6000, 6000)

    here, mask = build("cpu").spans(128, 128), build("cuda")
    there = mask.spans(128, 128)
    torch.cuda.set_sync_debug_mode("default")
    assert len(copied) == 1 and torch.equal(there.compact.cpu(), here.compact)
