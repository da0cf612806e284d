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
# A logarithm of size about 8 over scores with biases of up to 100, in float32, from ex2.approx and lg2.approx.
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
        # Of scores far from 0 float32 keeps 22 bits.
        lse = LSE_TOLERANCE + (2.0**-22 * row["largest_lse"] if row["case"].startswith("far") else 0.0)
        assert row["out"] <= OUT_TOLERANCE[row["half"]] * row["largest"] and row["lse"] <= lse, row
