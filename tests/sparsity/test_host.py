"""Captures on a device, as they come to the host: the packing and the torch code that a GPU runs, on the CPU."""
import pytest
import torch

from flexfa4 import mods
from flexfa4.facts.device_labels import HostTensors, device_runs, label_captures, runs_of_device
from flexfa4.sparsity import host
from flexfa4.sparsity.refine import Refiner
from flexfa4.sparsity.spans import Tiling
from flexfa4.trace import bind
from tests.sparsity.dense import check_spans, dense, kinds
from tests.sparsity.test_exact import documents


@pytest.fixture
def waits(monkeypatch):
    """Bytes that each wait is for."""
    found, plain = [], host.fetch
    monkeypatch.setattr(host, "fetch", lambda parts: found.append(sum(p.nbytes for p in parts)) or plain(parts))
    return found


def moved(bound):
    return host.on_host(bound, here=lambda t: False)


def test_captures_travel_together(waits):
    tensors = (torch.arange(5, dtype=torch.int32), torch.rand(3, 4, dtype=torch.float64).T, torch.tensor([True, False, True]),
               torch.tensor(7))
    a, b, c, d = tensors
    bound = bind(lambda bb, h, q, kv: (a[q] > 0) & (b[q, kv] > 0.5) & c[q] & (q < d), "mask")
    found = moved(bound)
    assert len(bound.tensors) == len(found.tensors) == 4 and waits == [sum(t.nbytes for t in tensors)]
    assert all(torch.equal(x, y) for x, y in zip(bound.tensors, found.tensors))
    assert all(x.data_ptr() != y.data_ptr() for x, y in zip(bound.tensors, found.tensors))


@pytest.mark.parametrize("order", ["rising", "shuffled", "recurring"])
@pytest.mark.parametrize("make", [mods.document_mask, mods.document_causal])
def test_labels_travel_as_runs(order, make, waits):
    """Once, also where a label comes back, and where tiles have to be settled element by element."""
    n = 9001
    labels = documents(n, 40, 2, order)
    bound, tiling = bind(make(labels), "mask"), Tiling(100, 37, 700, 650)
    found = moved(bound)
    assert len(waits) == 1 and waits[0] < labels.nbytes / 4 * 3.2
    spans = Refiner(found, tiling, 1 << 26).spans(False)
    check_spans(spans, kinds(dense(make(labels), 1, 1, 700, 650), 100, 37))
    assert torch.equal(found.tensors[0], labels) and len(waits) == 1


def test_labels_of_each_batch(waits):
    ids = torch.stack([documents(3000, 5, seed, "shuffled") for seed in range(3)])
    mask_mod = mods.document_causal(ids)
    found = moved(bind(mask_mod, "mask"))
    assert len(waits) == 1
    spans = Refiner(found, Tiling(64, 64, 600, 600, 3), 0).spans(True)
    check = spans.states()
    assert torch.equal(check, kinds(dense(mask_mod, 3, 1, 600, 600), 64, 64))
    assert torch.equal(found.tensors[0], ids)


@pytest.mark.parametrize("length", [1, 3, 15])
def test_labels_of_too_many_runs_travel_again_as_they_are(length, waits):
    labels = torch.arange(9000) // length
    found = moved(bind(mods.document_mask(labels), "mask"))
    assert len(waits) == 2 and waits[1] == labels.nbytes and torch.equal(found.tensors[0], labels)


def test_runs_and_back():
    labels = torch.zeros(2, 5000, dtype=torch.int16)
    labels[0, 1200:], labels[1, :4999] = 5, 5
    labels[1, 4999] = 7
    parts = [part.numpy() for part in device_runs(labels)]
    runs = runs_of_device(*parts, labels.shape)
    assert (runs.starts.tolist(), runs.values.tolist()) == ([0, 1200, 5000, 9999], [0, 5, 5, 7])
    assert torch.equal(HostTensors([(runs, labels.shape)])[0], labels)
    assert device_runs(labels[0, :4096]) is None                # few labels are copied as they are


def test_only_labels_count_as_labels():
    table, limits = torch.zeros(50, 50, dtype=torch.int32), torch.zeros(50, dtype=torch.int32)
    mask = bind(lambda b, h, q, kv: (table[b, q] == table[b, kv]) & (limits[q] > kv) & (limits[q] == 3), "mask")
    assert [mask.tensors[i] is table for i in label_captures(mask.graph)] == [True]
    assert not label_captures(bind(lambda b, h, q, kv: table[q, b] == table[kv, b], "mask").graph)


@pytest.mark.parametrize("rows", [1, 7, 8])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_what_is_sent_arrives(rows, dtype):
    row_ptr = torch.arange(rows + 1, dtype=torch.int32) * 3
    runs = torch.arange(9 * rows, dtype=dtype).reshape(-1, 3)
    found = host.send(row_ptr.numpy(), runs.numpy(), torch.device("cpu"))
    assert torch.equal(found[0], row_ptr) and torch.equal(found[1], runs) and found[1].dtype is dtype
    assert found[1].is_contiguous() and found[1].data_ptr() % 16 == 0
