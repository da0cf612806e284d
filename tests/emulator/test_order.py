"""Rules of ordering, each on a tiny kernel: silent as written, reported with the right words once a statement is taken away."""

import numpy as np
import pytest

from flexfa4 import emulator


REGS = """.reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<48>; .reg .f32 %f<8>; .reg .b64 %rd<16>;
.shared .align 1024 .b8 buf[8192]; .shared .align 8 .b8 bar[64];
mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; mov.b32 %r2, buf; mov.b32 %r3, bar; ld.param.b64 %rd1, [data];
setp.eq.b32 %p1, %r1, 0; setp.eq.b32 %p2, %r0, 0; shl.b32 %r4, %r0, 2; add.s32 %r5, %r2, %r4; and.b32 %r6, %r0, 31;
shl.b32 %r7, %r6, 2; add.s32 %r7, %r2, %r7;
"""
WAIT = "{ W: mbarrier.try_wait.parity.shared.b64 %p7, [%r3], 0; @!%p7 bra W; }"
INIT = "@%p2 mbarrier.init.shared.b64 [%r3], COUNT; fence.mbarrier_init.release.cluster; bar.sync 0;"
LOAD = """@!%p2 bra LOADED; mbarrier.arrive.expect_tx.shared.b64 [%r3], 128;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 128, [%r3]; LOADED:"""
STORE = """st.shared.b32 [%r5], %r0; fence.proxy.async.shared::cta; bar.sync 0;
@%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128; @%p2 cp.async.bulk.commit_group;
@%p2 cp.async.bulk.wait_group.read 0; bar.sync 0; st.shared.b32 [%r5], 1;"""


def kernel(body: str, regs: str = REGS, arch: str = "sm_100a") -> str:
    return f".version 9.4\n.target {arch}\n.address_size 64\n.visible .entry k(.param .u64 data)\n{{\n{regs}\n{body}\nret;\n}}\n"


def findings(body, threads=64, grid=1, races=True, seeds=range(3), **options):
    """Distinct (kind, message) over schedules."""
    seen = {}
    for seed in seeds:
        for completion in ("immediate", "late"):
            data = np.zeros(4096, np.uint32)
            launch = emulator.run(kernel(body), grid, threads, (data,), seed=seed, completion=completion, races=races, **options)
            seen |= dict.fromkeys(launch.findings)
    return list(seen)


def check(body, taken, kind, words, **options):
    """`body` is silent; without `taken` every schedule reports `kind`, and some report holds each of `words`."""
    assert findings(body, **options) == []
    assert body.count(taken) == 1
    for seed in range(3):
        found = [m for k, m in findings(body.replace(taken, ""), seeds=[seed], **options) if k == kind]
        assert found and all(any(w in m for m in found) for w in words), found


def test_a_barrier_orders_two_warps():
    body = "@%p1 st.shared.b32 [%r7], %r0;\nbar.sync 0;\n@!%p1 ld.shared.b32 %r8, [%r7];"
    check(body, "bar.sync 0;", "race", ["warp 1 of CTA 0,0,0", "shared byte 0x400", "st.shared.b32", "nothing orders the two"])


def test_named_barrier_arrive_and_sync():
    body = """@%p1 bra PRODUCE; bar.sync 1, 64; ld.shared.b32 %r8, [%r7]; bra END;
PRODUCE: st.shared.b32 [%r7], %r0; bar.arrive 1, 64; END:"""
    assert findings(body) == []
    early = body.replace("st.shared.b32 [%r7], %r0; bar.arrive 1, 64;", "bar.arrive 1, 64; st.shared.b32 [%r7], %r0;")
    assert {k for k, _ in findings(early)} == {"race"}


def test_mbarrier_arrive_and_wait():
    body = INIT.replace("COUNT", "32") + f"""
@%p1 bra PRODUCE; {WAIT} ld.shared.b32 %r8, [%r7]; bra END;
PRODUCE: st.shared.b32 [%r7], %r0; mbarrier.arrive.shared.b64 %rd3, [%r3]; END:"""
    check(body, WAIT, "race", ["ld.shared.b32", "st.shared.b32", "warp 1 of CTA 0,0,0"])
    relaxed = body.replace("mbarrier.arrive.shared.b64 %rd3, [%r3]", "mbarrier.arrive.relaxed.cta.shared.b64 %rd3, [%r3]")
    assert {k for k, _ in findings(relaxed)} == {"race"}


