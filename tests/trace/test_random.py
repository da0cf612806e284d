"""Numbers that differ from call to call are refused whatever their source; what only might draw is accepted."""
import datetime
import os
import random
import secrets
import time
import uuid
from time import perf_counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flexfa4.errors import TraceError
from flexfa4.trace import bind, trace

TABLE = torch.zeros(4)
SYSTEM, make, some_bytes, new_id = random.SystemRandom(), np.random.default_rng, os.urandom, uuid.uuid4
IDLE, ACTIVE = torch.nn.Dropout(0.5).eval(), torch.nn.Dropout(0.5)


@torch.jit.script
def scripted(x: torch.Tensor):
    return torch.rand_like(x)


def helper():
    return secrets.randbelow(4)


def imports_inside():
    import time as clock
    return clock.time()


REFUSED = {
    "SystemRandom": (lambda s: s * SYSTEM.random(), "SystemRandom"),
    "alias of default_rng": (lambda s: s * make().random(), "default_rng"),
    "secrets": (lambda s: s * helper(), "secrets.randbelow|SystemRandom"),
    "uuid": (lambda s: s * (uuid.uuid4().int % 7), "uuid4|urandom"),
    "alias of uuid4": (lambda s: s * (new_id().int % 7), "uuid4|urandom"),
    "urandom": (lambda s: s * os.urandom(1)[0], "os.urandom"), "alias of urandom": (lambda s: s * some_bytes(1)[0], "urandom"),
    "clock": (lambda s: s * time.time(), "time.time"), "alias of a clock": (lambda s: s * perf_counter(), "time.perf_counter"),
    "clock imported inside": (lambda s: s * imports_inside(), "time.time"),
    "date": (lambda s: s * datetime.datetime.now().microsecond, "datetime.now"),
    "aten.rand": (lambda s: s * torch.ops.aten.rand([]), "rand draws"),
    "aten.bernoulli": (lambda s: s * torch.ops.aten.bernoulli(TABLE)[0], "bernoulli draws"),
    "native_dropout": (lambda s: s + torch.native_dropout(TABLE, 0.5, True)[0][0], "native_dropout draws"),
    "native_dropout of the score": (lambda s: torch.native_dropout(s, 0.5, True)[0], "native_dropout draws"),
    "scripted": (lambda s: s + scripted(TABLE)[0], "torch's random"),
    "seed": (lambda s: s * (torch.seed() % 3), "torch's random"),
    "empty": (lambda s: s + torch.empty(4)[0], "empty in a mod: its contents are not set"),
    "empty_like": (lambda s: s + torch.empty_like(s), "empty_like in a mod: its contents are not set"),
    "dropout": (lambda s: ACTIVE(s), "dropout draws"), "dropout of a capture": (lambda s: s + ACTIVE(TABLE)[0], "dropout draws"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    use, words = REFUSED[name]
    with pytest.raises(TraceError, match=words) as caught:
        trace(lambda score, b, h, q, k: use(score), "score")
    assert str(caught.value).startswith(f"{__file__}:") and "Write instead: " in str(caught.value)


class Slot:
    """As the class of Cython's functions: its own `__module__` describes that of its instances."""

    scale = 2.0


Slot.__module__ = property(lambda self: "somewhere")


def test_a_class_without_the_name_of_a_module():
    assert not isinstance(Slot.__module__, str)
    trace(lambda score, b, h, q, k: score * Slot.scale, "score")


ACCEPTED = {
    "module in eval mode": lambda s: IDLE(s), "of a capture, in eval mode": lambda s: s + IDLE(TABLE)[1],
    "not training": lambda s: F.dropout(s, 0.5, False), "by its name": lambda s: torch.dropout(s, 0.5, train=False),
    "probability 0": lambda s: F.dropout(s, 0.0), "alpha": lambda s: F.alpha_dropout(s, 0.5, training=False),
    "a module that is named for something else": lambda s: s if os.sep and time.tzname else s,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_as_the_identity(name):
    use = ACCEPTED[name]
    graph = bind(lambda score, b, h, q, k: use(score), "score").graph
    plain = (lambda s, b, h, q, k: s + TABLE[1]) if "capture" in name else lambda s, b, h, q, k: s
    assert graph.root.op is bind(plain, "score").graph.root.op
    if "capture" not in name:
        assert graph == bind(plain, "score").graph


def test_a_dropout_that_is_switched_on_is_seen():
    drop = torch.nn.Dropout(0.5).eval()
    mod = lambda score, b, h, q, k: drop(score)  # noqa: E731
    assert bind(mod, "score") is bind(mod, "score")
    drop.train()
    with pytest.raises(TraceError, match="dropout draws"):
        bind(mod, "score")


def test_torchs_generator_is_left_as_it_was():
    before = torch.get_rng_state()
    trace(lambda score, b, h, q, k: IDLE(score) + TABLE[h], "score")
    assert torch.equal(before, torch.get_rng_state())
