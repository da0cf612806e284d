"""Each synchronisation statement of a small pipelined kernel is deleted in turn: all are seen, and the whole kernel is silent.

The producer warp brings tiles through a ring of two stages by bulk copies; two consumer warps add one to each element,
write it to a staging buffer, and a bulk store takes it away. flash-attn-4's kernels: benchmarks/emulator_sensitivity.py."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flexfa4 import emulator
from flexfa4.emulator import sensitivity

SCHEDULES = [(0, "late"), (1, "random"), (2, "late"), (3, "late")]


def wait(bar: str, parity: str) -> str:
    return f"{{\nW:\nmbarrier.try_wait.parity.shared.b64 %p7, [{bar}], {parity};\n@!%p7 bra W;\n}}"


PIPELINE = f"""
.version 9.4
.target sm_100a
.address_size 64
.visible .entry pipeline(.param .u64 src, .param .u64 dst, .param .u32 tiles)
{{
.reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<8>;
.shared .align 128 .b8 ring[512]; .shared .align 128 .b8 staging[256]; .shared .align 8 .b8 bars[32];
mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31; mov.b32 %r3, bars; mov.b32 %r4, ring; mov.b32 %r5, staging;
ld.param.b64 %rd1, [src]; ld.param.b64 %rd2, [dst]; ld.param.b32 %r6, [tiles]; mov.b32 %r7, 0; mov.b32 %r8, 0;
setp.ne.b32 %p1, %r0, 0; setp.ne.b32 %p2, %r1, 0; setp.ne.b32 %p3, %r2, 0; sub.s32 %r9, %r0, 32;
shl.b32 %r9, %r9, 2; add.s32 %r10, %r5, %r9; setp.ne.b32 %p5, %r0, 32;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 1;
mbarrier.init.shared.b64 [%r3+8], 1;
mbarrier.init.shared.b64 [%r3+16], 2;
mbarrier.init.shared.b64 [%r3+24], 2;
fence.mbarrier_init.release.cluster;
READY:
bar.sync 0;
@%p2 bra CONSUME;
PRODUCE:
and.b32 %r11, %r7, 1; shl.b32 %r12, %r11, 3; add.s32 %r13, %r3, %r12; shl.b32 %r14, %r11, 8; add.s32 %r15, %r4, %r14;
shr.u32 %r16, %r7, 1; and.b32 %r16, %r16, 1; xor.b32 %r17, %r16, 1; add.s32 %r18, %r13, 16;
{wait("%r18", "%r17")}
@%p3 bra NEXT;
mbarrier.arrive.expect_tx.shared.b64 [%r13], 256;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r15], [%rd1], 256, [%r13];
NEXT:
add.s64 %rd1, %rd1, 256; add.s32 %r7, %r7, 1; setp.lt.u32 %p4, %r7, %r6;
@%p4 bra PRODUCE;
bra END;
CONSUME:
and.b32 %r11, %r8, 1; shl.b32 %r12, %r11, 3; add.s32 %r13, %r3, %r12; shl.b32 %r14, %r11, 8; add.s32 %r15, %r4, %r14;
shr.u32 %r16, %r8, 1; and.b32 %r16, %r16, 1; add.s32 %r18, %r13, 16; add.s32 %r19, %r15, %r9;
{wait("%r13", "%r16")}
ld.shared.b32 %r20, [%r19]; add.s32 %r20, %r20, 1;
bar.warp.sync -1;
@%p3 bra RELEASED;
mbarrier.arrive.shared.b64 %rd3, [%r18];
RELEASED:
@%p5 bra FREE;
cp.async.bulk.wait_group.read 0;
FREE:
bar.sync 1, 64;
st.shared.b32 [%r10], %r20;
fence.proxy.async.shared::cta;
bar.sync 2, 64;
@%p5 bra STORED;
cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r5], 256;
cp.async.bulk.commit_group;
STORED:
add.s64 %rd2, %rd2, 256; add.s32 %r8, %r8, 1; setp.lt.u32 %p4, %r8, %r6;
@%p4 bra CONSUME;
@%p5 bra END;
cp.async.bulk.wait_group 0;
END:
ret;
}}
"""


@pytest.fixture(scope="module")
def judge():
    src, dst = np.arange(7 * 64, dtype=np.uint32), np.zeros(7 * 64, np.uint32)
    return sensitivity.Judge([sensitivity.record(PIPELINE, 1, 96, (src, dst, 7), completion="immediate")], SCHEDULES)


def test_the_whole_kernel_is_right_and_silent(judge):
    (record,) = judge.records
    src, dst = np.arange(7 * 64, dtype=np.uint32), np.zeros(7 * 64, np.uint32)
    emulator.run(PIPELINE, 1, 96, (src, dst, 7), completion="late", seed=3)
    assert (dst == src + 1).all() and dst.tobytes() in record.after
    assert judge.known[True] == set()
    assert judge(PIPELINE).how == ""


def test_every_deletion_is_seen(judge):
    sites = sensitivity.sites(PIPELINE)
    assert [s.kind for s in sites].count("mbarrier wait") == 2 and len(sites) == 13
    verdicts = {s.text: judge(sensitivity.without(PIPELINE, s), s) for s in sites}
    assert all(v.executed for v in verdicts.values())
    assert {text for text, v in verdicts.items() if not v.how} == set(), verdicts
    # Those that a lucky schedule would never show are seen by the rules.
    assert verdicts["fence.proxy.async.shared::cta"].how == "proxy" == verdicts["fence.mbarrier_init.release.cluster"].how
    assert verdicts["bar.warp.sync -1"].how == "race"


def test_a_deleted_wait_is_over_at_once():
    first = next(s for s in sensitivity.sites(PIPELINE) if s.kind == "mbarrier wait")
    mutant = sensitivity.without(PIPELINE, first)
    assert mutant.count("try_wait") == 1 and "mov.pred %p7, 1;" in mutant.splitlines()[first.line - 1]


FA4 = """
import sys
sys.path[:0] = [{root!r}, {here!r}, {bench!r}]
import json, emulator_sensitivity as bench
from flexfa4.emulator import sensitivity
launches = bench.records({name!r})[{kernel}]
judge = sensitivity.Judge(launches, bench.SCHEDULES[:3])
out, seen = [], {{}}
for site in sensitivity.sites(launches[0].ptx):
    if site.kind in sensitivity.APART or seen.setdefault(site.kind, 0) >= 3:
        continue
    verdict = judge(sensitivity.without(launches[0].ptx, site), site)
    seen[site.kind] += bool(verdict.how)
    out.append([site.kind, verdict.how, site.text])
print(json.dumps([out, sorted(judge.known[True])]))
"""


@pytest.mark.emulate
@pytest.mark.slow
@pytest.mark.skipif(any(importlib.util.find_spec(m) is None for m in ("cutlass", "flash_attn")), reason="needs flash-attn-4")
@pytest.mark.parametrize("name, kernel, silent", [
    ("sm_90a-forward", 0, True),
    ("sm_100a-forward", 0, True),
    ("sm_100a-backward", 1, False),
])
def test_some_deletions_of_each_kind_from_flash_attention(name, kernel, silent):
    here = Path(__file__).resolve().parent
    root = here.parents[1]
    code = FA4.format(root=str(root), here=str(here), bench=str(root / "benchmarks"), name=name, kernel=kernel)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    rows, known = json.loads(done.stdout.splitlines()[-1])
    # The one finding on an unmutated kernel: the backward's last bulk stores are never waited for.
    assert known == [] if silent else {kind for kind, _ in known} == {"exit"}
    for kind in {k for k, _, _ in rows}:
        caught = [how for k, how, _ in rows if k == kind and how]
        assert len(caught) >= min(3, sum(k == kind for k, _, _ in rows) - 1), (kind, rows)