def test_an_elected_lane_speaks_for_its_warp_after_a_warp_barrier():
    body = INIT.replace("COUNT", "1") + f"""
@%p1 bra PRODUCE; {WAIT} ld.shared.b32 %r8, [%r7]; bra END;
PRODUCE: st.shared.b32 [%r7], %r0; bar.warp.sync -1; @%p2 mbarrier.arrive.shared.b64 %rd3, [%r3]; END:"""
    check(body, "bar.warp.sync -1;", "race", ["ld.shared.b32: warp 1", "which warp 0"])


def test_an_elected_lane_knows_what_the_others_told_a_barrier_it_waits_for():
    body = INIT.replace("COUNT", "32") + f"""@!%p1 bra END; st.shared.b32 [%r7], %r0; fence.proxy.async.shared::cta;
mbarrier.arrive.shared.b64 %rd3, [%r3]; {WAIT}
@%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128; @%p2 cp.async.bulk.commit_group;
@%p2 cp.async.bulk.wait_group 0; END:"""
    check(body, WAIT, "race", ["cp.async.bulk.global", "which warp 0"])


def test_a_copy_is_over_when_its_own_mbarrier_says_so():
    body = INIT.replace("COUNT", "1") + LOAD + WAIT + "ld.shared.b32 %r8, [%r7];"
    with pytest.raises(emulator.RaceError):  # in flight in this schedule
        findings(body.replace(WAIT, ""), seeds=[0])
    data = np.zeros(64, np.uint32)
    launch = emulator.run(kernel(body.replace(WAIT, "")), 1, 32, (data,), completion="immediate", races=True)
    assert [k for k, _ in launch.findings] == ["race"]  # and where it happens to have landed
    assert "a copy that completes on mbarrier 0x2000 wrote at line" in launch.findings[0][1]
    assert findings(body) == []


def test_the_bytes_of_a_copy_say_nothing_of_what_its_thread_did_before():
    body = INIT.replace("COUNT", "1") + f"""setp.eq.b32 %p4, %r0, 32;
@%p1 bra PRODUCE; @%p4 mbarrier.arrive.expect_tx.shared.b64 %rd3, [%r3], 128; {WAIT}
ld.shared.b32 %r8, [%r7+256]; bra END;
PRODUCE: st.shared.b32 [%r7+256], %r0; bar.warp.sync -1;
@%p2 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 128, [%r3]; END:"""
    found = findings(body)
    assert {k for k, _ in found} == {"race"} and all("st.shared.b32" in m for _, m in found), found
    told = body.replace("[%r3], 1;", "[%r3], 2;", 1).replace("@%p2 cp", "@%p2 mbarrier.arrive.shared.b64 %rd4, [%r3]; @%p2 cp")
    assert findings(told) == []


def test_waiting_for_another_copy_does_not_help():
    second = INIT.replace("COUNT", "1").replace("[%r3]", "[%r3+8]")
    body = INIT.replace("COUNT", "1") + second + LOAD + LOAD.replace("[%r3]", "[%r3+8]").replace("[%r2]", "[%r2+128]").replace(
        "LOADED", "BOTH") + "FIRST ld.shared.b32 %r8, [%r7]; SECOND"
    waits = WAIT, WAIT.replace("[%r3]", "[%r3+8]")
    assert findings(body.replace("FIRST", waits[0]).replace("SECOND", waits[1])) == []
    wrong = body.replace("FIRST", waits[1]).replace("SECOND", waits[0])
    launch = emulator.run(kernel(wrong), 1, 32, (np.zeros(64, np.uint32),), completion="immediate", races=True)
    assert {k for k, _ in launch.findings} == {"race"}


