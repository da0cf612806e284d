"""Kernels that are compiled in a process of their own, while calls go on with others.

The compiler holds Python's lock from its first moment to its last: a thread would stall this process as a call that waits does. A
process apart is given the signatures of the kernels as text, has no GPU, and leaves entries in the store, which appear whole or
not at all. It outlives this process where that ends first, and then ends by itself.

Any number of processes may want the same kernel: whoever takes the lock of its entry (a file beside it) starts the compiler,
which inherits the lock and so holds it for as long as it lives, however it ends. The others look for the entry, and, once nobody
holds the lock, at what the compiler said into that file. What has failed is not tried again by this process.
"""
from __future__ import annotations

import json
import logging
import multiprocessing.spawn
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

try:
    import fcntl
except ImportError:                    # Windows, which has no kernels
    fcntl = None

from . import store
from .kernels import Wanted

log = logging.getLogger("flexfa4")

# Calls look this often whether a kernel is there.
_EVERY_S = 0.05
# A compiler that takes longer is ended.
_MOST_S = 600.0
# How far a file's time may lie behind this process's.
_CLOCKS_S = 1.0
# Compilers that run for one process.
_AT_ONCE = 2
_NEVER = float("inf")
_BOOT = "import json, sys; given = json.load(sys.stdin); sys.path[:] = given['path']; " \
        "from flexfa4.runtime.compiling import main; main(given)"

_jobs: "dict[tuple[str, ...], Job]" = {}
_lock = threading.RLock()


class Job:
    """Kernels that a process compiles. about: in words; due: when it is worth to `look` again, in `time.monotonic`'s seconds;
    can_be: whether there is a store that can be written."""

    def __init__(self, wanted: list[Wanted], about: str):
        self.keys, self.about = tuple(w.entry for w in wanted), about
        self.requests = [(w.kind, key, w.signature.to_json()) for w, key in zip(wanted, self.keys)]
        self.due, self.state, self.reason, self.can_be = 0.0, "new", "", True
        self._folder = store.folder()
        self._began, self._began_here, self._process = time.time(), 0.0, None

    @property
    def ended(self) -> bool:
        return self.state in ("arrived", "failed")

    def look(self) -> bool:
        """Whether the kernels are there. Starts what nobody compiles, and says once why it failed where it did."""
        with _lock:
            if not self.ended:
                self._step()
                self.due = time.monotonic() + _EVERY_S
            if self.ended:
                self.due = 0.0 if self.state == "arrived" else _NEVER
            return self.state == "arrived"

    def wait(self, seconds: float = _NEVER) -> bool:
        """Whether the kernels are there within that time. Comes back at once where they failed."""
        until = time.monotonic() + seconds
        while not self.look() and not self.ended and time.monotonic() < until:
            time.sleep(0.01)
        return self.state == "arrived"

    def _step(self) -> None:
        process = self._process
        code = None if process is None else process.returncode       # `_reap` waits for it
        if all((self._folder / f"{key}.so").exists() for key in self.keys):
            self.state = "arrived"
            log.info("flexfa4: compiled beside process %d after %.1f s: %s", os.getpid(), time.time() - self._began, self.about)
        elif process is None:
            self._start()
        elif code is not None:
            self._fail(_last_line(self._lock_path()) or f"the compiler's process ended with {code}")
        elif time.monotonic() - self._began_here > _MOST_S:
            process.kill()

    def _start(self) -> None:
        """Takes the lock and starts the compiler; nothing where another process holds it, or enough are running."""
        path = self._lock_path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.state, self.reason, self.can_be = "failed", f"{path}: {error.strerror}", False
            return
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            said = _last_line(path)
            if self.state == "elsewhere" and said and os.fstat(held).st_mtime >= self._began - _CLOCKS_S:
                self._fail(said)
            elif sum(job._runs() for job in _jobs.values()) < _AT_ONCE:
                os.ftruncate(held, 0)
                self.state, self._began_here = "running", time.monotonic()
                self._launch(held)
        except BlockingIOError:
            self.state = "elsewhere"
        except OSError as error:
            self._fail(str(error))
        finally:
            os.close(held)

    def _launch(self, held: int) -> None:
        """held: the lock, which the process has for its errors, and thereby holds."""
        given = dict(path=[p for p in sys.path if isinstance(p, str)], wanted=self.requests)
        environment = os.environ | dict(FLEXFA4_KERNEL_CACHE=str(self._folder), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
        with tempfile.TemporaryFile() as request:
            request.write(json.dumps(given).encode())
            request.seek(0)
            self._process = subprocess.Popen([executable(), "-c", _BOOT], stdin=request, stdout=subprocess.DEVNULL, stderr=held,
                                             env=environment, start_new_session=True)
        threading.Thread(target=self._reap, args=(self._process,), daemon=True, name="flexfa4 compiler").start()
        log.info("flexfa4: process %d compiles: %s", self._process.pid, self.about)

    def _reap(self, process: subprocess.Popen) -> None:
        process.wait()
        self.due = 0.0

    def _runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def _fail(self, reason: str) -> None:
        self.state, self.reason = "failed", reason
        warnings.warn(f"flex_attention goes on with another kernel of the same mod, which is slower for some calls: compiling "
                      f"{self.about} failed: {reason}", stacklevel=2)

    def _lock_path(self) -> Path:
        return self._folder / (self.keys[0] + store.LOCK)

    def forked(self) -> None:
        """In a process that was forked, whose children the compilers are not."""
        if self._process is not None:
            self._process.returncode, self._process = 0, None
            self.state = self.state if self.ended else "elsewhere"


def executable() -> str | None:
    """The Python that compiles, as `multiprocessing.set_executable` or this process has it; None where that is none."""
    found = multiprocessing.spawn.get_executable()
    found = found.decode() if isinstance(found, bytes) else found
    fits = found and "python" in Path(found).name.lower() and os.access(found, os.X_OK) and not getattr(sys, "frozen", False)
    return found if fits else None


def possible() -> bool:
    """Whether kernels can be compiled apart: there is a store, a linker, a Python."""
    return fcntl is not None and store.usable() and store.linker() is not None and executable() is not None


def begin(wanted: list[Wanted], about: str) -> Job | None:
    """The job that compiles these kernels, begun now or before. None where there is no store to write."""
    keys = tuple(w.entry for w in wanted)
    with _lock:
        job = _jobs.get(keys)
        if job is None:
            job = _jobs[keys] = Job(wanted, about)
            job.look()
        return job if job.can_be else None


def known(wanted: list[Wanted]) -> Job | None:
    """The job that compiles these kernels, if one was begun."""
    return _jobs.get(tuple(w.entry for w in wanted)) if _jobs else None


def wait_for_kernels(timeout: float | None = None) -> bool:
    """Waits until the kernels that are compiled beside this process are there; calls after it run with them. timeout: seconds.
    False where some are not there: the time is over, or their compilation failed (a warning said why)."""
    until = time.monotonic() + (_NEVER if timeout is None else timeout)
    return all([job.wait(until - time.monotonic()) for job in list(_jobs.values())])


def arrived_count() -> int:
    """How many kernels were compiled beside this process, or by another one that it saw at it."""
    return sum(len(job.keys) for job in _jobs.values() if job.state == "arrived")


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for job in _jobs.values():
        job.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
