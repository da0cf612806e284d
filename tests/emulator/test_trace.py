"""Seeing a launch: roles, waits, counts, memory maps, pictures and the timing hook, on one producer of a bulk copy."""

import importlib.util

import numpy as np
import pytest

from flexfa4 import emulator
from flexfa4.emulator.trace import class_of
from micro import ALL
from micro.asynchronous import WAIT
from micro.program import Program


# Warp 0 copies 1 KiB; warps 1 and 2 wait for it, take square roots and store; warp 3 does nothing.
BODY = """.shared .align 128 .b8 buf[1024];
.shared .align 8 .b8 bar[8];
mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; mov.b32 %r10, buf; mov.b32 %r11, bar; setp.ne.u32 %p1, %r0, 0;
@!%p1 mbarrier.init.shared::cta.b64 [%r11], 1; bar.sync 0;
setp.eq.u32 %p2, %r1, 3; @%p2 bra END; setp.ne.u32 %p3, %r1, 0; @%p3 bra CONSUME;
@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 1024;
@!%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%rd51], 1024, [%r11]; bra END;
CONSUME: """ + WAIT + """sub.u32 %r2, %r0, 32; mad.lo.u32 %r3, %r2, 16, %r10; ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r3];
sqrt.rn.f32 %r20, %r20; sqrt.rn.f32 %r21, %r21; sqrt.rn.f32 %r22, %r22; sqrt.rn.f32 %r23, %r23;
mad.wide.u32 %rd3, %r2, 16, %rd50; st.global.v4.b32 [%rd3], {%r20, %r21, %r22, %r23}; END:"""
VALUES = np.random.default_rng(0).random(256).astype(np.float32)
PROGRAM = Program("pipeline", BODY, (np.zeros(256, np.float32), VALUES), {0: np.sqrt(VALUES)}, block=128)


def launch(program=PROGRAM, **options):
    return emulator.run(program.ptx, program.grid, program.block, [a.copy() for a in program.arrays], **options)


@pytest.fixture(scope="module")
def done():
    return launch(seed=0, completion="late", trace=True)


def test_nothing_is_recorded_unless_asked():
    assert launch().trace is None


def test_counts_of_warps_sum_to_those_of_the_launch(done):
    assert (done.trace.counts.sum(0) == done.counts).all() and done.trace.counts.shape[0] == 4
    assert (done.counts == launch(seed=0, completion="late").counts).all()


def test_roles_and_classes(done):
    roles = done.trace.roles()
    assert roles == {"load": [0], "special": [1, 2], "idle": [3]}
    classes = done.trace.by_class()
    assert classes["load"]["bulk copy"] == 1 and classes["special"]["special function"] == 8
    assert classes["special"]["shared memory"] == 2 and "bulk copy" not in classes["special"]


def test_the_consumers_wait_for_the_copy(done):
    trace = done.trace
    waits = trace.waits(0)
    mine = waits[waits["kind"] == 0]
    assert sorted(mine["warp"].tolist()) == [1, 2] and (mine["object"] == 1024 + 1024).all()
    (copy,) = trace.work(0)
    assert copy["object"] == 1024 and copy["warp"] == 0
    assert (mine["start"] <= copy["end"]).all() and (mine["end"] >= copy["end"]).all() and copy["start"] < copy["end"]
    rows = trace.waited()
    assert ("special", "mbarrier 0x400") in {row[:2] for row in rows}
    trace.names[2048] = "kv_full"
    assert "kv_full" in trace.text(0)


def test_text_has_a_line_a_role_and_one_for_the_copy(done):
    lines = done.trace.text(0, width=40).splitlines()
    found = {line.split()[0]: line for line in reversed(lines) if line.strip()}
    assert "#" in found["load"] and "." in found["special"] and any(line.lstrip().startswith("bulk copy") for line in lines)


def test_memory_maps(done):
    found = {(lo, hi): what for lo, hi, what in done.trace.shared_map()}
    assert found[0, 1024] == "written by cp.async.bulk" and found[1024, 1032] == "mbarrier"
    tensor = launch(ALL["tcgen05.mma f16 bf16 bf16 128x48 swizzle 128"], trace=True).trace
    assert (0, 48, "written by tcgen05.mma") in tensor.tensor_map()


def test_timing_hook_gets_counts_and_work():
    program = ALL["wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 swizzle 128"]
    bound = launch(program, timing=emulator.ThroughputModel(emulator.HOPPER)).timing
    assert bound.cycles["tensor"] == 2 * 64 * 64 * 16 / 2048
    slow = emulator.ThroughputModel(emulator.Rates("slow tensor cores", tensor=0.5))
    assert launch(program, timing=slow).timing.limit == "tensor"
    bound = launch(timing=emulator.ThroughputModel(emulator.Rates("x", copy=2.0, special=0.25))).timing
    assert bound.cycles["copy"] == 512 and bound.cycles["special"] == 8 / 0.25


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_picture(done, tmp_path):
    done.trace.draw(tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").stat().st_size > 5000


@pytest.mark.parametrize("opcode, kind", [
    ("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16", "tensor"), ("wgmma.fence.sync.aligned", "synchronisation"),
    ("cp.async.bulk.tensor.4d.shared::cta.global.tile", "bulk copy"), ("cp.async.bulk.commit_group", "async copy"),
    ("ex2.approx.ftz.f32", "special function"), ("fma.rn.f32x2", "float"), ("ld.shared.v4.b32", "shared memory"),
    ("ld.param.b64", "move"), ("ld.global.nc.b32", "global memory"), ("setp.lt.s32", "control"), ("add.s32", "integer"),
    ("cvt.rn.bf16x2.f32", "conversion"), ("tcgen05.ld.sync.aligned.32x32b.x32.b32", "tensor memory"),
])
def test_classes(opcode, kind):
    assert class_of(opcode) == kind