@pytest.mark.parametrize("taken, kind, words", [
    ("fence.proxy.async.shared::cta;", "proxy", ["cp.async.bulk.global", "no fence.proxy.async between", "st.shared.b32"]),
    ("@%p2 cp.async.bulk.wait_group.read 0;", "race", ["st.shared.b32: warp 0", "a bulk store of warp 0", "read at line"]),
    ("@%p2 cp.async.bulk.commit_group;", "race", ["st.shared.b32: warp 0", "a bulk store of warp 0"]),
])
def test_bulk_store(taken, kind, words):
    assert findings(STORE, threads=32) == []
    launch = emulator.run(kernel(STORE.replace(taken, "")), 1, 32, (np.zeros(64, np.uint32),), completion="immediate", races=True)
    found = [m for k, m in launch.findings if k == kind]
    assert found and all(any(w in m for m in found) for w in words), launch.findings


def test_a_store_that_may_still_read_at_exit():
    tail = "@%p2 cp.async.bulk.wait_group.read 0; bar.sync 0; st.shared.b32 [%r5], 1;"
    body = STORE.replace(tail, "@%p2 cp.async.bulk.wait_group.read 0;")
    check(body, "@%p2 cp.async.bulk.wait_group.read 0;", "exit", ["no cp.async.bulk.wait_group follows"], threads=32)


@pytest.mark.parametrize("fence, enough", [
    ("fence.proxy.async;", True), ("fence.proxy.async.global;", True), ("fence.proxy.async.shared::cta;", False), ("", False),
])
def test_a_proxy_fence_covers_the_state_space_that_it_names(fence, enough):
    body = INIT.replace("COUNT", "1") + "@%p2 st.global.b32 [%rd1], 7;" + fence + LOAD + WAIT
    found = findings(body, threads=32)
    assert {k for k, _ in found} == (set() if enough else {"proxy"}), found
    if not enough:
        assert "reads global address" in found[0][1] and "no fence.proxy.async between" in found[0][1]
    shared = STORE.replace("fence.proxy.async.shared::cta;", fence)
    assert ("proxy" in {k for k, _ in findings(shared, threads=32)}) == (fence in ("", "fence.proxy.async.global;"))


def test_an_mbarrier_is_fenced_before_a_copy_signals_it():
    body = INIT.replace("COUNT", "1") + LOAD + WAIT
    check(body, "fence.mbarrier_init.release.cluster;", "proxy", ["signals mbarrier 0x2000", "no fence.mbarrier_init"])


def test_an_mbarrier_is_used_after_its_initialisation():
    body = "@%p2 mbarrier.init.shared.b64 [%r3], 32; bar.sync 0; @!%p1 mbarrier.arrive.shared.b64 %rd3, [%r3];"
    swapped = "@%p2 mbarrier.init.shared.b64 [%r3], 32; @!%p1 bar.sync 1, 32; @!%p1 mbarrier.arrive.shared.b64 %rd3, [%r3];"
    assert findings(body, seeds=[0]) == []
    assert [k for k, _ in findings(swapped, seeds=[0])] == ["race"]


def test_cp_async_is_waited_for():
    body = "cp.async.ca.shared.global [%r5], [%rd1], 4; cp.async.commit_group; cp.async.wait_group 0; ld.shared.b32 %r8, [%r5];"
    assert findings(body, threads=32) == []
    wrong = kernel(body.replace("cp.async.wait_group 0;", ""))
    launch = emulator.run(wrong, 1, 32, (np.zeros(64, np.uint32),), completion="immediate", races=True)
    assert "cp.async of warp 0" in launch.findings[0][1] and launch.findings[0][0] == "race"


FLAG = """mov.u32 %r9, %ctaid.x; setp.ne.b32 %p3, %r9, 0; @%p3 bra TAKE;
st.global.b32 [%rd1], 7; RELEASE; bra END;
TAKE: SPIN: ld.ACQUIRE.gpu.global.b32 %r10, [%rd1+64]; setp.eq.b32 %p4, %r10, 0; @%p4 bra SPIN; FENCE
ld.global.b32 %r11, [%rd1]; END:"""


