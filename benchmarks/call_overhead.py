"""What a call costs besides its work: tiny attention on the CPU, with and without gradients, beside scaled_dot_product_attention.

    python benchmarks/call_overhead.py [--calls 2000]

Method: q, k, v are [1, 1, 16, 16] in float32, on one thread: the arithmetic takes about 1 us. Each case is called 200 times,
then all cases take turns, so that a busy moment of the machine meets each alike, and the medians of single calls are printed.
"grad" is a forward call that records for autograd; "fwd+bwd" also runs the backward pass of out.sum(). "outside the engine" is a
no-grad call with the engine replaced by one that returns at once: checks, mods, masks, look-ups. Writes results/call_overhead.md.
"""
from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

import torch
from torch.nn.functional import scaled_dot_product_attention

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from flexfa4 import create_block_mask, flex_attention  # noqa: E402
from flexfa4.engines import tiled  # noqa: E402

LENGTH, DIM = 16, 16
SLOPES = torch.tensor([0.5])


def causal(b, h, q, k):
    return q >= k


def alibi(score, b, h, q, k):
    return score + SLOPES[h] * (k - q)


def calls() -> dict:
    """name -> (our call of q, k, v, torch's nearest)."""
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH)
    bias = torch.zeros(LENGTH, LENGTH)
    return {
        "plain": (lambda *t: flex_attention(*t), lambda *t: scaled_dot_product_attention(*t)),
        "causal BlockMask": (lambda *t: flex_attention(*t, block_mask=mask),
                             lambda *t: scaled_dot_product_attention(*t, is_causal=True)),
        "causal mask_mod": (lambda *t: flex_attention(*t, mask_mod=causal),
                            lambda *t: scaled_dot_product_attention(*t, is_causal=True)),
        "ALiBi": (lambda *t: flex_attention(*t, alibi), lambda *t: scaled_dot_product_attention(*t, attn_mask=bias)),
    }


def modes(call):
    """mode -> a function without arguments."""
    plain = [torch.randn(1, 1, LENGTH, DIM) for _ in range(3)]
    leaves = [t.clone().requires_grad_() for t in plain]

    def no_grad():
        with torch.no_grad():
            call(*plain)

    return {"no grad": no_grad, "grad": lambda: call(*leaves),
            "fwd+bwd": lambda: torch.autograd.grad(call(*leaves).sum(), leaves)}


def medians(cases: dict, count: int) -> dict[str, float]:
    """Median microseconds of each case, called in turns."""
    samples = {name: [] for name in cases}
    for name, case in cases.items():
        for _ in range(200):
            case()
    for _ in range(count):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) * 1e6 for name, times in samples.items()}


def outside_the_engine(call, count: int) -> float:
    """Microseconds of a no-grad call whose engine does nothing."""
    out, lse = torch.zeros(1, 1, LENGTH, DIM), torch.zeros(1, 1, LENGTH)
    with mock.patch.object(tiled, "forward", lambda *args: (out, lse)):
        return medians({"call": modes(call)["no grad"]}, count)["call"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2000)
    count = parser.parse_args().calls
    torch.set_num_threads(1)
    lines = ["| call | mode | flexfa4 us | scaled_dot_product_attention us |", "|---|---|---|---|"]
    outside = []
    for name, (ours, theirs) in calls().items():
        sides = {"ours": modes(ours), "torch": modes(theirs)}
        found = medians({f"{side} {mode}": case for side, cases in sides.items() for mode, case in cases.items()}, count)
        lines += [f"| {name} | {mode} | {found[f'ours {mode}']:.1f} | {found[f'torch {mode}']:.1f} |" for mode in sides["ours"]]
        outside.append(f"| {name} | outside the engine | {outside_the_engine(ours, count):.1f} | |")
    text = "\n".join(["# What a tiny call costs on the CPU", "", "Method, from `benchmarks/call_overhead.py`:", "",
                      __doc__.split("Method: ")[1].rsplit(" Writes", 1)[0].strip(), "",
                      f"torch {torch.__version__}, Python {sys.version.split()[0]}, {count} calls.", "", *lines, *outside])
    print(text)
    (ROOT / "benchmarks" / "results" / "call_overhead.md").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
