"""Runs the emulator's micro-programs, and those that show how a GPU rounds, on a Hopper GPU and saves what comes out.

    python benchmarks/micro_on_gpu.py FOLDER [REGULAR EXPRESSION OF NAMES]      on the GPU
    python benchmarks/micro_on_gpu.py compare FOLDER                            anywhere: against the emulator
    python benchmarks/micro_on_gpu.py record FOLDER                             anywhere: what test_arithmetic.py wants

FOLDER gets micro.npz and sweeps.npz: one array for each output ("name@index"; long ones as differences,
"name@index'"). A program that ends the CUDA context is named, and the rest run in a new process.
tests/gpu/test_micro_on_hardware.py compares on the GPU machine; this file is for a machine without one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emulator")]
LONG = 1 << 18


def programs() -> dict:
    """File -> programs by name."""
    from micro import ALL, arithmetic

    named = {name: p for name, p in ALL.items() if p.arch == "sm_90a"} | {p.name: p for p in arithmetic.sums()}
    return {"micro": named, "sweeps": {p.name: p for p in arithmetic.sweeps()}}


def packed(name: str, index: int, values: np.ndarray) -> dict:
    if values.size < LONG:
        return {f"{name}@{index}": values}
    return {f"{name}@{index}'": np.diff(values.reshape(-1).view(np.int32), prepend=np.int32(0))}


def unpacked(file) -> dict:
    """(name, index) -> flat array."""
    found = {}
    for key in file:
        name, index = key.rstrip("'").rsplit("@", 1)
        values = file[key].reshape(-1)
        found[name, int(index)] = np.cumsum(values, dtype=np.int32).view(np.uint32) if key[-1] == "'" else values
    return found


def on_gpu(folder: Path, pattern: str, skip: list[str]) -> None:
    import torch
    from micro.program import run_on_gpu

    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: nothing run")
    folder.mkdir(parents=True, exist_ok=True)
    for file, chosen in programs().items():
        target = folder / f"{file}.npz"
        found = dict(np.load(target)) if target.exists() else {}
        done = {key.rstrip("'").rsplit("@", 1)[0] for key in found} | set(skip)
        for name, program in chosen.items():
            if name in done or not re.search(pattern, name):
                continue
            try:
                for i, a in run_on_gpu(program).items():
                    found |= packed(name, i, a)
            except BaseException as error:
                print(f"{name}: {str(error).splitlines()[0]}", flush=True)
                np.savez_compressed(target, **found)
                restart = [sys.executable, __file__, str(folder), pattern, *skip, name]
                sys.exit(subprocess.run(restart, env=os.environ).returncode)
        np.savez_compressed(target, **found)
        print(f"{file}: {len(found)} outputs, {len(skip)} programs failed so far", flush=True)


def compare(folder: Path) -> None:
    from micro.program import emulate

    for file, chosen in programs().items():
        if not (folder / f"{file}.npz").exists():
            continue
        there, equal = unpacked(np.load(folder / f"{file}.npz")), 0
        for name, program in chosen.items():
            if (name, min(program.expect)) not in there:
                continue
            different = []
            for i, here in emulate(program).items():
                a, b = here.reshape(-1), there[name, i]
                bad = np.flatnonzero(a.view(np.uint8).reshape(a.size, -1) != b.view(np.uint8).reshape(a.size, -1))
                if bad.size:
                    at = np.unique(bad // a.itemsize)
                    different.append(f"output {i}: {at.size} of {a.size}, at {at[:3]} here {a[at[:3]]}, there {b[at[:3]]}")
            equal += not different
            if different:
                print(f"{name}: {'; '.join(different)}", flush=True)
        print(f"{file}: {equal} programs of {len({n for n, _ in there})} equal", flush=True)


def record(folder: Path) -> None:
    from micro import arithmetic

    found = unpacked(np.load(folder / "micro.npz")) | unpacked(np.load(folder / "sweeps.npz"))
    exact = (*arithmetic.sums(), *arithmetic.sweeps())
    sums = {p.name: dict(inputs=arithmetic.checksum(*p.arrays[1:]), outputs=arithmetic.checksum(found[p.name, 0])) for p in exact}
    (ROOT / "tests" / "emulator" / "h200_arithmetic.json").write_text(json.dumps(sums, indent=1) + "\n")


if __name__ == "__main__":
    from command_line import check

    check(__doc__, range(1, 1 << 20))
    if sys.argv[1] in ("compare", "record"):
        dict(compare=compare, record=record)[sys.argv[1]](Path(sys.argv[2]))
    else:
        on_gpu(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ".", sys.argv[3:])