@pytest.mark.parametrize("release, acquire, fence, races", [
    ("red.release.gpu.global.add.u32 [%rd1+64], 1", "acquire", "", False),
    ("red.relaxed.gpu.global.add.u32 [%rd1+64], 1", "acquire", "", True),
    ("red.release.gpu.global.add.u32 [%rd1+64], 1", "relaxed", "", True),
    ("red.release.gpu.global.add.u32 [%rd1+64], 1", "relaxed", "fence.acq_rel.gpu;", False),
    ("fence.acq_rel.gpu; st.relaxed.gpu.global.b32 [%rd1+64], 1", "acquire", "", False),
    ("st.release.gpu.global.b32 [%rd1+64], 1", "acquire", "", False),
])
def test_release_and_acquire_between_ctas(release, acquire, fence, races):
    body = FLAG.replace("RELEASE", release).replace("ACQUIRE", acquire).replace("FENCE", fence)
    found = findings(body, threads=1, grid=2)
    assert {k for k, _ in found} == ({"race"} if races else set()), found


def test_two_ctas_write_one_address():
    body = "mov.u32 %r9, %ctaid.x; VALUE @%p2 st.global.b32 [%rd1], %r9;"
    assert {k for k, _ in findings(body.replace("VALUE", ""), grid=2)} == {"race"}
    assert findings(body.replace("VALUE", "mov.b32 %r9, 5;"), grid=2) == []  # the same value twice
    assert findings("@%p2 red.global.add.u32 [%rd1], 1;", grid=2) == []


def test_a_warp_that_arrives_twice():
    body = "@%p1 bar.arrive 1, 64; @!%p1 bar.sync 1, 64; bar.sync 0; @%p1 bar.arrive 1, 64; @!%p1 bar.sync 1, 64;"
    assert findings(body) == []
    found = findings(body.replace("@!%p1 bar.sync 1, 64;", ""))
    assert [k for k, _ in found] == ["barrier"] and "arrives twice" in found[0][1]


REMOTE = INIT.replace("COUNT", "1").replace("bar.sync 0;", "barrier.cluster.arrive.relaxed; barrier.cluster.wait;") + """
mov.u32 %r9, %cluster_ctarank; setp.eq.b32 %p3, %r9, 0; mapa.shared::cluster.u32 %r10, %r3, 0;
@%p3 bra TAKE; @%p2 mbarrier.arrive.shared::cluster.b64 _, [%r10]; bra END; TAKE: """ + WAIT + " END:"


def test_remote_arrivals():
    options = dict(grid=2, cluster=(2, 1, 1), threads=32)
    assert findings(REMOTE, **options) == []
    found = findings(REMOTE.replace(WAIT, ""), **options)
    assert any(k == "exit" and "CTA rank 0, which may have exited before" in m for k, m in found), found
    found = findings(REMOTE.replace("fence.mbarrier_init.release.cluster;", ""), **options)
    assert any(k == "race" and "initialised at line" in m for k, m in found), found


WGMMA_REGS = REGS + ".reg .f32 %d<4>; .reg .b64 %ma; mov.b64 %ma, 0x0000004000080040; mov.f32 %d0, 0f00000000;"
WGMMA = """st.shared.b32 [%r5], 0; fence.proxy.async.shared::cta; bar.sync 0; wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%d0, %d1, %d2, %d3}, %ma, %ma, 0, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; add.f32 %f1, %d0, %d0;"""


def wgmma(body):
    data = np.zeros(64, np.uint32)
    return emulator.run(kernel(body, WGMMA_REGS, "sm_90a"), 1, 128, (data,), completion="immediate", races=True).findings


@pytest.mark.parametrize("taken, kind, words", [
    ("wgmma.fence.sync.aligned;", "order", "no wgmma.fence before the first"),
    ("wgmma.wait_group.sync.aligned 0;", "order", "reads a register that line"),
    ("wgmma.commit_group.sync.aligned;", "order", "wgmma.wait_group is needed"),
    ("fence.proxy.async.shared::cta;", "proxy", "no fence.proxy.async between"),
    ("bar.sync 0;", "race", "wgmma.mma_async"),
])
def test_wgmma(taken, kind, words):
    assert wgmma(WGMMA) == []
    found = wgmma(WGMMA.replace(taken, ""))
    assert any(k == kind and words in m for k, m in found), found


