"""A call whose size chooses another kernel of a mod that is already in use: what it waits for, on any machine, no GPU.

    python benchmarks/size_changes.py

prints the table, writes results/size_changes.{json,md} and docs/performance.md. A row is two processes with empty caches,
attention without a mod, head dim 128. Both begin with 16 heads of 512 tokens, whose kernel is compiled. In one the call of the
other size waits for its kernel ("waits": deterministic algorithms are asked for, under which no kernel stands in). In the other
one the kernel of the first call stands in ("stands in"), and the call's own is compiled in a process apart, there "after" so many
seconds; "with its own": the first call then, which loads it. Last, host time of repeated calls with either, medians of 1,500
(the one that stands in while the other is compiled on the second core). Without a GPU launches go into nothing, as in
first_call.py; --gpu measures on the GPU of this machine and writes results/size_changes_gpu.{json,md}."""
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import performance_page
from first_call import BYTECODE, HERE, settle, stand_in

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "size_changes"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
CALLS, DIM = 1500, 128
# (heads, KV heads, queries, keys)
FIRST = 16, 16, 512, 512
SIZES = {"1 query, 2 KV heads, 8,192 keys": (16, 2, 1, 8192), "64 queries, 4 KV heads": (16, 4, 64, 64)}


def call_of(arch: str, size: tuple[int, int, int, int]):
    import torch

    from flexfa4 import flex_attention

    heads, kv_heads, q_len, kv_len = size
    qkv = [torch.zeros(1, h, n, DIM, dtype=torch.bfloat16, device="cuda" if arch == HERE else "cpu")
           for h, n in ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))]
    return lambda: flex_attention(*qkv, enable_gqa=True)


def seconds(arch: str, call) -> float:
    settle(arch)
    start = time.perf_counter()
    call()
    settle(arch)
    return time.perf_counter() - start


def repeated(arch: str, call) -> float:
    samples = []
    for i in range(CALLS):
        if i % 100 == 0:
            settle(arch)
        start = time.perf_counter_ns()
        call()
        samples.append(time.perf_counter_ns() - start)
    return statistics.median(samples) / 1e9


def one(how: str, arch: str, name: str) -> dict:
    import torch

    from flexfa4 import wait_for_kernels
    from flexfa4.runtime import kernels

    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    stand_in(arch)
    first, other = (call_of(arch, size) for size in (FIRST, SIZES[name]))
    found = dict(first=seconds(arch, first))
    if how == "waits":
        torch._C._set_deterministic_algorithms(True)
        return dict(found, waits=seconds(arch, other))
    compiled, began = kernels.compile_count(), time.perf_counter()
    found["stands_in"] = seconds(arch, other)
    found["repeated"] = repeated(arch, other)
    assert wait_for_kernels(120) and kernels.compile_count() == compiled
    found["after"] = time.perf_counter() - began
    found["own"] = seconds(arch, other)
    assert kernels.load_count() > 0
    return dict(found, repeated_own=repeated(arch, other))


def measure(arch: str, name: str) -> dict:
    found = {}
    for how in ("waits", "stands in"):
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run([sys.executable, "-W", "ignore", __file__, "--only", how, arch, name], text=True,
                                  capture_output=True, env={**BYTECODE, "FLEXFA4_KERNEL_CACHE": cache})
        if done.returncode:
            raise SystemExit(done.stderr)
        found |= json.loads(done.stdout.splitlines()[-1])
    return dict(found, arch=arch, size=name)


def table(rows: list[dict]) -> str:
    lines = ["| kernel | size | waits ms | stands in ms | after s | with its own ms | us a call, standing in | with its own |",
             "|---|---|" + "--:|" * 6]
    for r in rows:
        cells = [f"{r['waits'] * 1e3:,.0f}", f"{r['stands_in'] * 1e3:.1f}", f"{r['after']:.1f}", f"{r['own'] * 1e3:.1f}",
                 f"{r['repeated'] * 1e6:.1f}", f"{r['repeated_own'] * 1e6:.1f}"]
        lines.append(f"| {r['arch']} | {r['size']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs=3, metavar="HOW ARCH SIZE", help="one measurement, in this process")
    parser.add_argument("--gpu", action="store_true", help="on the GPU of this machine")
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    options = parser.parse_args()
    if options.only:
        how, arch, name = options.only
        sys.argv = sys.argv[:1]           # the compiler parses the options of the process
        import conftest  # noqa: F401

        print(json.dumps(one(how, arch, name)))
        return 0
    rows = [measure(arch, name) for arch in ([HERE] if options.gpu else ["sm90", "sm100"]) for name in options.sizes]
    if options.gpu:
        import torch

        rows = [dict(r, arch=f"sm90 on an {torch.cuda.get_device_name().split()[-1]}") for r in rows]
    target = RESULTS.with_name("size_changes_gpu") if options.gpu else RESULTS
    target.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    text = table(rows)
    if options.gpu:
        target.with_suffix(".md").write_text(text + "\n")
    else:
        performance_page.publish("size_changes.py", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
