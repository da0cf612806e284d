"""Modelled time: micro-programs whose clocks are known, sections, and that a turn keeps two warps of a quarter apart."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from flexfa4 import emulator
from flexfa4.emulator.clocks import COST, Clocks, Cost
from flexfa4.emulator.timeline import Timeline
from micro import ALL
from micro.asynchronous import WAIT
from micro.program import Program, emulate


# A slot an instruction, ex2 8 clocks, fma 1; barriers and waits cost nothing beside their slot.
CLOCKS = Clocks("test", ((r"mov|ld\.param|cvta|bra|ret|setp|shr|exit", Cost(issue=0)), (r"ex2", Cost(busy=8, unit="special")),
                         (r"fma", Cost(busy=1, unit="fma")), (r"cp\.async\.bulk\.", Cost(latency=700, copy=True)),
                         (r"tcgen05\.mma", Cost(latency=40)), (r"st\.", Cost(busy=1, unit="memory", kind="store"))),
                tensor=4096.0, wake=0.0, ahead=0.0)


def timeline(body: str, block: int, clocks: Clocks = CLOCKS, **options) -> Timeline:
    program = Program("timed", body, (np.zeros(64, np.uint32),), {}, block=block, **options)
    launch = emulator.run(program.ptx, program.grid, program.block, [a.copy() for a in program.arrays], timing=clocks)
    return launch.timing


def exponentials(count: int, register: int = 1) -> str:
    return f"ex2.approx.ftz.f32 %r{register}, %r{register}; " * count


def span(line: Timeline, pattern: str) -> int:
    """From the first matching issue to the last."""
    found = line.where(pattern)["clock"].astype(int)
    return int(found.max() - found.min())


def test_one_warp_is_held_by_the_unit():
    assert span(timeline(exponentials(100), 32), "ex2") == 99 * 8
    assert span(timeline("fma.rn.f32 %r1, %r1, %r1, %r1; " * 100, 32), "fma") == 99


@pytest.mark.parametrize("warps, clocks", [(4, 99 * 8), (5, 199 * 8), (8, 199 * 8)])
def test_warps_of_a_quarter_share_its_unit(warps, clocks):
    assert span(timeline(exponentials(100), 32 * warps), "ex2") == clocks


def test_slots_are_shared_and_taken_in_turn():
    line = timeline("fma.rn.f32 %r1, %r1, %r1, %r1; " * 50, 32 * 8)
    first = line.issues[line.issues["warp"] % 4 == 0]
    mine = first[np.isin(first["pc"], np.unique(line.where("fma")["pc"]))]
    assert mine["warp"].tolist() == [0, 4] * 50 and np.diff(np.sort(mine["clock"])).tolist() == [1] * 99


def test_the_other_unit_goes_on_as_far_ahead_as_the_queue_reaches():
    body = exponentials(10) + "fma.rn.f32 %r2, %r2, %r2, %r2; " + exponentials(10)
    at = {ahead: int(timeline(body, 32, replace(CLOCKS, ahead=ahead)).where("fma")["clock"][0]) for ahead in (0.0, 16.0, 80.0)}
    assert at == {0.0: 9 * 8 + 1, 16.0: 7 * 8 + 1, 80.0: 10}


def test_what_announces_waits_for_the_queue():
    clocks = replace(CLOCKS, ahead=1000.0, table=(*CLOCKS.table, (r"bar\.", Cost(kind="result"))))
    line = timeline(exponentials(10) + "bar.sync 0;", 32, clocks)
    assert int(line.where("bar")["clock"][0]) == 80


def test_a_copy_takes_its_bytes_and_its_latency():
    body = """.shared .align 128 .b8 buf[1024]; .shared .align 8 .b8 bar[8]; mov.b32 %r10, buf; mov.b32 %r11, bar;
