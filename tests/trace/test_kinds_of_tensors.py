"""Captured tensors that are not plain ones: fake ones trace like real ones, distributed ones are refused."""
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import flexfa4
from flexfa4.errors import ShapeError, TraceError
from flexfa4.interpret import evaluate
from flexfa4.ir import Op
from flexfa4.ir.bound import BoundGraph
from flexfa4.trace import bind, fingerprint, trace


def test_a_fake_capture_gives_the_graph_of_a_real_one():
    real = torch.randn(3, 8)
    fake = FakeTensorMode().from_tensor(real)

    def over(table):
        return lambda score, b, h, q, k: torch.tanh(score) + table[h, q - k] * 2.5

    on_real, on_fake = trace(over(real), "score"), trace(over(fake), "score")
    assert on_fake.graph == on_real.graph and on_fake.tensors == (fake,) and on_fake.literals == on_real.literals
    env = {Op.SCORE: torch.tensor(0.5), Op.H: 1, Op.Q: 6, Op.KV: 2}
    later = BoundGraph(on_fake.graph, (real,), on_fake.literals, on_fake.origin)
    assert torch.equal(evaluate(later, env), evaluate(on_real, env))


def test_fake_captures_are_told_apart():
    mode = FakeTensorMode()
    one, two = mode.from_tensor(torch.zeros(4, dtype=torch.long)), mode.from_tensor(torch.zeros(4, dtype=torch.long))

    def mask(labels):
        return lambda b, h, q, k: labels[q] == labels[k]

    first = bind(mask(one), "mask")
    assert first.tensors == (one,) and bind(mask(two), "mask").tensors == (two,)
    assert fingerprint(mask(one)) == fingerprint(mask(one)) != fingerprint(mask(two))


@pytest.fixture
def distributed():
    dist = torch.distributed
    if not dist.is_available():
        pytest.skip("torch without torch.distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    from torch.distributed.tensor import DeviceMesh, distribute_tensor
    yield lambda t: distribute_tensor(t, DeviceMesh("cpu", [0]))
    dist.destroy_process_group()


def test_distributed_tensors_are_refused_by_name(distributed):
    table = distributed(torch.randn(8))
    q = torch.randn(1, 1, 8, 4)
    with pytest.raises(TraceError, match=r"captured tensor table is a DTensor.*table\.to_local\(\)"):
        flexfa4.flex_attention(q, q, q, lambda s, b, h, i, j: s + table[i])
    with pytest.raises(ShapeError, match=r"key is a DTensor.*key\.to_local\(\)"):
        flexfa4.flex_attention(q, distributed(q), q)
    local = table.to_local()
    assert flexfa4.flex_attention(q, q, q, lambda s, b, h, i, j: s + local[i]).shape == q.shape
