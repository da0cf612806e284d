"""flash-attn-4's own kernels, unmodified, against float64 attention (the DSL and flash-attn-4 are test dependencies)."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.emulate,
    pytest.mark.skipif(any(importlib.util.find_spec(m) is None for m in ("cutlass", "flash_attn")), reason="needs flash-attn-4"),
]
# P and the output are rounded to bfloat16 (8 bits): 2^-7 of values of size about 2; gradients are relative to the largest one.
OUT, GRADIENT = 2.0**-6, 2.0**-7
# The sm_100a kernel's own exp2 costs some 1e-5 of the logarithm.
LSE = {"sm_90a": 2e-6, "sm_100a": 5e-5}


QUICK = "causal D=128"


def run(arch: str, seeds: int, *names: str) -> list[dict]:
    script = Path(__file__).with_name("run_fa4.py")
    command = [sys.executable, str(script), arch, str(seeds), *(["; ".join(names)] if names else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def agrees(row: dict, arch: str) -> None:
    errors = row["errors"]
    assert errors["out"] <= OUT * row["scale"] and errors["lse"] <= LSE[arch] * row["scale"] ** 2, row
    assert all(errors[name] <= GRADIENT for name in ("dq", "dk", "dv") if name in errors), row


def test_forward_agrees_with_float64_and_reports_nothing():
    rows = run("sm_100a", 3, QUICK)
    assert len(rows) == 9
    for row in rows:
        agrees(row, "sm_100a")
        assert row["findings"] == [] and len(row["launches"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_every_other_case_agrees_with_float64(arch):
    rows = run(arch, 3, *(["but", QUICK] if arch == "sm_100a" else []))
    assert len({row["case"] for row in rows}) >= 21 and len(rows) >= 21 * 3 * 3
    for row in rows:
        agrees(row, arch)
        # The dK/dV epilogues of sm_100a never commit their bulk stores to a group, so nothing can wait for them.
        known = arch == "sm_100a" and row["case"].startswith("backward")
        assert all(known and kind == "exit" and ("global.shared::cta" in text) for kind, text in row["findings"]), row
        assert (row["cancels"] > 0) == (row["case"] == "cluster launch control"), row
