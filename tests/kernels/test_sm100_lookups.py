"""Values of distances go through shared memory that other warps write factors to: what orders the two is needed."""
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


def findings(*words: str) -> list:
    script = Path(__file__).with_name("lookups_unordered.py")
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_barrier_after_reading_is_needed():
    assert findings("ordered") == []
    assert {kind for kind, _ in findings()} == {"race"}
