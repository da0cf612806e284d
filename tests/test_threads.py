"""A process that forks while its other threads are in a call: the child has none of these threads, and waits for none."""
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flexfa4.threads import cached_property

ROOT = Path(__file__).resolve().parents[1]

SCRIPT = """
import contextlib, os, signal, threading
import torch
from flexfa4 import create_block_mask, flex_attention
from flexfa4.ir import graph
from flexfa4.runtime import kernels, spans_cache
from flexfa4.sparsity.spans import Spans
from flexfa4.trace import cache

torch.set_num_threads(1)
q = torch.randn(1, 2, 40, 8)

def calls():
    labels = torch.arange(40) // 7
    same = lambda b, h, i, j: labels[i] == labels[j]
    edit = lambda s, b, h, i, j: s * 0.3 + labels[j]
    mask = create_block_mask(same, None, None, 40, 40)
    return torch.equal(flex_attention(q, q, q, edit, mask_mod=same), flex_attention(q, q, q, edit, mask))

inside, over = threading.Event(), threading.Event()

class Runs:                                   # of which mean_keys asks, and does not come back
    def __getitem__(self, at):
        inside.set()
        over.wait()

def hold():
    with contextlib.ExitStack() as locks:
        for lock in (cache._lock, graph._lock, kernels._lock, spans_cache._lock):
            locks.enter_context(lock)
        Spans(Runs(), Runs(), 128, 128, 40, 40).mean_keys

thread = threading.Thread(target=hold, daemon=True)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(0 if calls() else 3)
_, status = os.waitpid(child, 0)
over.set()
print("status", status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_waits_for_no_thread_of_its_parent():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    assert done.stdout.split() == ["status", "0"], (done.stdout, done.stderr[-2000:])


def test_an_attribute_that_is_being_computed_holds_no_other_object():
    inside, over = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, waits):
            self.waits, self.times = waits, 0

        @cached_property
        def value(self):
            """What it is."""
            self.times += 1
            if self.waits:
                inside.set()
                over.wait(20)
            return self.times

    thread = threading.Thread(target=lambda: Slow(True).value)
    thread.start()
    assert inside.wait(20)
    other, found = Slow(False), []
    second = threading.Thread(target=lambda: found.append((other.value, other.value)), daemon=True)
    second.start()
    second.join(5)
    assert found == [(1, 1)] and Slow.value.__doc__ == "What it is."
    over.set()
    thread.join()


def test_no_other_locks_are_taken():
    """`apart` has a lock that it makes anew in a child, with what belongs to it."""
    lock = re.compile(r"threading\.R?Lock\(|functools import .*\bcached_property|functools\.cached_property")
    found = {str(p.relative_to(ROOT)) for p in (ROOT / "flexfa4").rglob("*.py") if lock.search(p.read_text())}
    assert found == {"flexfa4/threads.py", "flexfa4/runtime/apart.py"}
