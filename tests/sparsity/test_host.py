"""Captures on a device, as they come to the host: the bookkeeping and the torch code that a GPU runs, on the CPU."""
import gc
import weakref

import pytest
import torch

from flexfa4 import mods
from flexfa4.facts.device_labels import LONG, device_runs, label_captures, runs_of_device
from flexfa4.sparsity import block_mask, build, host
from flexfa4.sparsity.refine import Refiner
from flexfa4.sparsity.spans import Tiling
from flexfa4.trace import bind
from tests.sparsity.moved_captures import CASES
from tests.sparsity.dense import check_spans, dense, kinds
from tests.sparsity.test_exact import documents


@pytest.fixture
def waits(monkeypatch):
    """Bytes that each wait is for."""
    found, plain = [], host.Copies.wait
    monkeypatch.setattr(host.Copies, "wait", lambda self: found.append(sum(t.nbytes for t in self.tensors)) or plain(self))
    return found


def moved(bound):
    return host.on_host(bound, here=lambda t: False)


def ways(mask) -> dict:
    """Everything that is built of a mask, by name: what to call."""
    return {"spans": lambda: mask.spans(128, 128), "transposed": lambda: mask.spans(64, 96, transposed=True),
            "work": lambda: mask.work_spans(128, 64), "halved": lambda: mask.work_spans(128, 64, halved=True),
            "dense": mask.to_dense}


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return type(a) is type(b) and all(torch.equal(getattr(a, n), getattr(b, n)) for n in ("row_ptr", "runs", "tiles")
                                      if hasattr(a, n))


@pytest.mark.parametrize("name", CASES)
def test_one_wait_a_build(name, waits, monkeypatch):
    """The device of this test is a host whose tensors lose what they hold as soon as they were copied: what a build reads of them
    later shows in what it makes."""
    want = {way: make() for way, make in ways(CASES[name]("cpu")).items()}
    mask, kept = CASES[name]("cpu"), []

    def copied(bound):
        found = moved(bound)
        if not kept:
            kept.extend((t.data, t.data.clone()) for t in bound.tensors)
            for t, _ in kept:
                t.copy_(torch.zeros((), dtype=t.dtype))
        return found

    for part in (build, block_mask):
        monkeypatch.setattr(part, "on_host", copied)
    for way, make in ways(mask).items():
        waits.clear()
        found = make()
        for t, held in kept:
            t.copy_(held)
        assert len(waits) == (1 if kept else 0) and same(found, want[way]), way
        kept.clear()


@pytest.mark.parametrize("name", sorted(set(CASES) - {example.name for example in mods.GALLERY}))
def test_copies_are_given_back_at_once(name, monkeypatch):
    """Not when Python's collector comes: until then every build would take new pinned memory, and the driver's time for it."""
    mask, copies, plain = CASES[name]("cpu"), [], host._copy
    monkeypatch.setattr(host, "_copy", lambda part: copies.append(weakref.ref(found := plain(part))) or found)
    for part in (build, block_mask):
        monkeypatch.setattr(part, "on_host", moved)
    gc.collect()
    gc.disable()
    try:
        for way, make in ways(mask).items():
            make()
            assert not any(copy() is not None for copy in copies), way
    finally:
        gc.enable()
    assert copies or not mask.bound.tensors


def test_waits_when_one_is_read(waits):
    labels = documents(5000, 9)
    found = moved(bind(mods.document_mask(labels), "mask"))
    assert len(found.tensors) == 1 and not waits
    assert torch.equal(found.tensors[0], labels) and torch.equal(found.tensors[0], labels) and len(waits) == 1


def test_captures_travel_together(waits):
    tensors = (torch.arange(5, dtype=torch.int32), torch.rand(3, 4, dtype=torch.float64).T, torch.tensor([True, False, True]),
               torch.tensor(7))
    a, b, c, d = tensors
    bound = bind(lambda bb, h, q, kv: (a[q] > 0) & (b[q, kv] > 0.5) & c[q] & (q < d), "mask")
    found = moved(bound)
    assert len(bound.tensors) == len(found.tensors) == 4
    assert all(torch.equal(x, y) for x, y in zip(bound.tensors, found.tensors))
    assert all(x.data_ptr() != y.data_ptr() for x, y in zip(bound.tensors, found.tensors))
    assert waits == [sum(t.nbytes for t in tensors)]


@pytest.mark.parametrize("order", ["rising", "shuffled", "recurring"])
@pytest.mark.parametrize("make", [mods.document_mask, mods.document_causal])
def test_many_labels_travel_with_their_runs(order, make, waits):
    """Also where a label comes back, and where tiles have to be settled element by element."""
    labels = documents(LONG, 4000, 2, order)
    bound, tiling = bind(make(labels), "mask"), Tiling(100, 37, 700, 650)
    found = moved(bound)
    assert found.tensors.runs(0).starts.size > 3900
    spans = Refiner(found, tiling, 1 << 26).spans(False)
    check_spans(spans, kinds(dense(make(labels), 1, 1, 700, 650), 100, 37))
    assert len(waits) == 1 and waits[0] < labels.nbytes * 1.6 and torch.equal(found.tensors[0], labels)


@pytest.mark.parametrize("length", [1, 3, 15])
def test_labels_of_too_many_runs(length, waits):
    labels = torch.arange(LONG) // length
    found = moved(bind(mods.document_mask(labels), "mask"))
    assert found.tensors.runs(0) is None and torch.equal(found.tensors[0], labels) and len(waits) == 1


def test_runs_on_a_device():
    labels = torch.zeros(2, LONG // 2, dtype=torch.int16)
    labels[0, 1200:], labels[1, :LONG // 2 - 1] = 5, 5
    labels[1, LONG // 2 - 1] = 7
    runs = runs_of_device(device_runs(labels).numpy(), labels.numpy())
    assert (runs.starts.tolist(), runs.values.tolist()) == ([0, 1200, LONG // 2, LONG - 1], [0, 5, 5, 7])
    assert device_runs(labels[0]) is None                       # of few labels the host finds them


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
