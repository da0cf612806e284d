"""Bare PTX: arithmetic, divergence, asynchronous copies, and what is reported when a kernel is wrong. Needs no DSL."""

import numpy as np
import pytest

from flexfa4 import emulator


HEAD = ".version 9.4\n.target sm_100a\n.address_size 64\n"


def kernel(params: str, regs: str, body: str) -> str:
    return f"{HEAD}.visible .entry k({params})\n{{\n{regs}\n{body}\nret;\n}}\n"


REGS = ".reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<32>; .reg .f32 %f<8>; .reg .b64 %rd<16>;"


def lanewise(body: str, *inputs: np.ndarray, seed=0) -> np.ndarray:
    """Runs `body` for 32 lanes: inputs in %r1, %r2, ..., result in %r20."""
    params = ", ".join([".param .u64 out", *[f".param .u64 in{i}" for i in range(len(inputs))]])
    loads = "mov.u32 %r0, %tid.x; mul.wide.u32 %rd0, %r0, 4; ld.param.b64 %rd1, [out]; add.s64 %rd1, %rd1, %rd0;\n"
    for i in range(len(inputs)):
        loads += f"ld.param.b64 %rd2, [in{i}]; add.s64 %rd2, %rd2, %rd0; ld.global.b32 %r{i + 1}, [%rd2];\n"
    out = np.zeros(32, np.uint32)
    emulator.run(kernel(params, REGS, loads + body + "\nst.global.b32 [%rd1], %r20;"), 1, 32, (out, *inputs), seed=seed)
    return out


@pytest.fixture
def numbers():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(2)]


def test_integer_arithmetic(numbers):
    a, b = numbers
    assert (lanewise("mad.lo.s32 %r20, %r1, %r2, 7;", a, b) == a * b + np.uint32(7)).all()
    assert (lanewise("mul.hi.u32 %r20, %r1, %r2;", a, b) == ((a.astype(object) * b.astype(object)) >> 32).astype(np.uint32)).all()
    assert (lanewise("shr.s32 %r20, %r1, 5;", a) == (a.view(np.int32) >> 5).view(np.uint32)).all()
    assert (lanewise("shl.b32 %r20, %r1, 40;", a) == 0).all()


def test_float_rounding(numbers):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(32).astype(np.float32) for _ in range(2))

    def bits(x):
        return x.astype(np.float32).view(np.uint32)

    assert (lanewise("add.f32 %r20, %r1, %r2;", a, b) == bits(a + b)).all()
    exact = a.astype(np.float64) + b.astype(np.float64)  # exact for values of like size
    near = exact.astype(np.float32)
    down = np.where(near > exact, np.nextafter(near, np.float32(-np.inf)), near)
    assert (lanewise("add.rm.f32 %r20, %r1, %r2;", a, b) == bits(down)).all()
    got = lanewise("ex2.approx.ftz.f32 %r20, %r1;", a).view(np.float32)
    assert (np.abs(got / np.exp2(a.astype(np.float64)) - 1) <= 2.0**-22).all()


def test_nan_and_signed_zero():
    a = np.array([np.nan, 1, -0.0, 0.0] * 8, np.float32)
    b = np.array([2, np.nan, 0.0, -0.0] * 8, np.float32)
    assert (lanewise("max.f32 %r20, %r1, %r2;", a, b) == np.array([2, 1, 0, 0] * 8, np.float32).view(np.uint32)).all()
    assert (lanewise("add.f32 %r20, %r1, %r2;", a, b)[:2] == 0x7FFFFFFF).all()


def test_a_load_into_a_wider_register_extends_by_its_type():
    high = "ld.global.TYPE %rd3, [%rd2]; mov.b64 {%r3, %r20}, %rd3;"
    for kind, extended in (("s32", 0xFFFFFFFF), ("u32", 0), ("b32", 0)):
        got = lanewise(high.replace("TYPE", kind), np.full(32, 0x80000001, np.uint32))
        assert (got == extended).all(), kind


def test_a_store_from_a_wider_register_takes_the_low_bits(numbers):
    a, b = numbers
    wide = "mov.b64 %rd5, {%r1, %r2}; st.global.b32 [%rd1], %rd5; ld.global.b32 %r20, [%rd1];"
    assert (lanewise(wide, a, b) == a).all()


def test_local_memory_is_of_each_thread(numbers):
    a, b = numbers
    body = """.local .align 16 .b8 depot[16]; .reg .b64 %SP; .reg .b64 %SPL;
mov.b64 %SPL, depot; cvta.local.u64 %SP, %SPL; st.local.v2.b32 [%SPL+8], {%r1, %r2}; ld.b32 %r3, [%SP+8];
ld.local.b32 %r4, [depot+12]; add.s32 %r20, %r3, %r4;"""
    assert (lanewise(body, a, b) == a + b).all()
    unwritten = body.replace("st.local.v2.b32 [%SPL+8], {%r1, %r2};", "")
    assert (lanewise(unwritten, a, b) == 0xFFFFFFFE).all()  # two words of all ones


