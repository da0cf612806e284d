"""What comes before the arithmetic of a call: compiling, loading, and the host's work; on any machine, no GPU.

    python benchmarks/first_call.py

prints the tables, writes results/first_call.{json,md} and docs/performance.md; rows not measured (--arch, --mods) stay.

Each row of the first table is a process of its own with an empty cache, then one that finds the kernel there. "compiler": import
of nvidia-cutlass-dsl and of our kernels; "trace": Python, from the kernel's source to MLIR; "passes": MLIR, NVVM and ptxas;
"export", "link", "load": an object file, a shared library of it, and opening that. cold: the whole first call, torch and flexfa4
imported. warm: from the call of the loader to a callable; "first call" also traces the mod, plans and makes lists (512 tokens).
Host time: flex_attention without gradients, a call like one before, launched into nothing: the kernel's own host function encodes
its descriptors and calls a launch that returns at once (the emulator's shim). CPU tensors stand for GPU ones, so each is
converted for tvm-ffi and the host function gets prepared ones beside: both are in the time. Allocation is the CPU's. The calls
are made within one `torch.no_grad()`; "no_grad for each": with one that is entered and left for each call, in its time.
"gradients": with a query that wants one; its forward pass alone. Modes take turns, 100 calls each.

--gpu measures on the GPU of this machine instead, with nothing in its place, and prints beside it the host time of
scaled_dot_product_attention; it writes results/first_call_gpu.{json,md}."""
from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import performance_page

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "first_call"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
LENGTH, HEADS, DIM = 512, 16, 128
CALLS = 1500
HERE = "here"  # the GPU of this machine
# With Python's own bytecode files, which an installation makes, whatever this process is told: without them the compiler's import
# takes five times as long.
BYTECODE = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
MODS = ("plain", "causal BlockMask", "causal mask_mod", "ALiBi, causal BlockMask", "ten operations")


def mods_of(arch: str, name: str) -> dict:
    import torch

    from flexfa4 import create_block_mask, mods

    device = "cuda" if arch == HERE else "cpu"
    slopes, cap = torch.rand(HEADS, device=device), 20.0

    def alibi(score, b, h, q, kv):
        return score + slopes[h] * (kv - q)

    def ten_operations(score, b, h, q, kv):
        capped = torch.tanh(score / cap) * cap
        near = (q - kv).abs() < 100
        return torch.where(near, capped + slopes[h] * (kv - q), capped - 1.0)

    causal = create_block_mask(mods.causal_mask, None, None, LENGTH, LENGTH, device=device)
    return {"plain": {}, "causal BlockMask": dict(block_mask=causal), "causal mask_mod": dict(mask_mod=mods.causal_mask),
            "ALiBi, causal BlockMask": dict(score_mod=alibi, block_mask=causal),
            "ten operations": dict(score_mod=ten_operations)}[name]


def stand_in(arch: str):
    """Makes flex_attention take the kernel of `arch` for CPU tensors, as on a device of 132 SMs; HERE: as it is."""
    if arch == HERE:
        return

    from flexfa4.emulator import build
    from flexfa4.runtime import engine, kernels, lists, store

    os.environ["CUTE_DSL_LIBS"] = str(build.shim_library())
    engine.architecture = lambda device: arch
    kernels.workers_of = lists.workers_of = lambda device: 132
    kernels.stream_of = lambda device: 0
    store.is_loaded = lambda function: True
    shim = ctypes.CDLL(os.environ["CUTE_DSL_LIBS"], mode=ctypes.RTLD_GLOBAL)
    shim.flexfa4_set_callback.argtypes = [ctypes.c_void_p]
    # Any function of the library that takes nothing into account and returns 0.
    shim.flexfa4_set_callback(ctypes.cast(shim._cudaStreamSynchronize, ctypes.c_void_p))
    make = kernels._make
    kernels._make = lambda *what: launched(make(*what))


def launched(function):
    import tvm_ffi

    from flexfa4.emulator.driver import DeviceTensor
    from flexfa4.runtime import kernels

    nothing, prepared = tvm_ffi.get_global_func("testing.nop"), []

    def call(*given):
        if not prepared:
            prepared.append(kernels._wrapped(given, lambda t: tvm_ffi.from_dlpack(DeviceTensor(t))))
        nothing(*given)
        function(*prepared[0])

    return call


