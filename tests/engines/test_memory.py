"""Memory grows with the length, not with its square: forward and backward with a score edit, a trainable table and a window."""
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import resource, sys, torch
from flexfa4 import create_block_mask, flex_attention

def run(length):
    q, k, v = (torch.randn(1, 1, length, 64, requires_grad=True) for _ in range(3))
    table = torch.rand(1, 1001, requires_grad=True)
    mask = create_block_mask(lambda b, h, i, j: (j <= i) & (i - j < 1000), None, None, length, length)
    flex_attention(q, k, v, lambda s, b, h, i, j: s + table[h, (i - j).clamp(0, 1000)], mask).sum().backward()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

torch.set_num_threads(1)
run(512)
before = peak()
run(int(sys.argv[1]))
print(peak() - before)
"""


def growth(length: int) -> float:
    """MiB at the peak of one call beyond what a short one needed, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(length)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout) / (2**20 if sys.platform == "darwin" else 2**10)     # bytes there, KiB elsewhere


@pytest.mark.slow
def test_memory_is_linear_in_the_length():
    # q, k, v, out, their gradients and copies are 8 MiB each at 32,768; the scores would be 4,096.
    assert growth(32768) < 200
