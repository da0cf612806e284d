"""Speed of the emulator on flash-attn-4's sm_100a forward, S=2048 H=4 D=128 causal. Needs flash-attn-4.

    python benchmarks/emulator_speed.py [sm_90a | sm_100a]
"""

import sys
import time
import warnings
from pathlib import Path

from command_line import check

check(__doc__, range(2), first=("sm_90a", "sm_100a"))
warnings.simplefilter("ignore")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emulator")]
import fa4  # noqa: E402

ARCH = sys.argv[1] if len(sys.argv) > 1 else "sm_100a"
fa4.setup(ARCH)
import flash_attn.cute.interface as interface  # noqa: E402
from flexfa4.emulator import driver, native  # noqa: E402

q, k, v = fa4.inputs(1, 2048, 2048, 4, 4, 128)
RUNS = [("immediate", False)] * 3 + [("random", False), ("late", False)] + [("immediate", True), ("random", True)] * 2
for completion, races in RUNS:
    with fa4.device(ARCH, completion=completion, checks=completion != "immediate", races=races) as dev:
        start = time.perf_counter()
        interface._flash_attn_fwd(q, k, v, causal=True, return_lse=True)
        seconds = time.perf_counter() - start
    n = sum(launch.warp_instructions for launch in dev.launches)
    print(
        f"{ARCH} {completion:9} races={races!s:5}: {seconds:.2f} s, {n / 1e6:.2f} M warp-instructions, "
        f"{n / seconds / 1e6:.1f} M/s"
        f"{' (with compilation)' if seconds > 2.5 else ''}"
    )
ptx = driver._compiled[0][1]
start = time.perf_counter()
native.Loaded(ptx)
print(f"parse + decode: {time.perf_counter() - start:.3f} s")