def test_wgmma_fence_between_a_register_and_the_next_wgmma():
    again = WGMMA[WGMMA.index("wgmma.fence") :].replace(", 0, 1, 1, 0, 0;", ", 1, 1, 1, 0, 0;")
    body = WGMMA + "mov.f32 %d0, 0f3f800000;" + again
    assert wgmma(body) == []
    at = body.rindex("wgmma.fence.sync.aligned;")
    found = wgmma(body[:at] + body[at + len("wgmma.fence.sync.aligned;") :])
    assert any(k == "order" and "with no wgmma.fence since" in m for k, m in found), found


OTHER = "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%d0, %d1, %d2, %d3, %f2, %f3, %f4, %f5}, %ma, %ma, 0, 1, 1, 0, 0;"
SUMS = WGMMA[WGMMA.index("wgmma.mma_async") : WGMMA.index("wgmma.commit_group")]
FRAGMENT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f2, %f3, %f4, %f5}, {%d0, %d1, %d2, %d3}, %ma, 0, 1, 1, 0;"
WAITS = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"


@pytest.mark.parametrize("then, needs_fence", [
    (SUMS, False),  # accumulators of one shape are in order by default
    (OTHER, True),
    (WAITS + FRAGMENT, True),
    (WAITS + "FENCE" + FRAGMENT + FRAGMENT, False),  # two readers
])
def test_wgmma_fence_between_two_uses_of_a_register(then, needs_fence):
    zero = "".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(2, 6))
    fence = "wgmma.fence.sync.aligned;"
    body = WGMMA.replace("bar.sync 0;", "bar.sync 0;" + zero).replace(SUMS, SUMS + then.replace("FENCE", fence))
    found = wgmma(body)
    assert [k for k, _ in found] == (["order"] if needs_fence else []), found
    if needs_fence:
        assert "in another shape, with no wgmma.fence since" in found[0][1]
        at = body.index(then.removeprefix(WAITS), body.index(SUMS) + len(SUMS))
        assert wgmma(body[:at] + fence + body[at:]) == []


def test_wgmma_waits_before_it_adds_to_a_fragment_that_is_read():
    zero = "".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(2, 6))
    body = WGMMA.replace("bar.sync 0;", "bar.sync 0;" + zero).replace(SUMS, SUMS + WAITS + "wgmma.fence.sync.aligned;" + FRAGMENT
                                                                      + "WAIT wgmma.fence.sync.aligned;" + SUMS)
    assert wgmma(body.replace("WAIT", WAITS)) == []
    found = wgmma(body.replace("WAIT", ""))
    assert [k for k, _ in found] == ["order"] and "adds to a fragment that line" in found[0][1], found


# Warps 0 and 4 may touch the same lanes of tensor memory.
TMEM = """setp.eq.b32 %p4, %r1, 4; @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32; bar.sync 0;
ld.shared.b32 %r20, [%r3];
@!%p1 bra NOT0; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {%r0}; tcgen05.wait::st.sync.aligned; NOT0:
tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
@!%p4 bra NOT4; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r21}, [%r20];
tcgen05.wait::ld.sync.aligned; add.s32 %r22, %r21, 1; NOT4:
tcgen05.fence::before_thread_sync; bar.sync 1, 160; tcgen05.fence::after_thread_sync;
@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32;"""


