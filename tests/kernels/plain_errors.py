"""Errors of one Blackwell kernel for plain attention in the emulator; run by test_sm100_beside_fa4.py, a process a kernel.

Argument: flexfa4 or flash-attn-4. Prints one JSON object: head dims -> root of the mean squared error and largest error of the
output, largest of the logarithm."""
import json
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "emulator")]
KERNEL = sys.argv[1]
sys.argv = sys.argv[:1]  # the DSL parses the options of the process
import conftest  # noqa: E402, F401
import fa4  # noqa: E402

DIMS = ((128, 128), (64, 64), (192, 128))


def theirs(q, k, v):
    import flash_attn.cute.interface as interface

    with fa4.device("sm_100a", completion="immediate"):
        return interface._flash_attn_fwd(q, k, v, return_lse=True)[:2]


def ours(q, k, v):
    from flexfa4 import emulator
    from flexfa4.runtime import engine, kernels
    from flexfa4.runtime.lists import NO_MASK

    tensors = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    scale = q.shape[-1] ** -0.5
    plan = engine.choose("sm100", *tensors, scale, [None] * 3).plan
    with emulator.device("sm_100a", completion="immediate") as dev:
        out, lse = kernels.forward(plan, tensors, scale, [None] * 3, NO_MASK, kernels.Crew(2, None, dev.tensor))
    return out.transpose(1, 2), lse


if __name__ == "__main__":
    if KERNEL == "flash-attn-4":
        fa4.setup("sm_100a")
    else:
        from flexfa4 import emulator

        emulator.prepare("sm_100a")
    found = {}
    for dims in DIMS:
        q, k, v = fa4.inputs(1, 512, 700, 2, 2, *dims)
        out64, lse64 = fa4.reference(q, k, v)
        out, lse = {"flash-attn-4": theirs, "flexfa4": ours}[KERNEL](q, k, v)
        error = out.double() - out64
        found[str(dims)] = dict(
            rms=error.pow(2).mean().sqrt().item(), out=error.abs().max().item(), lse=(lse.double() - lse64).abs().max().item()
        )
    print("\n" + json.dumps(found))
