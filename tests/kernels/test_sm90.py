"""The Hopper forward in the emulator against dense float64 attention: lengths around tile edges, head dims, the gallery's mods,
several interleavings and completion policies. `forward_emulated.py` lists the cases."""
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
SHARES = 4
# Of `largest`: P and the output are rounded to the inputs' type, half a unit each.
OUT_TOLERANCE = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# A logarithm from ex2.approx and lg2.approx over scores of size 8; of a large one float32 keeps 24 bits, once in log2 and once
# more in its own unit, and of scores far from 0, where biases cancel, 22.
LSE_TOLERANCE = 5e-6


@pytest.mark.parametrize("share", range(SHARES))
def test_forward_agrees_with_float64(share):
    script = Path(__file__).with_name("forward_emulated.py")
    done = subprocess.run([sys.executable, str(script), "sm90", f"{share}/{SHARES}"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) >= 20
    for row in rows:
        assert row["launches"] == (2 if row["case"].startswith("split") else 1) and row["findings"] == [], row
        lse = LSE_TOLERANCE + 2.0**(-22 if row["case"].removeprefix("split, ").startswith("far") else -24) * row["largest_lse"]
        assert row["out"] <= OUT_TOLERANCE[row["half"]] * row["largest"] and row["lse"] <= lse, row
