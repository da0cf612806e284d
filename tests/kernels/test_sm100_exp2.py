"""2**x on the FMA units, compiled and run in the emulator, against float64."""
import importlib.util
import math
import tempfile

import numpy as np
import pytest
import torch

if importlib.util.find_spec("cutlass") is None:
    pytest.skip("needs nvidia-cutlass-dsl", allow_module_level=True)

import cutlass.cute as cute
from cutlass import Constexpr, Float32
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from flexfa4 import emulator
from flexfa4.kernels.exp2 import COEFFICIENTS, RELATIVE_ERROR, SMALLEST, exp2_packed

pytestmark = [pytest.mark.compile, pytest.mark.emulate]
THREADS = 128


@cute.kernel
def powers(x: cute.Tensor, y: cute.Tensor, degree: Constexpr):
    """y = 2**x, two elements a thread."""
    first = 2 * (cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0])
    y[first], y[first + 1] = exp2_packed(x[first], x[first + 1], degree)


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, degree: Constexpr, stream):
    powers(x, y, degree).launch(grid=(x.shape[0] // (2 * THREADS), 1, 1), block=(THREADS, 1, 1), stream=stream)


def run(x: torch.Tensor, degree: int) -> torch.Tensor:
    fake = [make_fake_compact_tensor(Float32, (cute.sym_int(divisibility=2 * THREADS),)) for _ in range(2)]
    with tempfile.TemporaryDirectory() as dumps:  # keeping the PTX writes it to a file as well
        options = f"--gpu-arch sm_100a --keep-ptx --dump-dir {dumps}"
        ptx = cute.compile(launch, *fake, degree, make_fake_stream(), options=options).__ptx__
    assert "ex2.approx" not in ptx
    y = torch.full_like(x, math.nan)
    arguments = [np.array([t.data_ptr(), len(t)], np.uint64).tobytes()[:12] + bytes(4) for t in (x, y)]
    emulator.run(ptx, (len(x) // (2 * THREADS), 1, 1), (THREADS, 1, 1), arguments)
    return y


@pytest.mark.parametrize("degree", sorted(COEFFICIENTS))
def test_the_relative_error_is_the_one_promised(degree):
    near = torch.linspace(-2, 2, 1 << 14)
    x = torch.cat([near, torch.linspace(SMALLEST + 1, 126, 1 << 14), torch.arange(-64, 64).repeat(2).float()])
    y, exact = run(x, degree).double(), torch.exp2(x.double())
    worst = ((y - exact) / exact).abs().max().item()
    assert worst <= RELATIVE_ERROR[degree]
    assert worst > RELATIVE_ERROR[degree] / 4  # the bound is tight


def test_far_below_it_is_positive_and_tiny():
    x = torch.tensor([-math.inf, -1e30, -1000.0, -127.0, -126.5, -126.0, -3.4e38, -200.0] * 32)
    y = run(x, 3)
    assert (y >= 0).all() and (y <= 2.0**-125.9).all()
