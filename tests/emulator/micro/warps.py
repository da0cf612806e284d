"""Exchange between the lanes of a warp, named barriers with reductions, divergence."""

import numpy as np

from .program import Program

RNG = np.random.default_rng(7)
VALUES = RNG.integers(0, 2**32, 32, dtype=np.uint32)
START = "mov.u32 %r0, %tid.x; mul.wide.u32 %rd0, %r0, 4; add.s64 %rd1, %rd50, %rd0; add.s64 %rd2, %rd51, %rd0;\n"
START += "ld.global.u32 %r1, [%rd2];\n"
END = "\nst.global.u32 [%rd1], %r9;"


def warp(name: str, text: str, want, values=VALUES, arch="sm_90a") -> Program:
    """text: from %r1 (the lane's value, lane number in %r0) to %r9."""
    n = len(values)
    return Program(name, START + text + END, (np.zeros(n, np.uint32), values),
                   {0: np.array([int(x) & 0xFFFFFFFF for x in want], np.uint32)}, block=n, arch=arch)


def _shuffles():
    v = VALUES.tolist()
    for mode in ("idx", "up", "down", "bfly"):
        for delta in (0, 1, 5, 16, 31):
            for width in (32, 16, 8):
                clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
                got, inside = [], []
                for lane in range(32):
                    base = lane // width * width
                    j = {"idx": base + delta % width, "up": lane - delta, "down": lane + delta, "bfly": lane ^ delta}[mode]
                    # The clamp field (31) ends every segment; for bfly only the upper end counts.
                    ok = j >= base if mode == "up" else j <= base + width - 1
                    got.append(v[j] if ok else v[lane])
                    inside.append(ok)
                want = [(a + b) for a, b in zip(got, inside)]
                text = f"shfl.sync.{mode}.b32 %r5|%p1, %r1, {delta}, {clamp}, -1; selp.b32 %r6, 1, 0, %p1; add.u32 %r9, %r5, %r6;"
                yield warp(f"shfl.sync.{mode} {delta} of {width}", text, want)


def _votes():
    odd = [x & 1 for x in VALUES.tolist()]
    ballot = sum(b << i for i, b in enumerate(odd))
    test = "and.b32 %r2, %r1, 1; setp.ne.u32 %p1, %r2, 0; "
    yield warp("vote.sync.ballot.b32", test + "vote.sync.ballot.b32 %r9, %p1, -1;", [ballot] * 32)
    yield warp("vote.sync.ballot.b32 negated", test + "vote.sync.ballot.b32 %r9, !%p1, -1;", [ballot ^ 0xFFFFFFFF] * 32)
    for values, name in ((VALUES | 1, "all"), (VALUES & ~np.uint32(1), "none"), (VALUES, "some")):
        bits = [int(x) & 1 for x in values]
        text = test + ("vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1; vote.sync.uni.pred %p4, %p1, -1;"
                       "selp.b32 %r3, 1, 0, %p2; selp.b32 %r4, 2, 0, %p3; selp.b32 %r5, 4, 0, %p4;"
                       "or.b32 %r9, %r3, %r4; or.b32 %r9, %r9, %r5;")
        want = any(bits) | all(bits) << 1 | (len(set(bits)) == 1) << 2
        yield warp(f"vote.sync any all uni, {name}", text, [want] * 32, values)
    few = VALUES % np.uint32(5)
    yield warp("match.any.sync.b32", "match.any.sync.b32 %r9, %r1, -1;",
               [sum(1 << j for j in range(32) if few[j] == few[i]) for i in range(32)], few)
    for values in (few, np.full(32, 9, np.uint32)):
        same = len(set(values.tolist())) == 1
        yield warp(f"match.all.sync.b32 {same}", "match.all.sync.b32 %r3|%p1, %r1, -1; selp.b32 %r4, 1, 0, %p1; xor.b32 %r9,"
                                        " %r3, %r4;",
                   [0xFFFFFFFE if same else 0] * 32, values)
    yield warp("elect.sync", "elect.sync %r3|%p1, -1; selp.b32 %r4, 100, 0, %p1; add.u32 %r9, %r3, %r4;", [100] + [0] * 31)
    yield warp("elect.sync in a branch", "mov.b32 %r9, 7; setp.lt.u32 %p1, %r0, 9; @%p1 bra OUT;"
               "elect.sync %r3|%p2, 0xfffffe00; selp.b32 %r4, 100, 0, %p2; add.u32 %r9, %r3, %r4; OUT:",
               [7] * 9 + [109] + [9] * 22)
    yield warp("activemask.b32", "setp.ge.u32 %p1, %r0, 16; mov.b32 %r9, 0; @%p1 bra OUT; activemask.b32 %r9; OUT:",
               [0xFFFF] * 16 + [0] * 16)


