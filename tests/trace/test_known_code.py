"""A new function of known code, around other tensors, has the trace of the first one where a trace would say the same."""
import gc
import types
import weakref

import pytest
import torch

from flexfa4 import create_block_mask
from flexfa4.trace import bind, cache, trace


def documents(labels):
    return lambda b, h, q, kv: (labels[q] == labels[kv]) & (q >= kv)


def two(a, c):
    return lambda b, h, q, kv: a[q] == c[kv]


@pytest.fixture
def traces(monkeypatch):
    """How often a mod was traced."""
    made, plain = [], cache.record
    monkeypatch.setattr(cache, "_entries", {})
    monkeypatch.setattr(cache, "record", lambda *args: made.append(args) or plain(*args))
    return made


def same(mod, bound):
    """What a trace says now."""
    fresh = trace(mod, "mask")
    return (bound.graph == fresh.graph and bound.literals == fresh.literals and len(bound.tensors) == len(fresh.tensors)
            and all(a is b for a, b in zip(bound.tensors, fresh.tensors)))


def test_other_tensors_of_the_same_kind(traces):
    mods = [documents(torch.arange(9) // n) for n in (1, 2, 3)]
    found = [bind(mod, "mask") for mod in mods]
    assert len(traces) == 1
    assert all(same(mod, bound) for mod, bound in zip(mods, found))
    assert [bind(mod, "mask") is bound for mod, bound in zip(mods, found)] == [True] * 3


def test_masks_of_one_factory_keep_their_own_labels():
    masks = [create_block_mask(documents(torch.arange(600) // n), None, None, 600, 600) for n in (600, 50)]
    dense = [(torch.arange(600)[:, None] // n == torch.arange(600) // n) & torch.ones(600, 600).tril().bool() for n in (600, 50)]
    for mask, want in zip(masks, dense):
        assert torch.equal(mask.to_dense()[0, 0], want)
    assert masks[0].spans(64, 64).counts() != masks[1].spans(64, 64).counts()


@pytest.mark.parametrize("other", [torch.arange(9).int(), torch.arange(8),
                                   torch.nn.Parameter(torch.arange(9), requires_grad=False)], ids=["dtype", "shape", "class"])
def test_another_kind_is_traced(traces, other):
    bind(documents(torch.arange(9)), "mask")
    mod = documents(other)
    assert same(mod, bind(mod, "mask")) and len(traces) == 2


def test_one_tensor_where_there_were_two(traces):
    a, c = torch.arange(9), torch.arange(9) // 2
    assert len(bind(two(a, c), "mask").tensors) == 2
    for mod, captures in ((two(a, a), 1), (two(c, a), 2), (two(c, c), 1)):
        bound = bind(mod, "mask")
        assert same(mod, bound) and len(bound.tensors) == captures
    assert len(traces) == 2


def test_a_shape_read_off_a_row(traces):
    """`t[b].shape` asks no function of torch's."""
    def over(t):
        return lambda b, h, q, kv: q - kv < t[b].shape[0]
    for n in (3, 5):
        mod = over(torch.zeros(2, n))
        assert same(mod, bind(mod, "mask"))


def test_values_in_the_graph_are_those_of_one_tensor(traces):
    def over(t):
        return lambda b, h, q, kv: q - kv < int(t)
    for n in (3, 5):
        bound = bind(over(torch.tensor(n)), "mask")
        assert bound.literals == (n,)
    assert len(traces) == 2


def test_defaults_globals_and_numbers_still_count(traces):
    source = "lambda b, h, q, kv, t=t: (q - kv < WINDOW) & (t[q] == t[kv]) & (kv < limit)"
    namespace = {}
    exec(f"def make(t, limit):\n    return {source}", namespace)
    for t, limit, window in ((torch.arange(9), 4, 3), (torch.arange(9), 4, 3), (torch.arange(9), 5, 3), (torch.arange(9), 4, 7)):
        f = namespace["make"](t, limit)
        mod = types.FunctionType(f.__code__, {**namespace, "WINDOW": window}, "f", f.__defaults__, f.__closure__)
        bound = bind(mod, "mask")
        assert same(mod, bound) and set(bound.literals) == {limit, window}
    assert len(traces) == 3


def test_nothing_is_held_alive():
    refs = []
    for _ in range(3):
        labels = torch.arange(9)
        refs.append(weakref.ref(labels))
        bind(documents(labels), "mask")
        del labels
    gc.collect()
    assert all(ref() is None for ref in refs)
