"""Every barrier of the Blackwell forward is needed: without any one wait, arrival, commit or proxy fence the emulator stops,
reports, or gets other numbers."""
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.compile,
    pytest.mark.emulate,
    pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl"),
]


SLOW = [("counter", 192, 128), ("clc", 192, 128), ("static", 64, 64), ("static", 256, 256), ("static", 128, 128, "bias")]


@pytest.mark.parametrize("kernel", [
    ("static", 128, 128), ("counter", 128, 128), ("clc", 128, 128), ("static", 192, 128),
    *(pytest.param(kernel, marks=pytest.mark.slow) for kernel in SLOW),
], ids=lambda kernel: " ".join(map(str, kernel)))  # fmt: skip
def test_every_deletion_is_seen(kernel):
    script = Path(__file__).with_name("sm100_sensitivity.py")
    done = subprocess.run([sys.executable, str(script), *map(str, kernel)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    assert {"mbarrier wait", "mbarrier arrive", "commit", "wait", "fence", "barrier"} <= {row["kind"] for row in rows}
    assert [row for row in rows if not row["executed"]] == []
    assert [row for row in rows if not row["how"]] == []
