"""What no barrier of the hardware would take: each misuse stops the launch and says what was wrong."""

import shutil

import numpy as np
import pytest
from test_order import INIT, kernel

from flexfa4 import emulator

pytestmark = pytest.mark.skipif(not any(shutil.which(c) for c in ("c++", "g++", "clang++")), reason="needs a C++ compiler")
ARRIVE = INIT.replace("COUNT", "1") + "@%p2 mbarrier.arrive.shared.b64 %rd3, [%r3];"


@pytest.mark.parametrize("right, wrong, words", [
    ("bar.sync 15, 64;", "mov.b32 %r9, 16; bar.sync %r9, 64;", "barrier 16 does not exist"),
    ("bar.sync 1, 64;", "bar.sync 1, 40;", "thread count 40 is not a positive multiple of 32"),
    ("bar.sync 1, 64;", "@%p1 bra A; bar.sync 1, 64; bra B; A: bar.sync 1, 96; B:", "this warp names"),
    ("bar.sync 1, 64;", "bar.arrive 1, 96; bar.arrive 1, 64;", "this warp names 64"),
    (ARRIVE, ARRIVE.replace("%rd3, [%r3];", "%rd3, [%r3], 2;"), "arrive of 2 with 1 arrivals pending"),
    (ARRIVE, ARRIVE.replace("[%r3];", "[%r3+8];"), "no mbarrier was initialised"),
    (ARRIVE, ARRIVE.replace("], 1;", "], 0;"), "initial count 0 out of range"),
])
def test_a_barrier_that_is_used_wrongly_stops_the_launch(right, wrong, words):
    def run(body):
        return emulator.run(kernel(body), 1, 64, (np.zeros(64, np.uint32),))

    run(right)
    with pytest.raises(emulator.EmulatorError, match=words):
        run(wrong)
