"""Bit-exact arithmetic: sums of products and approximations against checksums of what an H200 computed (h200_arithmetic.json, by
`benchmarks/micro_on_gpu.py record`), and which additions are fused with the product before them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import approximations  # noqa: E402
from flexfa4 import emulator  # noqa: E402
from micro import arithmetic  # noqa: E402
from micro.program import HEAD, REGS, emulate  # noqa: E402

RECORDED = json.loads((Path(__file__).parent / "h200_arithmetic.json").read_text())
PROGRAMS = {p.name: p for p in (*arithmetic.sums(), *arithmetic.sweeps())}
# x y = 1 + 2^-11 + 2^-24 loses its last term when it is rounded on its own: 2^-24 or 0 is what remains of x y - z.
X, Y, Z = (np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-11))
REST = 2.0**-24


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_bits_are_those_of_an_h200(name):
    program = PROGRAMS[name]
    assert arithmetic.checksum(*program.arrays[1:]) == RECORDED[name]["inputs"], "other inputs than those that were recorded"
    assert arithmetic.checksum(emulate(program)[0]) == RECORDED[name]["outputs"]


@pytest.mark.parametrize("op", approximations.OPS)
def test_every_input_of_a_binade(op):
    """The least exponents, the one of NaN, -2..-4. The whole record: `benchmarks/approximations.py compare`."""
    assert approximations.differing(op, (0, 255, 256 + 128)) == []


def evaluate(body: str) -> list[float]:
    """The statements on %r1 = x, %r2 = y, %r3 = z, %r4 = 0; what they leave in %r10 and %r11."""
    ptx = (HEAD.format(version="8.7", arch="sm_90a") + f".visible .entry k(.param .u64 a) {{ {REGS} ld.param.b64 %rd0, [a];"
           "ld.global.b32 %r1, [%rd0]; ld.global.b32 %r2, [%rd0+4]; ld.global.b32 %r3, [%rd0+8]; mov.b32 %r4, 0; mov.b32 %r11, 0;"
           f"{body} st.global.b32 [%rd0+12], %r10; st.global.b32 [%rd0+16], %r11; ret; }}")
    values = np.array([X, Y, Z, 0, 0], np.float32)
    emulator.run(ptx, 1, 1, (values,))
    return values[3:].tolist()


PRODUCT = "mul.f32 %r5, %r1, %r2;"


@pytest.mark.parametrize("body, wanted", [
    (PRODUCT + "sub.f32 %r10, %r5, %r3;", [REST, 0]),
    (PRODUCT + "sub.f32 %r10, %r3, %r5;", [-REST, 0]),
    ("neg.f32 %r6, %r3;" + PRODUCT + "add.f32 %r10, %r6, %r5;", [REST, 0]),
    ("mul.ftz.f32 %r5, %r1, %r2; sub.ftz.f32 %r10, %r5, %r3;", [REST, 0]),
    (PRODUCT + "sub.f32 %r10, %r5, %r3; sub.f32 %r11, %r3, %r5;", [REST, -REST]),  # several additions
    (PRODUCT + "mul.f32 %r6, %r3, 0f3F800000; sub.f32 %r10, %r5, %r6;", [REST, 0]),  # of two products the first
    ("mul.f32 %r6, %r3, 0f3F800000;" + PRODUCT + "sub.f32 %r10, %r6, %r5;", [0, 0]),
    ("mul.rn.f32 %r5, %r1, %r2; sub.f32 %r10, %r5, %r3;", [0, 0]),  # rounding asked for
    (PRODUCT + "sub.rn.f32 %r10, %r5, %r3;", [0, 0]),
    (PRODUCT + "sub.ftz.f32 %r10, %r5, %r3;", [0, 0]),  # not of one kind
    (PRODUCT + "sub.f32 %r10, %r5, %r3; mov.b32 %r11, %r5;", [0, 1 + 2.0**-11]),  # also used otherwise
    (PRODUCT + "bra NEXT; NEXT: sub.f32 %r10, %r5, %r3;", [0, 0]),  # another basic block
    (PRODUCT + "mov.b32 %r1, %r4; sub.f32 %r10, %r5, %r3;", [0, 0]),  # a factor is gone
    ("setp.eq.u32 %p1, %r4, 0; mov.b32 %r5, 0; @%p1 mul.f32 %r5, %r1, %r2; sub.f32 %r10, %r5, %r3;", [0, 0]),
])
def test_products_are_fused_with_additions_as_ptxas_does(body, wanted):
    assert evaluate(body) == wanted


def test_packed_and_double_products_are_fused():
    body = ("mov.b64 %rd1, {%r1, %r1}; mov.b64 %rd2, {%r2, %r2}; mov.b64 %rd3, {%r3, %r3}; neg.f32 %r6, %r3;"
            "mov.b64 %rd3, {%r6, %r6}; mul.f32x2 %rd4, %rd1, %rd2; add.f32x2 %rd5, %rd4, %rd3; mov.b64 {%r10, %r11}, %rd5;")
    assert evaluate(body) == [REST, REST]
    double = ("cvt.f64.f32 %rd1, %r1; mov.b64 %rd6, 0x3D70000000000000; add.rn.f64 %rd1, %rd1, %rd6; mul.f64 %rd2, %rd1, %rd1;"
              "fma.rn.f64 %rd3, %rd1, %rd1, 0; sub.f64 %rd4, %rd2, %rd3; cvt.rn.f32.f64 %r10, %rd4;")
    assert evaluate(double)[0] != 0
