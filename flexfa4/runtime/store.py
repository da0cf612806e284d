"""Compiled kernels on disk: written once, loaded by any later process in milliseconds, without the compiler.

An entry is a shared library, KEY.so, with 40 bytes at its end: a mark and the SHA-256 of what comes before. The key names all
that the library depends on: the kernel's signature (graphs as canonical text, plan, what a launch passes), this package's
sources, the versions of the compiler and of tvm-ffi, the CUDA toolkit, and the CPU, whose own instructions the host code uses.

The folder is FLEXFA4_KERNEL_CACHE, by default flexfa4/kernels in the user's cache folder; `off` keeps nothing. It may be
deleted at any time. Past MOST_BYTES the entries that were not used for longest are deleted. Entries appear by a rename, so any
number of processes may share the folder; where it cannot be written, or there is no linker, kernels are compiled anew in each
process.
"""
from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
import warnings
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Callable

try:
    import tvm_ffi
except ImportError:                # comes with the compiler; without it there is nothing to load
    tvm_ffi = None

FUNCTION = "kernel"
# Of an entry that a process apart makes: it holds the lock, and writes there why it failed.
LOCK = ".lock"
MOST_BYTES = 1 << 30
_MARK = b"flexfa4\0"
_TAIL = len(_MARK) + hashlib.sha256().digest_size
_LOST_AFTER_S = 3600
_PACKAGE = Path(__file__).resolve().parents[1]
# What the code of a kernel comes from.
_SOURCES = ("ir", "facts", "schedule", "plan", "emit", "kernels", "runtime/compiler.py")


def folder() -> Path | None:
    """Where entries are kept; None where nothing is to be."""
    given = os.environ.get("FLEXFA4_KERNEL_CACHE")
    if given is not None:
        return None if given in ("", "0", "off") else Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "flexfa4" / "kernels"
    except RuntimeError:               # no home
        return None


def usable() -> bool:
    """Whether kernels may come from the disk and go there. Not where artifacts of a compilation are asked for, which a loaded
    library does not have: the compiler's own variables (CUTE_DSL_KEEP, CUTE_DSL_LINEINFO, ...)."""
    asked = any(name.startswith("CUTE_DSL_") and name not in ("CUTE_DSL_LIBS", "CUTE_DSL_ARCH") for name in os.environ)
    if tvm_ffi is None or folder() is None or asked:
        return False
    try:
        runtime_library()
    except FileNotFoundError:
        return False
    return True


def key_of(what: str) -> str:
    """The key of an entry; what: text that names the kernel and all that it is compiled for."""
    return hashlib.sha256(f"{_environment()}\n{what}".encode()).hexdigest()[:40]


@cache
def _environment() -> str:
    toolkit = runtime_library().parents[1].name
    return "\n".join([metadata.version("nvidia-cutlass-dsl"), tvm_ffi.__version__, toolkit, _cpu(), _sources()])