def test_shuffle_and_vote(numbers):
    a, _ = numbers
    assert (lanewise("shfl.sync.bfly.b32 %r20, %r1, 4, 31, -1;", a) == a[np.arange(32) ^ 4]).all()
    even = lanewise("and.b32 %r3, %r1, 1; setp.eq.b32 %p1, %r3, 0; vote.sync.ballot.b32 %r20, %p1, -1;", a)
    assert (even == sum(1 << i for i in range(32) if a[i] % 2 == 0)).all()


@pytest.mark.parametrize("seed", range(4))
def test_divergent_lanes_meet_again(seed):
    body = """and.b32 %r3, %r0, 3; mov.b32 %r20, 0;
LOOP: setp.eq.b32 %p1, %r3, 0; @%p1 bra OUT; add.s32 %r20, %r20, 10; sub.s32 %r3, %r3, 1; bra LOOP;
OUT: shfl.sync.idx.b32 %r20, %r20, 3, 31, -1;"""
    assert (lanewise(body, seed=seed) == 30).all()


def test_scopes_redeclare_names():
    body = """mov.b32 %r20, 1; { .reg .pred p; setp.eq.b32 p, %r0, %r0; @p bra DONE; mov.b32 %r20, 9; DONE: }
{ .reg .pred p; setp.ne.b32 p, %r0, %r0; @p bra DONE; add.s32 %r20, %r20, 5; DONE: }"""
    assert (lanewise(body) == 6).all()


COPY = kernel(
    ".param .u64 src, .param .u64 dst",
    REGS + "\n.shared .align 128 .b8 buf[512];\n.shared .align 8 .b8 bar[8];",
    """
mov.u32 %r0, %tid.x; ld.param.b64 %rd1, [src]; ld.param.b64 %rd2, [dst]; setp.ne.b32 %p1, %r0, 0;
mov.b32 %r1, bar; mov.b32 %r2, buf;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r1], 1;
mbarrier.arrive.expect_tx.shared.b64 [%r1], {bytes};
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 128, [%r1];
READY: bar.sync 0;
{wait}
shl.b32 %r5, %r0, 2; add.s32 %r6, %r2, %r5; ld.shared.b32 %r7, [%r6];
mul.wide.u32 %rd3, %r0, 4; add.s64 %rd4, %rd2, %rd3; st.global.b32 [%rd4], %r7;""".replace("{bytes}", "BYTES").replace(
        "{wait}", "WAIT"
    ),
)
WAIT = "TRY: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra TRY;"


def copy(wait=WAIT, bytes=128, **options):
    src, dst = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    emulator.run(COPY.replace("WAIT", wait).replace("BYTES", str(bytes)), 1, 32, (src, dst), **options)
    return src, dst


@pytest.mark.parametrize("completion", ["immediate", "random", "late"])
def test_bulk_copy(completion):
    for seed in range(4):
        src, dst = copy(completion=completion, seed=seed)
        assert (src == dst).all()


def test_reading_before_the_wait_is_a_race():
    with pytest.raises(emulator.RaceError, match=r"ld\.shared\.b32.*in flight"):
        copy(wait="", completion="late")


def test_deadlock_names_barrier_phase_and_pending():
    with pytest.raises(
        emulator.Deadlock, match=r"warp +0 .*mbarrier 0x\w+: waits for the end of phase 0, is in phase 0, .*pending bytes 16"
    ):
        copy(bytes=144)


def test_wrong_copy_is_out_of_bounds():
    src, dst = np.zeros(16, np.uint32), np.zeros(32, np.uint32)
    with pytest.raises(emulator.EmulatorError, match="in no tensor") as e:
        emulator.run(COPY.replace("WAIT", WAIT).replace("BYTES", "128"), 1, 32, (src, dst))
    assert e.value.kind == "bounds"


@pytest.mark.parametrize(
    "body, error, words",
    [
        ("frobnicate.b32 %r1, %r2;", emulator.UnknownInstruction, "frobnicate.b32"),
        ("add.s32 %r1, %r2;", emulator.UnknownInstruction, "operand form of 'add.s32'"),
        ("add.s32 %r1, %rd2, 1;", emulator.UnknownInstruction, "wrong width"),
        ("bra NOWHERE;", emulator.PtxError, "NOWHERE"),
        ("bar.sync 0, 33;", emulator.EmulatorError, "multiple of 32"),
        ("mov.b32 %r1, 2; st.shared.b32 [%r1], %r1;", emulator.EmulatorError, "not aligned"),
        ("setmaxnreg.inc.sync.aligned.u32 20;", emulator.EmulatorError, "multiple of 8"),
        ("mov.b32 %r1, 0; mbarrier.arrive.shared.b64 [%r1+1024], 1;", emulator.EmulatorError, "mbarrier"),
    ],
)
def test_mistakes_name_themselves(body, error, words):
    with pytest.raises(error, match=words):
        emulator.run(kernel(".param .u32 n", REGS, body), 1, 32, (0,))


def test_no_row_of_the_handler_table_is_written_twice():
    rows = emulator.native.library().emu_table().decode().splitlines()
    assert len(rows) > 10_000 and len(set(rows)) == len(rows)
