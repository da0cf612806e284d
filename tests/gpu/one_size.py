"""Inputs of one size, for tests in which the size does not matter, and the mark of tests that need a kernel."""
import pytest
import torch

from flexfa4.runtime import engine

HEADS, LENGTH, DIM = 4, 512, 64
NEEDS_A_KERNEL = pytest.mark.skipif(
    torch.cuda.is_available() and engine.architecture(torch.device("cuda", torch.cuda.current_device())) is None,
    reason="this GPU has no kernel")


def inputs(q_len=LENGTH, kv_len=LENGTH, seed=0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return [torch.randn(1, HEADS, n, DIM, generator=g, device="cuda").to(torch.bfloat16) for n in (q_len, kv_len, kv_len)]
