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


# Scheduler, head dims, CTAs that work together; whether spans tell the two query tiles apart, a bias of the distance, turns.
SLOW = [("counter", 192, 128, 1), ("clc", 192, 128, 1), ("static", 64, 64, 1), ("static", 256, 256, 1)]
SLOW += [("static", 128, 128, 1, "bias"), ("static", 128, 128, 2), ("counter", 192, 128, 2), ("static", 256, 256, 2)]
SLOW += [("counter", 128, 128, 1), ("static", 192, 128, 1), ("counter", 128, 128, 1, "halves"), ("clc", 128, 128, 1, "halves")]
SLOW += [("static", 96, 96, 1, "turns"), ("static", 96, 96, 1, "halves", "turns"), ("clc", 96, 96, 1, "halves", "turns")]
SLOW += [("static", 64, 64, 1, "halves"), ("static", 128, 128, 1, "halves", "bias")]


@pytest.mark.parametrize("kernel", [
    ("static", 128, 128, 1), ("clc", 128, 128, 1), ("counter", 128, 128, 2), ("static", 128, 128, 1, "halves"),
    ("static", 192, 128, 1, "halves"),
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
