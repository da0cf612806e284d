"""The cache of unchanged mods: what hits, what is seen as a change, what is never held alive; and fingerprints of contents."""
import functools
import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from flexfa4.ir import DType
from flexfa4.trace import bind, fingerprint, trace

WINDOW = 4


def over(table):
    return lambda score, b, h, q, k: score + table[q]


def global_window(b, h, q, k):
    return q - k < WINDOW


class Band:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def __call__(self, b, h, q, k):
        return (q - k >= self.low[h]) & (q - k < self.high)

    def method(self, b, h, q, k):
        return q - k < self.high


class Slotted:
    __slots__ = ("gain",)

    def __init__(self, gain):
        self.gain = gain

    def __call__(self, score, b, h, q, k):
        return score * self.gain[h]


class Bias(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(8))
        self.embedding = torch.nn.Embedding(8, 2)

    def forward(self, score, b, h, q, k):
        return score + self.table[q] + self.embedding(q)[h]


def test_unchanged_is_the_same_object():
    mod = over(torch.zeros(5))
    assert bind(mod, "score") is bind(mod, "score")
    assert bind(mod, "score", DType.F64) is not bind(mod, "score")


def test_equal_closures_made_anew_hit():
    table = torch.zeros(5)
    held = bind(over(table), "score")
    assert bind(over(table), "score") is held
    assert bind(over(torch.zeros(5)), "score").tensors[0] is not table


@pytest.mark.parametrize("make, kind", [
    (lambda: Band(torch.zeros(2, dtype=torch.long), 3), "mask"), (lambda: Band(torch.zeros(2), 3).method, "mask"),
    (lambda: Slotted(torch.ones(2)), "score"), (Bias, "score"),
    (lambda: functools.partial(lambda b, h, q, k, *, w: q - k < w, w=3), "mask")])
def test_all_kinds_of_callables_hit(make, kind):
    mod = make()
    assert bind(mod, kind) is bind(mod, kind)


def test_module_parameters_are_the_captures():
    mod = Bias()
    assert {id(t) for t in bind(mod, "score").tensors} == {id(mod.table), id(mod.embedding.weight)}
    assert all(t.requires_grad for t in bind(mod, "score").tensors)


def test_contents_are_read_at_run_time():
    table = torch.zeros(5)
    mod = over(table)
    held = bind(mod, "score")
    table.fill_(3)
    assert bind(mod, "score") is held


def test_changes_are_seen(monkeypatch):
    band = Band(torch.zeros(2, dtype=torch.long), 3)
    state = {"w": 9, "t": [3]}
    cell = 7

    def closure(b, h, q, k):
        return q - k < state["w"] + state["t"][0] + cell

    default = lambda b, h, q, k, w=5: q - k < w  # noqa: E731
    literal = lambda mod: bind(mod, "mask").literals  # noqa: E731
    assert literal(band)[-1] == 3 and literal(closure) == (19,) and literal(default) == (5,) and literal(global_window) == (4,)
    band.high, state["t"][0], default.__defaults__ = 8, 4, (6,)
    monkeypatch.setitem(globals(), "WINDOW", 11)
    assert literal(band)[-1] == 8 and literal(closure) == (20,) and literal(default) == (6,) and literal(global_window) == (11,)
    cell = 20
    assert literal(closure) == (33,)
    band.low = torch.ones(2, dtype=torch.long)
    assert bind(band, "mask").tensors[0] is band.low


class Inherits:
    width = 3

    def __call__(self, b, h, q, k):
        return q - k < self.width


def test_an_instance_attribute_that_hides_the_class_is_seen():
    mod = Inherits()
    assert bind(mod, "mask").literals == (3,)
    mod.width = 9
    assert bind(mod, "mask").literals == (9,)


def uses_builtin(s, b, h, q, k):
    return abs(s) * 2.5


class Plain:
    pass


class Deep(Plain):
    pass


class Gained(torch.nn.Module):
    def forward(self, score, b, h, q, k):
        return score * self.gain if hasattr(self, "gain") else score * 2.0


def gain_by_default(score, b, h, q, k):
    return score * getattr(DEEP, "gain", 2.0)


def gain_of_the_class(score, b, h, q, k):
    return score * (Deep.gain if hasattr(Deep, "gain") else 2.0)


def gain_of_a_slot(score, b, h, q, k):
    return score * getattr(SLOTTED, "gain", 2.0)


DEEP, SLOTTED = Deep(), object.__new__(Slotted)


@pytest.mark.parametrize("mod", [gain_by_default, gain_of_the_class])
@pytest.mark.parametrize("cls", [Deep, Plain])
def test_a_class_attribute_that_hides_a_fallback_is_seen(mod, cls, monkeypatch):
    first = bind(mod, "score")
    assert first.literals == (2.0,) and bind(mod, "score") is first
    monkeypatch.setattr(cls, "gain", 3.0, raising=False)
    assert bind(mod, "score").literals == (3.0,)
    monkeypatch.delattr(cls, "gain")
    assert bind(mod, "score").literals == (2.0,)


