"""Masks of captures on a GPU: the spans of the same mask on the CPU, with one wait."""
import pytest
import torch

from flexfa4 import create_block_mask, mods
from flexfa4.sparsity import host
from flexfa4.sparsity.spans import Spans
from tests.sparsity.moved_captures import CASES
from tests.sparsity.test_exact import documents
from tests.sparsity.test_host import same, ways

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("order", ["rising", "shuffled", "recurring"])
@pytest.mark.parametrize("make", [mods.document_mask, mods.document_causal])
def test_same_spans_as_on_the_host(order, make):
    labels = documents(5000, 20, 1, order)
    here = create_block_mask(make(labels), 1, 1, 5000, 5000).spans(128, 128)
    there = create_block_mask(make(labels.cuda()), 1, 1, 5000, 5000).spans(128, 128)
    assert there.device.type == "cuda"
    assert torch.equal(there.row_ptr.cpu(), here.row_ptr) and torch.equal(there.compact.cpu(), here.compact)


@pytest.fixture
def waits(monkeypatch):
    """Bytes of each wait of a build, outside of which an operation that waits for the device raises."""
    found, plain = [], host.Copies.wait

    def wait(copies):
        found.append(sum(t.nbytes for t in copies.tensors))
        torch.cuda.set_sync_debug_mode("default")
        try:
            return plain(copies)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    monkeypatch.setattr(host.Copies, "wait", wait)
    yield found
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", CASES)
def test_one_wait_a_build(name, waits):
    want = {way: make() for way, make in ways(CASES[name]("cpu")).items()}
    mask = CASES[name]("cuda")
    captured = any(t.device.type == "cuda" for t in mask.bound.tensors)
    for way, make in ways(mask).items():
        if way == "dense":                            # whose result is copied to the device, with a wait
            continue
        waits.clear()
        torch.cuda.set_sync_debug_mode("error")
        found = make()
        torch.cuda.set_sync_debug_mode("default")
        assert len(waits) == captured, way
        assert same(found.to("cpu") if isinstance(found, Spans) else found, want[way]), way


def test_sees_a_wait(waits):
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchronizing"):
        torch.ones(3, device="cuda").sum().item()
