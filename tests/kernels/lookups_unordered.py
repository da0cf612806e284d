"""Findings of the emulator in the Blackwell forward without the barrier that keeps factors out of the place of the statistics
until all warps have read values of distances there; run by test_sm100_lookups.py in a process of its own. Argument: "ordered" to
leave the barrier. Prints one JSON list."""
import json
import sys
from pathlib import Path

ORDERED = "ordered" in sys.argv
sys.path[:0] = [str(Path(__file__).resolve().parent)]
sys.argv = [sys.argv[0], "sm100"]
import captured  # noqa: E402
import forward_emulated as emulated  # noqa: E402
import torch  # noqa: E402

from flexfa4.kernels.sm100.softmax import Softmax  # noqa: E402

if __name__ == "__main__":
    if not ORDERED:
        Softmax.synchronise = lambda self: None
    mods = captured.of_two_masked_lines(captured.numbers(torch.int32))
    case = emulated.Case("values of distances", (200, 300), (captured.HEADS, 2), (64, 64), workers=3, runs=2, **mods)
    print("\n" + json.dumps([finding for row in emulated.run(case) for finding in row["findings"]]))
