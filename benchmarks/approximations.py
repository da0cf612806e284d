"""Every input of the approximations of f32: checksums of what a Hopper GPU computes, and of what the emulator computes.

    python benchmarks/approximations.py gpu               on the GPU, seconds: writes tests/emulator/h200_approximations.json
    python benchmarks/approximations.py compare [OP ...]  anywhere, minutes an operation: the emulator's against it

A checksum of 16 hexadecimal digits takes the 2^23 inputs of one sign and exponent; an operation has 512 of them in a row.
tests/emulator/test_arithmetic.py compares some."""

import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
RECORDED = ROOT / "tests" / "emulator" / "h200_approximations.json"
OPS = [f"{op}.approx{ftz}.f32" for op in ("ex2", "rcp", "rsqrt", "lg2", "sqrt", "sin", "cos") for ftz in ("", ".ftz")]
OPS.append("tanh.approx.f32")
BINADE, THREADS, EACH = 1 << 23, 1024, 16  # inputs a launch, threads a CTA, inputs a thread
GRID, CHUNK = BINADE // THREADS // EACH, 1 << 16
# Odd multipliers without a pattern, as signed 64-bit numbers.
MIX = [0x9E3779B97F4A7C15 - (1 << 64), 0x6C8E9CF570932BD5, 0xD6E8FEB86659FD93 - (1 << 64)]
PTX = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 start) {{
    .reg .b32 %r<5>; .reg .b64 %rd<3>;
    ld.param.b64 %rd0, [out]; ld.param.b32 %r3, [start];
    mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, {span}, %r0;
    mad.wide.u32 %rd1, %r0, 4, %rd0; add.u32 %r0, %r0, %r3;
    {body} ret;
}}
"""


def kernel(op: str) -> str:
    """Writes op of the bit patterns from `start` on; a thread takes every 1024th of 16384."""
    steps = range(0, THREADS * EACH, THREADS)
    body = "\n    ".join(f"add.u32 %r2, %r0, {i}; {op} %r4, %r2; st.global.b32 [%rd1+{4 * i}], %r4;" for i in steps)
    return PTX.format(span=THREADS * EACH, body=body)


def mixed(values, where):
    """values, where: int64 arrays or tensors of results and their places. A number that depends on every bit and its place."""
    h = values * MIX[0] + where * MIX[1]
    h = (h ^ (h >> 31)) * MIX[2]
    return int((h ^ (h >> 29)).sum()) & (1 << 64) - 1


def on_gpu() -> None:
    import ctypes

    import torch
    from cuda.bindings import driver

    def call(result):
        assert result[0] == driver.CUresult.CUDA_SUCCESS, result[0]
        return result[1] if len(result) > 1 else None

    out = torch.zeros(BINADE, dtype=torch.int32, device="cuda")
    where, found = torch.arange(BINADE, device="cuda"), {}
    for op in OPS:
        module = call(driver.cuModuleLoadData(kernel(op).encode() + b"\0"))
        function, sums = call(driver.cuModuleGetFunction(module, b"k")), []
        for start in range(0, 1 << 32, BINADE):
            held = ctypes.c_uint64(out.data_ptr()), ctypes.c_uint32(start)
            pointers = (ctypes.c_void_p * 2)(*[ctypes.addressof(h) for h in held])
            stream = torch.cuda.current_stream().cuda_stream
            call(driver.cuLaunchKernel(function, GRID, 1, 1, THREADS, 1, 1, 0, stream, ctypes.addressof(pointers), 0))
            sums.append(f"{mixed(out.long(), where):016x}")
        found[op] = "".join(sums)
        print(op, len(set(sums)), "different sums", flush=True)
    RECORDED.write_text(json.dumps(found, indent=0) + "\n")


def differing(op: str, binades) -> list[int]:
    """Those of the binades (sign and biased exponent: 0 to 511) in which the emulator and the record differ."""
    from flexfa4 import emulator

    recorded, bad = json.loads(RECORDED.read_text())[op], []
    out, where = np.zeros(BINADE, np.int32), np.arange(BINADE)
    chunks = [slice(i, i + CHUNK) for i in range(0, BINADE, CHUNK)]
    for binade in binades:
        emulator.run(kernel(op), GRID, THREADS, (out, binade << 23))
        found = sum(mixed(out[c].astype(np.int64), where[c]) for c in chunks) & (1 << 64) - 1
        if f"{found:016x}" != recorded[16 * binade : 16 * binade + 16]:
            bad.append(binade)
    return bad


def compare(ops: list[str]) -> int:
    """Prints what differs; how many binades do."""
    total = 0
    for op in ops or OPS:
        bad = differing(op, range(512))
        total += len(bad)
        shown = " ".join(f"{'-' if i >> 8 else ''}2^{(i & 255) - 127}" for i in bad)
        print(f"{op}: {len(bad)} of 512 binades differ {shown}", flush=True)
    return total


if __name__ == "__main__":
    from command_line import check

    check(__doc__, range(1, len(OPS) + 2), first=("gpu", "compare"))
    match sys.argv[1:]:
        case ["gpu"]:
            on_gpu()
        case ["compare", *words] if set(words) <= set(OPS):
            sys.exit(compare(words) > 0)
        case _:
            sys.exit(__doc__)
