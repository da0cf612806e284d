"""Compiles the C++ core and the launch shim with the system compiler, once, into the user's cache folder."""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .errors import BuildError

HERE = Path(__file__).resolve().parent
FLAGS = ["-std=c++20", "-march=native", "-ffp-contract=off", "-fPIC"]
# The files that most instructions of a kernel run through get the most; half the compile time of the others would be spent on
# code that hardly runs.
HOT, COLD = "-O3", "-O1"
_HOT_FILES = "alu float mma sched shadow tensor_sum"
_COLD_FILES = "api atomics clc convert_float halves hints idle matrix remote tcgen05_move tma trace"
LEVELS = {**dict.fromkeys(_HOT_FILES.split(), HOT), **dict.fromkeys(_COLD_FILES.split(), COLD)}


def _flags(unit: Path) -> list[str]:
    return [*FLAGS, LEVELS.get(unit.stem, "-O2")]


def cache_dir() -> Path:
    """FLEXFA4_EMULATOR_CACHE, or ~/.cache/flexfa4/emulator (XDG_CACHE_HOME is respected)."""
    given = os.environ.get("FLEXFA4_EMULATOR_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "flexfa4" / "emulator"


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    raise BuildError(
        "the emulator compiles its core at first use and needs a C++20 compiler: no c++, g++ or clang++ on the "
        "PATH. Install one, or name it in the environment variable CXX."
    )


def _cpu() -> str:
    """What -march=native depends on, so that a cache shared by machines is safe."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
    except OSError:
        return platform.processor() or platform.machine()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


def _key(sources: list[Path], *more: str) -> str:
    h = hashlib.sha256()
    for part in [*more, _cpu()]:
        h.update(part.encode())
    for path in sources:
        h.update(path.name.encode() + path.read_bytes())
    return h.hexdigest()[:20]


def _publish(made: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(made, target)  # atomic: two processes may build at once
    return target


def core_library() -> Path:
    """Path of the compiled core; builds it (about half a minute on two cores) unless the cache holds it."""
    folder = HERE / "core"
    sources = sorted([*folder.glob("*.cpp"), *folder.glob("*.h")])
    cxx = _compiler()
    target = cache_dir() / f"core-{_key(sources, cxx, *FLAGS, str(LEVELS))}" / "libflexfa4_emulator.so"
    if target.exists():
        return target
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as tmp:
        # The slowest file first, so that it does not run alone at the end.
        units = sorted(folder.glob("*.cpp"), key=lambda p: -p.stat().st_size)
        with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
            objects = list(pool.map(lambda unit: _object(cxx, unit, sorted(folder.glob("*.h")), Path(tmp)), units))
        made = Path(tmp) / target.name
        _run([cxx, "-shared", "-o", str(made), *map(str, objects)])
        return _publish(made, target)


def _object(cxx: str, unit: Path, headers: list[Path], tmp: Path) -> Path:
    """The compiled file; kept, so that a change of one file compiles that file only."""
    flags = _flags(unit)
    target = cache_dir() / "objects" / f"{unit.stem}-{_key([unit, *headers], cxx, *flags)}.o"
    if target.exists():
        return target
    made = tmp / f"{unit.stem}.o"
    _run([cxx, *flags, "-c", str(unit), "-o", str(made)])
    return _publish(made, target)


def shim_library() -> Path:
    """Path of the stand-in for the DSL's runtime library. Its name matters: the DSL looks for `libcute_dsl_runtime.so`."""
    source = HERE / "shim" / "runtime.cpp"
    cxx = _compiler()
    target = cache_dir() / f"shim-{_key([source], cxx)}" / "libcute_dsl_runtime.so"
    if target.exists():
        return target
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as tmp:
        made = Path(tmp) / target.name
        _run([cxx, "-std=c++20", "-O1", "-fPIC", "-shared", str(source), "-o", str(made)])
        return _publish(made, target)