@pytest.mark.parametrize("taken, races, kind, words", [
    ("tcgen05.wait::st.sync.aligned;", True, "race", "tcgen05.st of warp 0"),
    ("bar.sync 1, 160;", True, "race", "tcgen05.dealloc"),
    ("tcgen05.wait::ld.sync.aligned;", "strict", "order", "no tcgen05.wait::ld since"),
    ("tcgen05.fence::before_thread_sync; bar.sync 0;", "strict", "order", "tcgen05.fence::before_thread_sync"),
    ("bar.sync 0; tcgen05.fence::after_thread_sync;", "strict", "order", "tcgen05.fence::after_thread_sync"),
])
def test_tensor_memory_passes_between_warps(taken, races, kind, words):
    options = dict(threads=160, races=races, seeds=[0])
    assert findings(TMEM, **options) == []
    instead = "bar.sync 0;" if "bar.sync 0" in taken else ""
    assert TMEM.count(taken) == 1
    found = findings(TMEM.replace(taken, instead), **options)
    assert any(k == kind and words in m for k, m in found), found


MMA = """@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+8], 32; st.shared.b32 [%r5], 0;
st.shared.b32 [%r5+512], 0;
st.shared.b32 [%r5+1024], 0; st.shared.b32 [%r5+1536], 0; st.shared.b32 [%r5+2048], 0; st.shared.b32 [%r5+2560], 0;
st.shared.b32 [%r5+3072], 0; st.shared.b32 [%r5+3584], 0; fence.proxy.async.shared::cta;""" + INIT.replace("COUNT", "1") + """
ld.shared.b32 %r20, [%r3+8]; mov.b64 %rd5, 0x0000401000010040; mov.b32 %r21, 0x08040490;
@%p2 tcgen05.mma.cta_group::1.kind::f16 [%r20], %rd5, %rd5, %r21, 0;
@%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];
""" + WAIT + """ shl.b32 %r22, %r1, 21; add.s32 %r22, %r22, %r20; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r23}, [%r22];
bar.sync 0; @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32;"""


def mma(body, completion="immediate"):
    return emulator.run(kernel(body), 1, 128, (np.zeros(64, np.uint32),), completion=completion, races=True).findings


@pytest.mark.parametrize("taken, kind, words", [
    (WAIT, "race", "tcgen05.mma of warp 0 of CTA 0,0,0 wrote at line"),
    ("fence.proxy.async.shared::cta;", "proxy", "tcgen05.mma"),
    ("fence.mbarrier_init.release.cluster;", "proxy", "tcgen05.commit"),
])
def test_mma_and_commit(taken, kind, words):
    assert mma(MMA) == mma(MMA, "late") == []
    found = mma(MMA.replace(taken, ""))
    assert any(k == kind and words in m for k, m in found), found


def test_a_dependent_grid_waits_before_it_touches_global_memory():
    body = "griddepcontrol.launch_dependents; @%p1 griddepcontrol.wait; bar.sync 0; ld.global.b32 %r8, [%rd1];"
    assert findings(body, races="strict") == []
    found = findings(body.replace("@%p1 griddepcontrol.wait;", ""), races="strict")
    assert [k for k, _ in found] == ["order"] and "before griddepcontrol.wait" in found[0][1]
    found = findings(body.replace("bar.sync 0;", ""), races="strict", seeds=[0])  # the other warp knows nothing of that wait
    assert [k for k, _ in found] == ["order"]


def test_strict_names_what_nobody_waits_for():
    body = INIT.replace("COUNT", "32") + "@%p1 mbarrier.arrive.shared.b64 %rd3, [%r3]; @!%p1 bra END;" + WAIT + "END:"
    assert findings(body, races="strict") == []
    found = findings(body.replace(WAIT, ""), races="strict")
    assert [k for k, _ in found] == ["unawaited"] and "no thread ever waits for" in found[0][1]
    assert findings(body.replace(WAIT, "")) == []


def test_reports_name_source_lines():
    body = '.loc 1 70 3\n@%p1 st.shared.b32 [%r7], %r0;\n.loc 1 71 3\n@!%p1 ld.shared.b32 %r8, [%r7];'
    found = findings(body, seeds=[0])
    assert "(source line 71 of file 1): ld.shared.b32" in found[0][1]
    assert "(source line 70 of file 1): st.shared.b32" in found[0][1]


def test_off_by_default():
    assert findings("@%p1 st.shared.b32 [%r7], %r0; @!%p1 ld.shared.b32 %r8, [%r7];", races=False) == []
