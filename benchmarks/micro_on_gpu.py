"""Runs the emulator's micro-programs, and wgmma on random numbers, on a Hopper GPU and saves what comes out.

    python benchmarks/micro_on_gpu.py FILE.npz

The file holds one array for each output ("name@index"). A program that ends the CUDA context is named, and the rest run in a new
process. tests/gpu/test_micro_on_hardware.py compares on the GPU machine; this file is for a machine without one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emulator")]


def main(target: Path, skip: list[str]) -> None:
    from micro import ALL
    from micro.matrices import random_products
    from micro.program import run_on_gpu

    programs = {name: p for name, p in ALL.items() if p.arch == "sm_90a"} | {p.name: p for p in random_products()}
    found = dict(np.load(target)) if target.exists() else {}
    done = {key.rsplit("@", 1)[0] for key in found} | set(skip)
    for name, program in programs.items():
        if name in done:
            continue
        try:
            found |= {f"{name}@{i}": a for i, a in run_on_gpu(program).items()}
        except BaseException as error:
            print(f"{name}: {str(error).splitlines()[0]}", flush=True)
            np.savez_compressed(target, **found)
            restart = [sys.executable, __file__, str(target), *skip, name]
            sys.exit(subprocess.run(restart, env=os.environ).returncode)
    np.savez_compressed(target, **found)
    print(f"{len(found)} outputs, {len(skip)} programs failed", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
