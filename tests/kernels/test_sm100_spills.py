"""Registers of the Blackwell forward suffice, also for long edits and the widest head dims."""
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl"),
]
# Head dim, dtype and graphs of what spilled 16 to 920 bytes with the registers of other plans or with a look-up for each score,
# and the bytes that are left: a word that every role keeps there from the start and reads once in a while.
KERNELS = [("64", "f16", "relative_bias_2d", 0), ("64", "bf16", "causal alibi gated", 8), ("192", "bf16", "causal", 0),
           ("256", "bf16", "causal", 8), ("128", "bf16", "causal of_two_lines", 0),
           ("128", "f16", "of_two_masked_lines", 0)]  # fmt: skip


def test_spilled_bytes():
    script = Path(__file__).with_name("spilled_bytes.py")
    words = [":".join(kernel[:3]) for kernel in KERNELS]
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert all(got <= most for got, (*_, most) in zip(found, KERNELS)), dict(zip(words, found))
