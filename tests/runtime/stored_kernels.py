"""A process that asks for kernels, for test_store.py: prints one JSON object. Arguments: what to do.

combine: finds the small kernel that combines parts. launch ARCH: a call of flex_attention's kernel, launched into nothing.
export ARCH: compiles a kernel with mods, exports, links and loads it, and runs what was loaded in the emulator, against float64;
leaves its PTX for the emulator of another process. load ARCH: runs that kernel with other lengths and numbers, where the compiler
cannot be imported. sizes: calls of one mod whose sizes choose two kernels, launched into nothing; waits for the second one, and
calls again."""
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
if WHAT in ("export", "load"):
    emulator.prepare(GPU[REST[0]])
else:
    os.environ["CUTE_DSL_LIBS"] = str(build.shim_library())
if WHAT == "load":
    sys.modules["cutlass"] = None
import torch  # noqa: E402

from flexfa4 import flex_attention, mods, reference, wait_for_kernels  # noqa: E402
from flexfa4.ir import DType  # noqa: E402
from flexfa4.plan import Signature, plan_forward  # noqa: E402
from flexfa4.runtime import engine, kernels, repeat, store  # noqa: E402
from flexfa4.trace import bind  # noqa: E402


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


def sizes() -> dict:
    """Threads of a CTA of each launch; begun: how many compilers this process has started."""
    from flexfa4.runtime import apart, lists

    seen, begun, start = [], [], apart.Job._launch

    @driver._CALLBACK
    def note(config, kernel, args):
        seen.append(config.contents.block[0])
        return 0

    def size(heads: int, q_len: int, kv_len: int) -> None:
        flex_attention(*(torch.zeros(1, heads, n, 64, dtype=torch.bfloat16) for n in (q_len, kv_len, kv_len)))

    ctypes.CDLL(os.environ["CUTE_DSL_LIBS"]).flexfa4_set_callback(note)
    apart.Job._launch = lambda *given: begun.append(0) or start(*given)
    engine.architecture = lambda device: "sm90"
    lists.workers_of = kernels.workers_of = lambda device: 4
    kernels.crew_of = lambda plan, device, items: kernels.Crew(2, torch.zeros(1, dtype=torch.int32), driver.DeviceTensor)
    repeat.remember = lambda *given: None
    size(8, 300, 300), size(2, 1, 4000)
    arrived = wait_for_kernels(100)
    size(2, 1, 4000)
    return dict(threads=seen, begun=len(begun), arrived=arrived)


def export(arch: str) -> dict:
    from flexfa4.runtime import compiler

    with emulator.device(GPU[arch], races=True) as device:
        signatures = []

        def loaded(signature):
            signatures.append(signature)
            made = compiler.forward(signature, runs_here=True)     # the emulator learns its PTX
            found = store.save(ENTRY, lambda path: compiler.export(made, path))
            (store.folder() / "ptx").write_text(made.__ptx__)
            return found

        kernels.compiled = loaded
        got, want = call(arch, device.tensor, *MODS)
    return dict(error=(got.double() - want).abs().max().item(), launches=len(device.launches), made=len(signatures))


def load(arch: str) -> dict:
    class Known:
        __ptx__ = (store.folder() / "ptx").read_text()

    emulator.register(Known)
    with emulator.device(GPU[arch], races=True) as device:
        kernels.compiled = lambda signature: store.load(ENTRY)
        got, want = call(arch, device.tensor, mods.tanh_softcap(0.5), gate(0.25), length=333)
    return dict(error=(got.double() - want).abs().max().item(), launches=len(device.launches))


def gate(share: float):
    return lambda out, lse, b, h, q: share * out * torch.sigmoid(lse)


ENTRY, MODS = "an emulated kernel", (mods.tanh_softcap(3.0), gate(2.0))


def call(arch: str, argument, score_mod=None, out_mod=None, length: int = 150):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, length, 64, generator=g).bfloat16() for _ in range(3))
    bounds = [mod and bind(mod, kind) for mod, kind in ((score_mod, "score"), (None, "mask"), (out_mod, "out"))]
    plan = engine.choose(arch, q, k, v, 0.125, bounds).plan
    crew = kernels.Crew(2, None, argument)
    out, _ = kernels.forward(plan, (q, k, v), 0.125, bounds, crew=crew)
    return out, reference.attention(q, k, v, score_mod, scale=0.125, out_mod=out_mod)[0]


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = {"combine": combine, "launch": launch, "sizes": sizes, "export": export, "load": load}[WHAT](*REST)
said = [str(w.message) for w in caught if "kernel" in str(w.message) and "JitArgument" not in str(w.message)]
print(json.dumps(dict(**found, compiled=kernels.compile_count(), loaded=kernels.load_count(),
                      cutlass=sys.modules.get("cutlass") is not None, said=said)))
