"""A process that asks for kernels, for test_store.py: prints one JSON object. Arguments: what to do.

combine: finds the small kernel that combines parts. launch ARCH: a call of flex_attention's kernel, launched into nothing.
emulated ARCH: exports a kernel, links it, loads it, and runs what was loaded in the emulator, against float64."""
import ctypes
import json
import os
import sys
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS)]
WHAT, *REST = sys.argv[1:]
sys.argv = sys.argv[:1]  # the DSL parses the options of the process
import conftest  # noqa: E402, F401
from flexfa4 import emulator  # noqa: E402
from flexfa4.emulator import build, driver  # noqa: E402

GPU = {"sm90": "sm_90a", "sm100": "sm_100a"}
if WHAT == "emulated":
    emulator.prepare(GPU[REST[0]])
else:
    os.environ["CUTE_DSL_LIBS"] = str(build.shim_library())
import torch  # noqa: E402

from flexfa4 import reference  # noqa: E402
from flexfa4.ir import DType  # noqa: E402
from flexfa4.plan import Signature, plan_forward  # noqa: E402
from flexfa4.runtime import engine, kernels, store  # noqa: E402


def combine() -> dict:
    kernels.compiled_combine(Signature(plan_forward("sm90", DType.BF16, 64, 64)))
    return {}


def launch(arch: str) -> dict:
    """Which grids reach the launch."""
    seen = []

    @driver._CALLBACK
    def note(config, kernel, args):
        seen.append(tuple(config.contents.grid))
        return 0

    ctypes.CDLL(os.environ["CUTE_DSL_LIBS"]).flexfa4_set_callback(note)
    call(arch, driver.DeviceTensor)
    return dict(grids=seen)


def emulated(arch: str) -> dict:
    from flexfa4.runtime import compiler

    with emulator.device(GPU[arch], races=True) as device:
        signatures = []

        def loaded(signature):
            signatures.append(signature)
            made = compiler.forward(signature, runs_here=True)     # the emulator learns its PTX
            return store.save("an emulated kernel", lambda path: compiler.export(made, path))

        kernels.compiled = loaded
        got, want = call(arch, device.tensor)
    return dict(error=(got.double() - want).abs().max().item(), launches=len(device.launches), made=len(signatures))


def call(arch: str, argument):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 150, 64, generator=g).bfloat16() for _ in range(3))
    plan = engine.choose(arch, q, k, v, 0.125, [None] * 3).plan
    crew = kernels.Crew(2, None, argument)
    return kernels.forward(plan, (q, k, v), 0.125, [None] * 3, crew=crew)[0], reference.attention(q, k, v, scale=0.125)[0]


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = {"combine": combine, "launch": launch, "emulated": emulated}[WHAT](*REST)
said = [str(w.message) for w in caught if "kernel" in str(w.message) and "JitArgument" not in str(w.message)]
print(json.dumps(dict(**found, compiled=kernels.compile_count(), loaded=kernels.load_count(), cutlass="cutlass" in sys.modules,
                      said=said)))
