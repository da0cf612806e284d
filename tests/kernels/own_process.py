"""Runs the scripts of this folder, each in a process of its own: one compiles for one architecture, and is told by its arguments
what to run."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def printed(script: str, *words, seconds: int = 500):
    """What tests/kernels/`script` prints as JSON in its last line; AssertionError with its errors where it fails."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
