"""Distributed shared memory, remote barriers, multicast copies and cluster launch control."""

import numpy as np

from .asynchronous import WAIT, TensorMap
from .program import Program

RNG = np.random.default_rng(17)
# %r0 thread, %r1 CTA of the cluster, %r10 buf, %r11 mbarrier with `arrivals`, %rd2 this thread's word of %rd50 (32 a CTA).
START = """.shared .align 1024 .b8 buf[4096];
.shared .align 8 .b8 bar[8];
mov.u32 %r0, %tid.x; mov.u32 %r1, %cluster_ctarank; mov.b32 %r10, buf; mov.b32 %r11, bar; setp.ne.u32 %p1, %r0, 0;
mad.lo.u32 %r2, %r1, 32, %r0; mad.wide.u32 %rd2, %r2, 4, %rd50; mad.wide.u32 %rd1, %r2, 4, %rd51;
shl.b32 %r3, %r0, 2; add.u32 %r4, %r10, %r3; ld.global.b32 %r5, [%rd1];
@!%p1 mbarrier.init.shared::cta.b64 [%r11], ARRIVALS; @!%p1 fence.mbarrier_init.release.cluster;
@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], BYTES;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"


def program(name, body, want, values, ctas=4, arrivals=1, expected=0, **more) -> Program:
    start = START.replace("ARRIVALS", str(arrivals)).replace("BYTES", str(expected))
    return Program(name, start + body, (np.zeros(len(want), np.uint32), values), {0: want}, grid=ctas, cluster=ctas, **more)


def _distributed():
    values = RNG.integers(0, 2**32, 128, dtype=np.uint32)
    rows = values.reshape(4, 32)
    next_one = "add.u32 %r6, %r1, 1; and.b32 %r6, %r6, 3; mapa.shared::cluster.u32 %r7, %r4, %r6;\n"
    read = "st.shared.b32 [%r4], %r5;" + MEET + next_one + "ld.shared::cluster.b32 %r8, [%r7]; st.global.b32 [%rd2], %r8;" + MEET
    yield program("mapa, ld.shared::cluster", read, np.roll(rows, -1, 0).reshape(-1).copy(), values)
    write = next_one + "st.shared::cluster.b32 [%r7], %r5;" + MEET + "ld.shared.b32 %r8, [%r4]; st.global.b32 [%rd2], %r8;"
    yield program("st.shared::cluster", write, np.roll(rows, 1, 0).reshape(-1).copy(), values)
    add = ("st.shared.b32 [%r4], %r5;" + MEET + next_one + "atom.relaxed.cluster.shared::cluster.add.u32 %r8, [%r7], 3;" + MEET
           + "ld.shared.b32 %r8, [%r4]; st.global.b32 [%rd2], %r8;")
    yield program("atom.shared::cluster.add", add, values + np.uint32(3), values)
    # Every CTA arrives on the barrier of the next one; nobody passes before the neighbour came.
    arrive = next_one + ("mapa.shared::cluster.u32 %r9, %r11, %r6; st.shared::cluster.b32 [%r7], %r5; fence.acq_rel.cluster;"
                         "bar.warp.sync -1; @!%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9];"
                         "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p9, [%r11], 0; @!%p9 bra W;"
                         "ld.shared.b32 %r8, [%r4]; st.global.b32 [%rd2], %r8;") + MEET
    yield program("remote mbarrier.arrive", arrive, np.roll(rows, 1, 0).reshape(-1).copy(), values, arrivals=2)
    rank = next_one + "getctarank.shared::cluster.u32 %r8, %r7; st.global.b32 [%rd2], %r8;" + MEET
    yield program("getctarank", rank, np.repeat(np.roll(np.arange(4, dtype=np.uint32), -1), 32), values)
    registers = ("mov.u32 %r20, %cluster_nctarank; mov.u32 %r21, %cluster_ctaid.x; mov.u32 %r22, %clusterid.x; mov.u32 %r23,"
                 " %ctaid.x;"
                 "shl.b32 %r20, %r20, 24; shl.b32 %r21, %r21, 16; shl.b32 %r22, %r22, 8; or.b32 %r8, %r20, %r21; or.b32 %r8,"
                 " %r8, %r22;"
                 "or.b32 %r8, %r8, %r23; st.global.b32 [%rd2], %r8;")
    yield program("special registers of a cluster", registers,
                  np.repeat(np.array([4 << 24 | i << 16 | i for i in range(4)], np.uint32), 32), values)


def _asynchronous():
    values = RNG.integers(0, 2**32, 128, dtype=np.uint32)
    rows = values.reshape(4, 32)
    remote = ("add.u32 %r6, %r1, 1; and.b32 %r6, %r6, 3; mapa.shared::cluster.u32 %r7, %r4, %r6;"
              "mapa.shared::cluster.u32 %r9, %r11, %r6;\n")
    done = WAIT + "ld.shared.b32 %r8, [%r4]; st.global.b32 [%rd2], %r8;" + MEET
    store = remote + "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r7], %r5, [%r9];" + done
    yield program("st.async.b32", store, np.roll(rows, 1, 0).reshape(-1).copy(), values, expected=128)
    vector = remote + ("setp.ge.u32 %p2, %r0, 8; mad.wide.u32 %rd3, %r0, 12, %rd1; ld.global.v4.b32 {%r20, %r21, %r22, %r23},"
                       " [%rd3];"
                       "mad.lo.u32 %r7, %r0, 12, %r7;"
                       "@!%p2 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r7], {%r20, %r21, %r22,"
                       " %r23}, [%r9];")
    padded = np.concatenate([values, np.zeros(512, np.uint32)])
    yield program("st.async.v4.b32", vector + done, np.roll(rows, 1, 0).reshape(-1).copy(), padded, expected=128)
    reduce = ("mov.b32 %r8, 0; st.shared.b32 [%r4], %r8;" + MEET + remote
              + "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r7], %r5, [%r9];" + done)
    yield program("red.async.add.u32", reduce, np.roll(rows, 1, 0).reshape(-1).copy(), values, expected=128)
    copy = ("st.shared.b32 [%r4], %r5; fence.proxy.async.shared::cta; bar.sync 0;" + remote
            + "add.u32 %r20, %r10, 2048; mapa.shared::cluster.u32 %r20, %r20, %r6;"
              " @!%p1 cp.async.bulk.shared::cluster.shared::cta."
            "mbarrier::complete_tx::bytes [%r20], [%r10], 128, [%r9];" + WAIT
            + "ld.shared.b32 %r8, [%r4+2048]; st.global.b32 [%rd2], %r8;" + MEET)
    yield program("cp.async.bulk between CTAs", copy, np.roll(rows, 1, 0).reshape(-1).copy(), values, expected=128)
    # CTA 1 loads for CTAs 0, 1 and 3.
    array = RNG.integers(0, 2**32, (4, 32), dtype=np.uint32)
    multicast = ("setp.ne.u32 %p3, %r1, 1; setp.eq.u32 %p4, %r1, 2; or.pred %p5, %p1, %p3; mov.b16 %h1, 11; mov.b32 %r8, 0;"
                 "mov.b64 %rd8, m0; cvta.param.u64 %rd8, %rd8; mov.b32 %r20, 0; mov.b32 %r21, 2;"
                 "@!%p5 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%r10], [%rd8, {%r20, %r21}], [%r11], %h1; @%p4 bra SKIP;" + WAIT + "ld.shared.b32 %r8, [%r4];"
                 "SKIP: st.global.b32 [%rd2], %r8;" + MEET)
    want = np.stack([array[2], array[2], np.zeros(32, np.uint32), array[2]]).reshape(-1)
    start = START.replace("ARRIVALS", "1").replace("BYTES", "128").replace("ld.global.b32 %r5, [%rd1];", "")
    yield Program("multicast tensor load", start + multicast, (np.zeros(128, np.uint32), array), {0: want}, grid=4, cluster=4,
                  maps=((1, TensorMap(array, (32, 1), 128)),))
    bulk = ("setp.ne.u32 %p3, %r1, 0; or.pred %p5, %p1, %p3; mov.b16 %h1, 15; @!%p5 cp.async.bulk.shared::cluster.global."
            "mbarrier::complete_tx::bytes.multicast::cluster [%r10], [%rd51], 128, [%r11], %h1;" + WAIT
            + "ld.shared.b32 %r8, [%r4]; st.global.b32 [%rd2], %r8;" + MEET)
    yield program("multicast bulk load", bulk, np.tile(values[:32], 4), values, expected=128)


def _launch_control():
    """One CTA after the other takes over the work of those not launched yet: every CTA's number is counted once."""
    body = """.shared .align 16 .b8 answer[16];
.shared .align 8 .b8 bar[8];
mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.b32 %r10, answer; mov.b32 %r11, bar; setp.ne.u32 %p1, %r0, 0; mov.b32 %r5, 0;
@!%p1 mbarrier.init.shared::cta.b64 [%r11], 1; bar.sync 0;
WORK: mad.wide.u32 %rd1, %r1, 4, %rd50; @!%p1 atom.global.add.u32 %r6, [%rd1], 1; bar.sync 0;
@!%p1 fence.proxy.async.shared::cta; @!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 16;
@!%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r10], [%r11];
W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r11], %r5; @!%p9 bra W; xor.b32 %r5, %r5, 1;
ld.shared.b128 %q1, [%r10]; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q1;
@!%p2 bra DONE; clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r7, %r8, _}, %q1;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r9, %q1; setp.eq.u32 %p3, %r1, %r9; @%p3 bra WORK;
DONE:"""
    yield Program("clusterlaunchcontrol", body, (np.zeros(40, np.uint32),), {0: np.ones(40, np.uint32)}, grid=40, block=64,
                  arch="sm_100a")


def programs():
    yield from _distributed()
    yield from _asynchronous()
    yield from _launch_control()
