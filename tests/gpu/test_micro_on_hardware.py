"""The micro-programs of the emulator on a Hopper GPU: the same outputs, bit for bit; approximations within their bound.

`FLEXFA4_MICRO_REPORT=file` writes one JSON line a program with the largest difference between the two machines."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emulator"))
from micro import ALL  # noqa: E402
from micro.program import emulate, run_on_gpu  # noqa: E402

pytestmark = pytest.mark.gpu
HERE = {name: p for name, p in ALL.items() if p.arch == "sm_90a"}


@pytest.fixture(scope="module", autouse=True)
def hopper():
    pytest.importorskip("cuda.bindings.driver")
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the programs are for sm_90a")


def largest_relative(a: np.ndarray, b: np.ndarray) -> float:
    x, y = (v.view(np.float32).astype(np.float64) for v in (a, b))
    usable = np.isfinite(x) & np.isfinite(y) & (y != 0)
    return float((np.abs(x - y) / np.abs(y))[usable].max(initial=0.0))


@pytest.mark.parametrize("name", sorted(HERE))
def test_hardware_agrees_with_the_emulator(name):
    program = HERE[name]
    there, here = run_on_gpu(program), emulate(program)
    report = os.environ.get("FLEXFA4_MICRO_REPORT")
    if report:
        row = dict(name=name, equal=all(np.array_equal(there[i], here[i]) for i in there))
        if program.tolerance is not None:
            row["relative"] = max(largest_relative(there[i], here[i]) for i in there)
        with open(report, "a") as out:
            out.write(json.dumps(row) + "\n")
    program.check(there)
    for i in there:
        good = program.same(there[i], here[i])
        first = np.argwhere(~good)[:4].tolist()
        assert good.all(), f"{(~good).sum()} differ, first at {first}: GPU {there[i][~good][:4]}, here {here[i][~good][:4]}"
