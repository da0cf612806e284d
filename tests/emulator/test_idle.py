"""Strict rules of fences and setmaxnreg, statements that tell nobody anything, and warps that sleep instead of polling."""

import numpy as np
import pytest
from test_order import INIT, LOAD, STORE, WAIT, check, findings, kernel

from flexfa4 import emulator

PAIR = dict(grid=2, cluster=2)
HANDED_OVER = """st.shared.b32 [%r5], %r0; fence.proxy.async.shared::cta; bar.sync 0;
ld.shared.b32 %r8, [%r7]; FENCE bar.sync 0;
""" + LOAD + WAIT + "ld.shared.b32 %r8, [%r7];"


def test_a_relaxed_cluster_arrival_publishes_no_init_without_its_fence():
    body = """@%p2 mbarrier.init.shared.b64 [%r3], 1; fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed;
barrier.cluster.wait; fence.mbarrier_init.release.cluster ; barrier.cluster.arrive.relaxed; barrier.cluster.wait;"""
    taken, words = "fence.mbarrier_init.release.cluster; ", ["a relaxed arrival after the mbarrier.init", "fence.mbarrier_init"]
    check(body, taken, "order", words, races="strict", threads=32, **PAIR)
    assert findings(body.replace(taken, ""), threads=32, **PAIR) == []  # the later one covers it


def test_a_copy_over_what_the_generic_proxy_read_is_strictly_a_matter_of_proxies():
    body = INIT.replace("COUNT", "1") + HANDED_OVER
    fenced = body.replace("FENCE", "fence.proxy.async.shared::cta ;")
    words = ["writes shared byte 0x400", "read at line"]
    check(fenced, "fence.proxy.async.shared::cta ;", "proxy", words, races="strict", threads=32)
    assert findings(body.replace("FENCE", ""), threads=32) == []


REGISTERS = """@%p1 bra FIRST; setmaxnreg.dec.sync.aligned.u32 104; bra MET; FIRST: setmaxnreg.dec.sync.aligned.u32 96; MET:
bar.sync 1, 128; setmaxnreg.dec.sync.aligned.u32 80;"""


@pytest.mark.parametrize("taken, words", [
    ("FIRST: setmaxnreg.dec.sync.aligned.u32 96;", "setmaxnreg 1 and 2 times"),
    ("bar.sync 1, 128;", "have not met since their last setmaxnreg"),
])
def test_setmaxnreg_of_a_warpgroup(taken, words):
    assert findings(REGISTERS, threads=128) == []
    found = findings(REGISTERS.replace(taken, "FIRST:" if "FIRST" in taken else ""), threads=128)
    assert {k for k, _ in found} == {"registers"} and any(words in m for _, m in found)


def idle(body, **options):
    return {m.split(": ", 2)[1]: m.split(": ", 2)[2] for k, m in findings(body, races="idle", **options) if k == "idle"}


def test_idle_statements_are_named_with_the_reason():
    assert idle(STORE) == {}
    twice = STORE.replace("bar.sync 0;\n@%p2", "fence.proxy.async.global; bar.sync 0; bar.warp.sync -1;\n@%p2").replace(
        "@%p2 cp.async.bulk.wait_group.read 0;", "@%p2 cp.async.bulk.wait_group.read 0; @%p2 cp.async.bulk.wait_group 1;")
    found = idle(twice)
    assert found.keys() == {"fence.proxy.async.global", "bar.warp.sync", "cp.async.bulk.wait_group"}
    assert "nothing was touched through the generic proxy since line" in found["fence.proxy.async.global"]
    assert found["cp.async.bulk.wait_group"] == "nothing is left to wait for"


def test_a_wait_for_the_phase_before_the_first_is_idle():
    first = WAIT.replace("], 0;", "], 1;").replace("W", "V")
    body = INIT.replace("COUNT", "1") + first + LOAD + WAIT + "ld.shared.b32 %r8, [%r7];"
    data = np.zeros(4096, np.uint32)
    launch = emulator.run(kernel(body), 1, 64, (data,), completion="late", races="idle")
    (found,) = [m for k, m in launch.findings if k == "idle"]
    assert "mbarrier.try_wait" in found and "nobody has used the mbarrier yet" in found


LOCK = """mov.u32 %r10, %ctaid.x; @!%p2 bra END; setp.ne.b32 %p3, %r10, 0; @%p3 bra SPIN;
mov.b32 %r8, 0; WORK: add.s32 %r8, %r8, 1; setp.lt.s32 %p4, %r8, 20000; @%p4 bra WORK;
st.release.gpu.global.b32 [%rd1], 7; bra END;
SPIN: POLL @%p5 bra SPIN; st.global.b32 [%rd1+4], %r9; END:"""


@pytest.mark.parametrize("poll", [
    "ld.acquire.gpu.global.b32 %r9, [%rd1]; setp.eq.b32 %p5, %r9, 0;",
    "atom.acquire.gpu.global.cas.b32 %r9, [%rd1], 7, 9; setp.ne.b32 %p5, %r9, 7;",
])
@pytest.mark.parametrize("completion", ["immediate", "late"])
def test_a_warp_that_polls_sleeps_until_something_is_written(poll, completion):
    body = LOCK.replace("POLL", poll)
    for seed in range(4):
        data = np.zeros(1024, np.uint32)
        launch = emulator.run(kernel(body), 2, 32, (data,), seed=seed, completion=completion, sms=2)
        assert data[1] == 7
        assert launch.warp_instructions < 62_000, launch.warp_instructions  # 60 000 of them are WORK


def test_a_poll_that_nobody_ends_is_a_deadlock():
    body = "SPIN: ld.acquire.gpu.global.b32 %r9, [%rd1]; setp.eq.b32 %p5, %r9, 0; @%p5 bra SPIN;"
    with pytest.raises(emulator.Deadlock):
        emulator.run(kernel(body), 1, 32, (np.zeros(64, np.uint32),), seed=1)
    counted = "mov.b32 %r8, 0; SPIN: add.s32 %r8, %r8, 1; setp.gt.s32 %p4, %r8, 900; @%p4 bra OUT;" + body[5:] + "OUT:"
    emulator.run(kernel(counted), 1, 32, (np.zeros(64, np.uint32),), seed=1)  # it gives up by itself


def test_a_wait_in_a_loop_is_not_idle_for_a_fresh_mbarrier_alone():
    """The second turn's wait for [%r3+8] proves what the wait for [%r3] in the same turn does: both follow one store."""
    wait = "{ W: mbarrier.try_wait.parity.shared.b64 %p7, [BAR], %r9; @!%p7 bra W; }"
    body = INIT.replace("COUNT", "32").replace("@%p2", "@%p2 mbarrier.init.shared.b64 [%r3+8], 32; @%p2", 1) + f"""
mov.b32 %r9, 1; TURN: @%p1 bra PRODUCE; {wait.replace("BAR", "%r3")} {wait.replace("BAR", "%r3+8")}
st.shared.b32 [%r7], %r9; bar.sync 1, 64; bra NEXT;
PRODUCE: bar.sync 1, 64; ld.shared.b32 %r8, [%r7]; mbarrier.arrive.shared.b64 %rd3, [%r3];
mbarrier.arrive.shared.b64 %rd3, [%r3+8];
NEXT: xor.b32 %r9, %r9, 1; setp.eq.b32 %p4, %r9, 0; @%p4 bra TURN;"""
    assert findings(body) == []
    found = [m for k, m in findings(body, races="idle", seeds=[0]) if k == "idle" and "try_wait" in m]
    assert found and all("the thread knows all that it proves since line" in m for m in found), found