@cache
def _sources() -> str:
    found = hashlib.sha256()
    for name in _SOURCES:
        path = _PACKAGE / name
        for file in (path,) if path.suffix else sorted(path.rglob("*.py")):
            found.update(file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


def _cpu() -> str:
    """The instructions that the CPU has."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            head = file.read(1 << 13)
        lines = [line for line in head.splitlines() if line.startswith((b"flags", b"Features", b"model name", b"CPU part"))]
        return f"{platform.machine()} {hashlib.sha256(b''.join(lines[:2])).hexdigest()}"
    except OSError:
        return platform.machine()


@cache
def runtime_library() -> Path:
    """The library that host functions call to launch: CUTE_DSL_LIBS, or that of the newest installed CUDA toolkit which the
    driver supports, as the compiler itself chooses. Raises FileNotFoundError."""
    name = "libcute_dsl_runtime.so"
    for path in os.environ.get("CUTE_DSL_LIBS", "").split(":"):
        if path.endswith(name):
            return Path(path)
    spec = find_spec("cutlass")
    root = Path(spec.origin).parents[2] if spec is not None and spec.origin else Path("nowhere")
    found = {int(path.parents[1].name[2:]): path for path in root.glob(f"cu[0-9]*/lib/{name}")}
    version = _driver_version()
    fitting = [major for major in found if version is None or major <= version]
    if not fitting:
        raise FileNotFoundError(f"{name} of nvidia-cutlass-dsl for a driver of CUDA {version}, in {root}")
    return found[max(fitting)]


def _driver_version() -> int | None:
    """The CUDA major version of the driver, None without one."""
    try:
        number = ctypes.c_int(0)
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else number.value // 1000


@cache
def _load_runtime() -> ctypes.CDLL:
    # Global: the entries find what they call by name.
    return ctypes.CDLL(str(runtime_library()), mode=ctypes.RTLD_GLOBAL)


def load(key: str) -> Callable | None:
    """The host function of an entry, or None where there is none. One that is damaged counts as none, with a warning."""
    path = path_of(key)
    try:
        whole = _is_whole(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        _say(f"{path} cannot be read ({error.strerror}): the kernel is compiled again")
        return None
    if not whole:
        _say(f"{path} is damaged: the kernel is compiled again")
        return None
    try:
        function = _open(path)
    except Exception as error:
        _say(f"{path} cannot be loaded ({type(error).__name__}: {error}): the kernel is compiled again")
        return None
    try:
        os.utime(path)
    except OSError:                    # a folder that is only read
        pass
    return function


def save(key: str, export: Callable[[Path], None]) -> Callable | None:
    """Makes an entry of what `export` writes (an object file, to the path it is given) and returns its host function; where the
    folder cannot be written, that of a library that is gone with the process. None where nothing can be linked or loaded."""
    if linker() is None:
        return None
    for place, made in ((folder, lambda: _open(keep(key, export))), (tempfile.gettempdir, lambda: _passing(export))):
        try:
            return made()
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            _say(f"compiled kernels are not kept in {place()}: {error}")
    return None


def _passing(export: Callable[[Path], None]) -> Callable:
    """The host function of a library that is deleted as soon as it is open."""
    with tempfile.TemporaryDirectory(prefix="tmp-") as room:
        return _open(_link(Path(room), export))


def keep(key: str, export: Callable[[Path], None]) -> Path:
    """Makes an entry as `save` does, and does not load it. Raises OSError, RuntimeError or CalledProcessError."""
    base = folder()
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="tmp-", dir=base) as room:
        target = path_of(key)
        os.replace(_link(Path(room), export), target)
    prune(base)
    return target


def path_of(key: str) -> Path:
    """Where an entry is, or would be."""
    return folder() / f"{key}.so"


def _link(room: Path, export: Callable[[Path], None]) -> Path:
    made, source = room / "kernel.so", room / "kernel.o"
    export(source)
    subprocess.run([linker(), "-shared", "-o", str(made), str(source)], check=True, capture_output=True)
    content = made.read_bytes()
    with open(made, "ab") as file:
        file.write(_MARK + hashlib.sha256(content).digest())
    return made


@cache
def linker() -> str | None:
    """A program that makes a shared library of an object file: ld, or a compiler that calls it."""
    return next((path for name in ("ld", "ld.lld", "cc", "gcc", "clang") if (path := shutil.which(name))), None)


def prune(base: Path, most_bytes: int = MOST_BYTES) -> None:
    """Deletes the entries that were not used for longest until three quarters of `most_bytes` are left, where there are more, and
    what processes that were killed have left."""
    entries, total = [], 0
    for item in os.scandir(base):
        try:
            state = item.stat()
            if item.name.endswith(".so"):
                entries.append((state.st_mtime, state.st_size, item.path))
                total += state.st_size
            elif state.st_mtime < time.time() - _LOST_AFTER_S:
                if item.name.startswith("tmp-"):
                    shutil.rmtree(item.path, ignore_errors=True)
                elif item.name.endswith(LOCK):
                    Path(item.path).unlink(missing_ok=True)
        except FileNotFoundError:      # another process was faster
            continue
    if total <= most_bytes:
        return
    for _, size, path in sorted(entries):
        Path(path).unlink(missing_ok=True)
        total -= size
        if total <= most_bytes * 3 // 4:
            return


def _is_whole(content: bytes) -> bool:
    body, tail = content[:-_TAIL], content[-_TAIL:]
    return tail[:len(_MARK)] == _MARK and hashlib.sha256(body).digest() == tail[len(_MARK):]


def _open(path: Path) -> Callable:
    _load_runtime()
    return tvm_ffi.load_module(str(path))[FUNCTION]


def is_loaded(function: Callable) -> bool:
    """Whether a host function is one of tvm-ffi's, which takes its containers for tuples."""
    return tvm_ffi is not None and isinstance(function, tvm_ffi.Function)


def _say(text: str) -> None:
    warnings.warn(text, stacklevel=4)