def test_a_slot_that_is_filled_and_a_parameter_that_is_made_are_seen():
    module = Gained()
    for mod, make in ((gain_of_a_slot, lambda: setattr(SLOTTED, "gain", 3.0)),
                      (module, lambda: setattr(module, "gain", torch.nn.Parameter(torch.tensor(3.0))))):
        first = bind(mod, "score")
        assert first.literals == (2.0,) and bind(mod, "score") is first
        make()
        assert 2.0 not in bind(mod, "score").literals


def test_a_global_that_hides_a_builtin_is_seen(monkeypatch):
    before = bind(uses_builtin, "score")
    monkeypatch.setitem(globals(), "abs", lambda s: s * 7.5)
    assert before.literals == (2.5,) and bind(uses_builtin, "score").literals == (7.5, 2.5)
    monkeypatch.undo()
    assert bind(uses_builtin, "score").literals == (2.5,)


def test_new_values_keep_the_graph():
    graphs = {bind(functools.partial(lambda b, h, q, k, *, w: q - k < w, w=w), "mask").graph for w in range(2, 9)}
    assert len(graphs) == 1


def test_a_nested_mod_that_changes_is_seen():
    inner = [lambda b, h, q, k: q >= k, lambda b, h, q, k: q <= k]
    use = inner[0]

    def outer(b, h, q, k):
        return use(b, h, q, k)

    first = bind(outer, "mask").graph
    use = inner[1]
    assert bind(outer, "mask").graph != first


def test_folded_numbers_follow_their_tensor():
    w = torch.tensor(6)

    def mod(b, h, q, k):
        return q - k < int(w)

    assert bind(mod, "mask").literals == (6,) and bind(mod, "mask") is bind(mod, "mask")
    w.fill_(9)
    assert bind(mod, "mask").literals == (9,)


def test_a_length_that_was_read_is_guarded():
    t = torch.zeros(6)

    def mod(b, h, q, k):
        return q - k < t.shape[0]

    assert bind(mod, "mask").literals == (6,)
    t.resize_(9)
    assert bind(mod, "mask").literals == (9,)


def test_tensors_computed_inside_are_computed_every_call():
    t = torch.ones(5, requires_grad=True)

    def mod(score, b, h, q, k):
        return score + (t * 2)[q] + t[1:][0]

    with torch.no_grad():
        assert not bind(mod, "score").tensors[0].requires_grad
    assert bind(mod, "score").tensors[0].requires_grad
    assert bind(mod, "score") is not bind(mod, "score")


def test_numpy_arrays_are_read_again():
    array = np.arange(5)
    mod = lambda b, h, q, k: array[q] == array[k]  # noqa: E731
    first = bind(mod, "mask")
    array[0] = 77
    second = bind(mod, "mask")
    assert int(second.tensors[0][0]) == 77 and second is not first and second.graph == first.graph
    assert len(second.tensors) == 1 and second.origin.capture_names == ("array",) and type(array) is np.ndarray
    assert fingerprint(mod) != fingerprint(mod)


def test_nothing_is_kept_alive():
    table = torch.zeros(5)
    gone = weakref.ref(table)
    mod = over(table)
    bind(mod, "score")
    del table, mod
    gc.collect()
    assert gone() is None
    band = Band(torch.zeros(2), 3)
    band.me = band                       # a cycle through the mod's own state
    bind(band, "mask")
    gone = weakref.ref(band)
    del band
    gc.collect()
    assert gone() is None


def test_many_threads_agree():
    table = torch.zeros(5)
    seen, errors = [], []

    def work():
        try:
            for i in range(60):
                seen.append(bind(over(table), "score").graph)
                assert bind(functools.partial(lambda b, h, q, k, *, w: q - k < w, w=i), "mask").literals in ((i,), ())
        except Exception as error:  # noqa: BLE001  (reported below)
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors and len(set(seen)) == 1


def test_fingerprints_tell_versions():
    table = torch.zeros(5, dtype=torch.long)
    mod = lambda b, h, q, k: table[q] == table[k]  # noqa: E731
    first = fingerprint(mod)
    assert fingerprint(mod) == first and hash(fingerprint(mod)) == hash(first)
    table[2] = 1
    second = fingerprint(mod)
    assert second != first
    table = table.clone()
    assert fingerprint(mod) != second


def test_inference_tensors_have_no_version_and_never_match():
    with torch.inference_mode():
        table = torch.zeros(5, dtype=torch.long)
        mod = lambda b, h, q, k: table[q] == table[k] + int(table[0])  # noqa: E731
        bind(mod, "mask")
        assert fingerprint(mod) != fingerprint(mod)


def test_one_tensor_is_one_capture():
    t = torch.randn(5)
    other = t
    bound = trace(lambda s, b, h, q, k: s + t[q] * other[k], "score")
    assert len(bound.tensors) == 1 and bound.tensors[0] is t


def test_unused_reads_leave_no_trace():
    a, c = torch.randn(5), torch.randn(5)

    def mod(score, b, h, q, k):
        a[q] * 7.5
        return score * 2.5 + c[k]

    bound = trace(mod, "score")
    assert bound.tensors == (c,) and bound.literals == (2.5,) and bound.origin.capture_names == ("c",)