def inputs(arch: str):
    import torch

    device = "cuda" if arch == HERE else "cpu"
    made = [torch.zeros(2, HEADS, LENGTH, DIM, dtype=torch.bfloat16, device=device) for _ in range(3)]
    settle(arch)
    return made


def settle(arch: str) -> None:
    import torch

    if arch == HERE:
        torch.cuda.synchronize()


def watch_stages() -> dict:
    """Seconds of each stage, filled in as they happen."""
    from flexfa4.runtime import kernels, store

    spent: dict = {}

    def timed(stage, function):
        def run(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[stage] = spent.get(stage, 0.0) + time.perf_counter() - start
        return run

    def import_module(name):
        """The import of the compiler, in `kernels`, and the watches that it makes possible."""
        start = time.perf_counter()
        compiler = importlib.import_module(name)
        spent["compiler"] = time.perf_counter() - start
        from cutlass.base_dsl import compile_backend

        backend = compile_backend.LegacyCompilerBackend
        backend._build_compiled_function = timed("passes", backend._build_compiled_function)
        compiler._compile = timed("trace", compiler._compile)         # with the passes
        compiler.export = timed("export", compiler.export)
        return compiler

    kernels.importlib = SimpleNamespace(import_module=import_module)
    store._link = timed("link", store._link)                     # with the export
    store._open = timed("load", store._open)
    return spent


def cold(arch: str, name: str) -> dict:
    from flexfa4 import flex_attention

    given = mods_of(arch, name)
    stand_in(arch)
    qkv, spent = inputs(arch), watch_stages()
    start = time.perf_counter()
    flex_attention(*qkv, **given)
    settle(arch)
    spent["cold"] = time.perf_counter() - start
    spent["trace"] -= spent["passes"]
    spent["link"] -= spent["export"]
    return spent


def warm(arch: str, name: str) -> dict:
    from flexfa4 import flex_attention
    from flexfa4.runtime import kernels

    given, qkv = mods_of(arch, name), inputs(arch)
    stand_in(arch)
    load, spent = kernels.compiled, []

    def timed(signature):
        start = time.perf_counter()
        found = load(signature)
        spent.append(time.perf_counter() - start)
        return found

    kernels.compiled = timed
    start = time.perf_counter()
    flex_attention(*qkv, **given)
    settle(arch)
    first = time.perf_counter() - start
    assert kernels.compile_count() == 0 and "cutlass" not in sys.modules, "the kernel was compiled"
    return dict(warm=sum(spent), first_call=first, loaded=kernels.load_count())


def host(arch: str, name: str) -> dict:
    import torch

    from flexfa4 import flex_attention

    torch.set_num_threads(1)
    given, (q, k, v) = mods_of(arch, name), inputs(arch)
    stand_in(arch)
    leaf = q.clone().requires_grad_()

    def call():
        flex_attention(q, k, v, **given)

    def entering():
        with torch.no_grad():
            flex_attention(q, k, v, **given)

    modes = {"host": (False, call), "entering": (True, entering),
             "gradients": (True, lambda: flex_attention(leaf, k, v, **given))}
    if arch == HERE:
        modes["rival"] = False, lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)
    samples: dict[str, list[int]] = {mode: [] for mode in modes}
    for _ in range(CALLS // 100 + 3):
        for mode, (enabled, work) in modes.items():
            settle(arch)
            with torch.set_grad_enabled(enabled):
                for _ in range(100):
                    start = time.perf_counter_ns()
                    work()
                    samples[mode].append(time.perf_counter_ns() - start)
    found = {}
    for mode, times in samples.items():
        found[mode], found[f"{mode}_least"] = statistics.median(times[300:]) / 1e9, min(times[300:]) / 1e9
    return found


def run(what: str, arch: str, names: list[str], cache: str) -> list[dict]:
    """A measurement of each mod, in one process."""
    done = subprocess.run([sys.executable, "-W", "ignore", __file__, "--only", what, arch, *names], text=True,
                          capture_output=True, env={**BYTECODE, "FLEXFA4_KERNEL_CACHE": cache})
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def tables(rows: list[dict]) -> str:
    modes = ("host", "entering", "gradients", *(("rival",) if "rival" in rows[0] else ()))
    stages = ("compiler", "trace", "passes", "export", "link", "load")
    lines = [f"| kernel | mod | cold s | {' | '.join(f'{s} s' for s in stages)} | warm load ms | first call, warm ms |",
             "|---|---|" + "--:|" * (len(stages) + 3)]
    for r in (r for r in rows if "cold" in r):
        warm = [f"{r[w] * 1e3:.{digits}f}" if w in r else "" for w, digits in (("warm", 1), ("first_call", 0))]
        cells = [f"{r['cold']:.2f}", *(f"{r[s]:.2f}" for s in stages), *warm]
        lines.append(f"| {r['arch']} | {r['mod']} | {' | '.join(cells)} |")
    lines += ["", "| kernel | mod | host us a call, median (least) | no_grad for each | with gradients |"
              + " torch's sdpa |" * (len(modes) - 3),
              "|---|---|" + "--:|" * len(modes)]
    for r in rows:
        cells = [f"{r[m] * 1e6:.1f} ({r[f'{m}_least'] * 1e6:.1f})" if m in r else "" for m in modes]
        lines.append(f"| {r['arch']} | {r['mod']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measure(arch: str, name: str) -> dict:
    found = dict(arch=arch, mod=name)
    with tempfile.TemporaryDirectory() as cache:
        for what in ("cold", "warm", "host"):
            found.update(run(what, arch, [name], cache)[0])
    return found


def on_the_gpu(names: list[str], cold_ones: list[str]) -> int:
    import torch

    imports = "import flexfa4.runtime.compiled, flexfa4.runtime.compiler"           # leaves their bytecode
    subprocess.run([sys.executable, "-c", imports], check=True, cwd=ROOT, env=BYTECODE)
    arch = f"sm90 on an {torch.cuda.get_device_name().split()[-1]}"
    rows = {name: dict(arch=arch, mod=name) for name in names}
    with tempfile.TemporaryDirectory() as kept:
        for name in cold_ones:
            with tempfile.TemporaryDirectory() as cache:              # two of the mods are of one kernel
                for what in ("cold", "warm"):
                    rows[name].update(run(what, HERE, [name], cache)[0])
                print(json.dumps(rows[name]), flush=True)
                shutil.copytree(cache, kept, dirs_exist_ok=True)
        for row, found in zip(rows.values(), run("host", HERE, names, kept)):
            row.update(found)
    rows = list(rows.values())
    target = RESULTS.with_name("first_call_gpu")
    target.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    target.with_suffix(".md").write_text(tables(rows) + "\n")
    print(tables(rows))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="WHAT ARCH MOD", help="one measurement of each mod, in this process")
    parser.add_argument("--mods", nargs="+", default=list(MODS))
    parser.add_argument("--gpu", action="store_true", help="on the GPU of this machine")
    parser.add_argument("--cold", nargs="*", default=list(MODS), help="of --mods on a GPU, those whose first call is measured")
    parser.add_argument("--arch", nargs="*", default=["sm90", "sm100"])
    options = parser.parse_args()
    if options.only:
        what, arch, *names = options.only
        sys.argv = sys.argv[:1]           # the compiler parses the options of the process
        import conftest  # noqa: F401

        print(json.dumps([{"cold": cold, "warm": warm, "host": host}[what](arch, name) for name in names]))
        return 0
    if options.gpu:
        return on_the_gpu(options.mods, options.cold)
    rows = json.loads(RESULTS.with_suffix(".json").read_text()) if RESULTS.with_suffix(".json").exists() else []
    for arch in options.arch:
        for name in options.mods:
            rows = [r for r in rows if (r["arch"], r["mod"]) != (arch, name)] + [measure(arch, name)]
    rows.sort(key=lambda r: (["sm90", "sm100"].index(r["arch"]), MODS.index(r["mod"])))
    RESULTS.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    text = tables(rows)
    performance_page.publish("first_call.py", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
