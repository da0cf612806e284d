"""Barriers, tensor memory and registers used as the hardware would not take it: the launch stops and says what was wrong."""

import numpy as np
import pytest
from test_order import INIT, kernel

from flexfa4 import emulator

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


ALLOC = "@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+8], 32; bar.sync 0; ld.shared.b32 %r20, [%r3+8];"
PEER = INIT.replace("COUNT", "1")
PEER += "xor.b32 %r9, %r3, RANK; { W: mbarrier.try_wait.parity.shared.b64 %p7, [%r9], 1; @!%p7 bra W; }"


@pytest.mark.parametrize("right, wrong, words", [
    (ALLOC + "@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32;", ALLOC, "exits without deallocating"),
    ("setmaxnreg.dec.sync.aligned.u32 104;", "setmaxnreg.inc.sync.aligned.u32 104;", "setmaxnreg.inc 104 from"),
    ("setmaxnreg.dec.sync.aligned.u32 104;", "@%p2 setmaxnreg.dec.sync.aligned.u32 104;", "whose guard differs between lanes"),
    (ARRIVE, ARRIVE + "@%p2 mbarrier.expect_tx.relaxed.cta.shared.b64 [%r3], 1048576;", "leaves the legal range"),
    (PEER.replace("RANK", "0"), PEER.replace("RANK", "0x1000000"), "needs an mbarrier of the own CTA"),
])
def test_other_resources(right, wrong, words):
    def run(body):
        return emulator.run(kernel(body), 2, 128, (np.zeros(64, np.uint32),), cluster=2)

    run(right)
    with pytest.raises(emulator.EmulatorError, match=words):
        run(wrong)