def _reductions():
    v = VALUES.tolist()
    s = VALUES.view(np.int32).tolist()

    def all_of(f, xs):
        total = xs[0]
        for x in xs[1:]:
            total = f(total, x)
        return [total] * 32

    for op, f, xs in (("add.u32", lambda a, b: a + b, v), ("add.s32", lambda a, b: a + b, s), ("max.u32", max, v),
                      ("min.u32", min, v), ("max.s32", max, s), ("min.s32", min, s), ("and.b32", lambda a, b: a & b, v),
                      ("or.b32", lambda a, b: a | b, v), ("xor.b32", lambda a, b: a ^ b, v)):
        yield warp(f"redux.sync.{op}", f"redux.sync.{op} %r9, %r1, -1;", all_of(f, xs))
    floats = RNG.standard_normal(32).astype(np.float32)
    for op, f in (("max", max), ("min", min)):
        want = np.full(32, f(floats), np.float32).view(np.uint32)
        yield warp(f"redux.sync.{op}.f32", f"redux.sync.{op}.f32 %r9, %r1, -1;", want, floats.view(np.uint32), "sm_100a")
        want = np.full(32, f(np.abs(floats)), np.float32).view(np.uint32)
        yield warp(f"redux.sync.{op}.abs.f32", f"redux.sync.{op}.abs.f32 %r9, %r1, -1;", want, floats.view(np.uint32), "sm_100a")


def _barriers():
    values = RNG.integers(0, 1000, 128, dtype=np.uint32)
    odd = int((values & 1).sum())
    test = "and.b32 %r2, %r1, 1; setp.ne.u32 %p1, %r2, 0; "
    yield warp("barrier.cta.red.popc", test + "barrier.cta.red.popc.aligned.u32 %r9, 0, %p1;", [odd] * 128, values)
    yield warp("bar.red.or and", test + "bar.red.or.pred %p2, 1, 128, %p1; bar.red.and.pred %p3, 2, 128, %p1;"
               "selp.b32 %r3, 1, 0, %p2; selp.b32 %r4, 2, 0, %p3; or.b32 %r9, %r3, %r4;", [1] * 128, values)
    # Warps 0 and 1 hand values to warps 2 and 3 through a barrier on which the first two only arrive.
    half = """shl.b32 %r3, %r0, 2; mov.b32 %r4, buf; add.u32 %r4, %r4, %r3; setp.ge.u32 %p1, %r0, 64; mov.b32 %r9, 0;
@%p1 bra LATER; st.shared.u32 [%r4], %r1; bar.arrive 3, 128; bra OUT; LATER: bar.sync 3, 128; ld.shared.u32 %r9, [%r4+-256];
OUT:"""
    p = warp("bar.arrive", half, [0] * 64 + values[:64].tolist(), values)
    yield Program(p.name, ".shared .align 16 .b8 buf[256];\n" + p.body, p.arrays, p.expect, block=128)


def _divergence():
    body = """and.b32 %r3, %r0, 3; mov.b32 %r9, 0;
LOOP: setp.eq.u32 %p1, %r3, 0; @%p1 bra DONE; add.u32 %r9, %r9, %r1; sub.u32 %r3, %r3, 1; bra LOOP;
DONE: bar.warp.sync -1;"""
    yield warp("divergent loop", body, [int(x) * (i & 3) for i, x in enumerate(VALUES)])
    early = ("setp.lt.u32 %p1, %r0, 8; mov.b32 %r9, 5; @%p1 bra S; add.u32 %r9, %r9, %r1; S: @%p1 st.global.u32 [%rd1], %r9;"
             " @%p1 ret;")
    yield warp("early return", early, [5] * 8 + [int(x) + 5 for x in VALUES[8:]])


def programs():
    yield from _shuffles()
    yield from _votes()
    yield from _reductions()
    yield from _barriers()
    yield from _divergence()
