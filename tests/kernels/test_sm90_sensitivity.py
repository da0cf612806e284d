"""Barriers of the Hopper forward on three warpgroups are needed: without one the emulator stops, reports, or gets other
numbers."""
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.compile,
    pytest.mark.emulate,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl"),
]
# Seen 66 or 67 of 77; one is not executed by these launches. The others are of the compiler's making or protect what others do
# too: fences of products that follow another without a register in between, barriers after which nothing conflicts.
LEAST_SEEN = 66


@pytest.mark.parametrize("kernel", [("128", "wide")], ids=" ".join)
def test_deletions_are_seen(kernel):
    script = Path(__file__).with_name("sm90_sensitivity.py")
    done = subprocess.run([sys.executable, str(script), *kernel], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    assert {"mbarrier wait", "mbarrier arrive", "commit", "wait", "fence", "barrier"} <= {row["kind"] for row in rows}
    unseen = [row for row in rows if row["executed"] and not row["how"]]
    assert len(rows) - len(unseen) >= LEAST_SEEN
    # Two waits prove what their thread knows already.
    assert [row["kind"] for row in unseen if "mbarrier" in row["kind"]] in ([], *(["mbarrier wait"] * n for n in (1, 2)))
    assert all("the thread knows" in row["why"] for row in unseen if "mbarrier" in row["kind"]), unseen
