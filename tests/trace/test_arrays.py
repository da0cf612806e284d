"""numpy arrays wherever a mod may keep them, and the copies that a trace makes of them."""
import functools
import types
from collections import namedtuple

import numpy as np
import pytest
import torch

from flexfa4 import create_block_mask, flex_attention, reference
from flexfa4.trace import trace
from flexfa4.trace.recorder import Recorder, _name_in, recording

LABELS = np.array([0, 0, 1, 1, 2, 2, 2, 3])
IN_DICT = {"labels": LABELS, "deep": [{"labels": LABELS}]}
Pair = namedtuple("Pair", "left right")
IN_PAIR = Pair(LABELS, 3)
HELD = types.ModuleType("held")
HELD.labels = LABELS


class Holder:
    shared = LABELS

    def __init__(self):
        self.own = LABELS

    def label(self, i):
        return self.own[i]

    @staticmethod
    def of_global(i):
        return LABELS[i]


class Slotted:
    __slots__ = ("labels", "unset")

    def __init__(self):
        self.labels = LABELS


class Overriding(Holder):
    def label(self, i):
        return LABELS[i] + 0


HOLDER, SLOTTED = Holder(), Slotted()


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.labels = LABELS
        self.weight = torch.nn.Parameter(torch.zeros(4))

    def forward(self, b, h, q, kv):
        return self.labels[q] == self.labels[kv]


class Parent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.child = Module()

    def forward(self, b, h, q, kv):
        return self.child(b, h, q, kv)


class Callable:
    table = LABELS

    def __call__(self, b, h, q, kv):
        return self.table[q] == LABELS[kv]


class Method:
    def mask(self, b, h, q, kv):
        return LABELS[q] == LABELS[kv]


def of_helper(i):
    return IN_DICT["labels"][i]


def in_default(b, h, q, kv, labels=LABELS):
    return labels[q] == labels[kv]


PLACES = {
    "global": lambda b, h, q, kv: LABELS[q] == LABELS[kv],
    "global dict": lambda b, h, q, kv: IN_DICT["labels"][q] == IN_DICT["deep"][0]["labels"][kv],
    "named tuple": lambda b, h, q, kv: IN_PAIR.left[q] == IN_PAIR[0][kv],
    "module": lambda b, h, q, kv: HELD.labels[q] == HELD.labels[kv],
    "attribute of a global object": lambda b, h, q, kv: HOLDER.own[q] == HOLDER.label(kv),
    "attribute of its class": lambda b, h, q, kv: HOLDER.shared[q] == HOLDER.shared[kv],
    "attribute of a global class": lambda b, h, q, kv: Holder.shared[q] == Holder.of_global(kv),
    "slot": lambda b, h, q, kv: SLOTTED.labels[q] == SLOTTED.labels[kv],
    "overridden method": lambda b, h, q, kv, o=Overriding(): o.label(q) == o.label(kv),
    "nn.Module": Module(),
    "child of an nn.Module": Parent(),
    "global of __call__ and class attribute": Callable(),
    "global of a method": Method().mask,
    "helper": lambda b, h, q, kv: of_helper(q) == of_helper(kv),
    "default": in_default,
    "partial": functools.partial(lambda labels, b, h, q, kv: labels[q] == labels[kv], LABELS),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_array_is_captured_from(place):
    mask = create_block_mask(PLACES[place], 1, 1, 8, 8)
    assert torch.equal(mask.to_dense()[0, 0], torch.from_numpy(LABELS[:, None] == LABELS))
    assert len(mask.bound.tensors) == 1
    assert type(LABELS) is np.ndarray and type(HOLDER.own) is np.ndarray and type(IN_DICT["labels"]) is np.ndarray
    assert type(HOLDER) is Holder and type(HELD.labels) is np.ndarray


def test_names_of_arrays_say_where_they_are():
    def names(fn):
        return trace(fn, "mask").origin.capture_names
    assert names(lambda b, h, q, kv: IN_DICT["labels"][q] == kv) == ("IN_DICT['labels']",)
    assert names(lambda b, h, q, kv: HOLDER.own[q] == kv) == ("HOLDER.own",)
    assert names(Module()) == ("self.labels",)


def test_a_write_after_the_call_does_not_reach_its_gradient():
    """The backward pass reads the tables again: of the array it must see what the forward pass saw."""
    scale = np.linspace(1, 2, 8)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 8, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def mod(score, b, h, i, j):
        return score * scale[i]

    copied = torch.from_numpy(scale.copy())
    dense = reference.attention(q, k, v, lambda score, b, h, i, j: score * copied[i])[0]
    expected = torch.autograd.grad(dense.sum(), q)[0]
    out = flex_attention(q, k, v, score_mod=mod)
    scale[:] = 100.0
    assert (torch.autograd.grad(out.sum(), q)[0] - expected).abs().max() < 1e-12


def test_the_search_for_a_name_passes_a_module_that_has_any_names():
    """torch.compile puts modules of libraries into the globals of the user's module; they may define `_parameters`."""
    tensor = torch.ones(4)
    module = types.ModuleType("other")
    module._parameters, module._buffers = (lambda: None), 3
    code = types.SimpleNamespace(co_names=())
    frame = types.SimpleNamespace(f_locals={"module": module, "lst": [tensor]}, f_globals={}, f_code=code)
    with recording(Recorder("")):
        assert _name_in(frame, tensor) == "lst[0]"