mov.u32 %r0, %tid.x; setp.ne.u32 %p1, %r0, 0; @!%p1 mbarrier.init.shared::cta.b64 [%r11], 1;
@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 256;
@!%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%rd50], 256, [%r11]; """ + WAIT
    line = timeline(body + "fma.rn.f32 %r1, %r1, %r1, %r1;", 32)
    (copy,) = line.trace.work(0)
    assert copy["end"] - copy["start"] == 700 + 256 / 64
    assert int(line.where("fma")["clock"][0]) == copy["end"] + 1
    slow = timeline(body + "fma.rn.f32 %r1, %r1, %r1, %r1;", 32, replace(CLOCKS, wake=50.0))
    assert int(slow.where("fma")["clock"][0]) == copy["end"] + 51


def test_products_take_their_work_one_after_the_other():
    program = ALL["tcgen05.mma f16 bf16 bf16 128x48 swizzle 128"]
    launch = emulator.run(program.ptx, program.grid, program.block, [a.copy() for a in program.arrays], timing=CLOCKS)
    work = launch.trace.work(0)
    work = work[work["work"] > 0]
    clocks = max(128 * 48 * 16 / 4096, (128 + 48) * 32 / 128)  # multiply-adds, or bytes of the operands
    assert (work["work"] == 128 * 48 * 16).all() and len(work) > 1
    assert np.abs(work["end"] - work["start"][0] - 40 - clocks * np.arange(1, len(work) + 1)).max() <= len(work)


@pytest.mark.parametrize("name", ["tcgen05.mma f16 bf16 bf16 128x48 swizzle 128",
                                  "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 swizzle 128"])
def test_results_are_those_of_any_other_run(name):
    clocks = emulator.BLACKWELL_CLOCKS if ALL[name].arch == "sm_100a" else emulator.HOPPER_CLOCKS
    ALL[name].check(emulate(ALL[name], timing=clocks))


# Two warps of quarter 0 (0 and 4) do 32 exponentials and then 64 additions, three times; the others leave.
STEPS = """.shared .align 8 .b8 bar[16]; mov.b32 %r11, bar; mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; setp.ne.u32 %p1, %r0, 0;
@!%p1 mbarrier.init.shared::cta.b64 [%r11], 1; @!%p1 mbarrier.init.shared::cta.b64 [%r11+8], 1; bar.sync 0;
setp.ne.u32 %p2, %r1, 0; setp.ne.u32 %p3, %r1, 4; and.pred %p4, %p2, %p3; @%p4 bra END;
shr.u32 %r2, %r1, 2; shl.b32 %r3, %r2, 3; add.u32 %r12, %r11, %r3; xor.b32 %r3, %r3, 8; add.u32 %r13, %r11, %r3;
and.b32 %r4, %r0, 31; setp.ne.u32 %p5, %r4, 0; xor.b32 %r5, %r2, 1;
"""
TURN = "W{0}: mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r12], %r5; @!%p6 bra W{0};\n"
PASS = "@!%p5 mbarrier.arrive.shared::cta.b64 _, [%r13]; xor.b32 %r5, %r5, 1;\n"


def steps(turns: bool) -> Timeline:
    body = STEPS
    for i in range(3):
        body += (TURN.format(i) if turns else "") + exponentials(32, 20) + (PASS if turns else "")
        body += "fma.rn.f32 %r21, %r21, %r21, %r21; " * 64 + "\n"
    return timeline(body + "END:", 32 * 8)


def test_turns_keep_sections_apart():
    together, apart = (steps(turns).together(gap=30) for turns in (False, True))
    assert together.count == apart.count == 3
    assert together.share > 0.7 and together.length == pytest.approx(2 * 32 * 8, rel=0.1)
    assert apart.both == 0 and apart.length == 31 * 8 + 1
    assert apart.busy == pytest.approx(6 * 32 * 8 / apart.clocks, rel=1e-6)


def test_text_and_picture(tmp_path):
    line = steps(True)
    text = line.text(width=60, pattern=r"ex2\.")
    assert "E" in text and "#" in text
    if importlib.util.find_spec("matplotlib") is not None:
        line.draw(tmp_path / "timeline.png")
        assert (tmp_path / "timeline.png").stat().st_size > 5000


def test_a_deadlock_is_one_in_modelled_time_too():
    with pytest.raises(emulator.Deadlock):
        timeline(STEPS + "xor.b32 %r5, %r5, 1; " + TURN.format(0) + "END:", 32 * 8)


def test_costs_are_a_row_an_instruction():
    rows = emulator.BLACKWELL_CLOCKS.costs(["ex2.approx.ftz.f32", "tcgen05.ld.sync.aligned.32x32b.x16.b32", "mov.b64", "add.s32"])
    assert rows.dtype == COST and rows["busy"].tolist() == [8.0, 8.0, 0.0, 2.0] and rows["issue"].tolist() == [1, 1, 0, 1]
