"""How long a BlockMask of captures on a GPU takes to build there, against torch's compiled create_block_mask in the same run.

    python benchmarks/masks_gpu.py [--no-torch]      prints the table, writes results/masks_gpu.{json,md}

One sample is create_block_mask and spans on a function compiled from source for that sample alone, on labels that lie on the GPU,
from a synchronised device to a synchronised device with the spans on it; medians. torch's function runs on one function that it
keeps, compiled, once untimed and then in turn with ours; at 131,072 tokens, the most whose dense mask the GPU holds. Ours is also
shown for a new function of known code, around other labels, and for a function that it keeps, as torch does.
"""
from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Callable

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from flexfa4 import create_block_mask  # noqa: E402
from masks import MILLION, TILE, factory, fresh, labels  # noqa: E402

TOKENS = 131072
SAMPLES, TURNS = 15, 5
BAR_MS, BAR_TIMES = 2.0, 20
RECURRING, RECURRING_BAR_MS = "documents + causal, labels that come back", 100.0     # the bar of benchmarks/masks.py


def functions(tokens: int) -> dict[str, tuple[str, Callable]]:
    """Name -> (the mask's source, seed -> what it captures)."""
    document, count = "(q >= kv) & (doc[q] == doc[kv])", tokens // 1024
    return {
        "causal": ("q >= kv", lambda seed: {}),
        "window 1024": ("(q >= kv) & (q - kv < 1024)", lambda seed: {}),
        "documents + causal": (document, lambda seed: dict(doc=labels(tokens, "rising", seed, count).cuda())),
        "documents + causal, labels in any order":
            (document, lambda seed: dict(doc=labels(tokens, "shuffled", seed, count).cuda())),
        RECURRING: (document, lambda seed: dict(doc=labels(tokens, "recurring", seed, count).cuda())),
    }


def timed(work: Callable) -> float:
    """Milliseconds from a synchronised device to a synchronised device."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def ours(make: Callable, tokens: int, samples: int) -> list[float]:
    """Milliseconds of each sample, after an untimed one."""
    times = []
    for seed in range(samples + 1):
        mask_mod = make(seed)
        times.append(timed(lambda: create_block_mask(mask_mod, None, None, tokens, tokens, device="cuda").spans(TILE, TILE)))
    return times[1:]


def at_a_million() -> list[dict]:
    rows = []
    for name, (source, capture) in functions(MILLION).items():
        def make(seed, source=source, capture=capture):
            return fresh(source, **capture(seed))

        ours(make, MILLION, 5)
        times = ours(make, MILLION, SAMPLES)
        row = dict(mask=name, tokens=MILLION, median_ms=statistics.median(times), slowest_ms=max(times),
                   bar_ms=RECURRING_BAR_MS if name == RECURRING else BAR_MS)
        row["met"] = row["median_ms"] <= row["bar_ms"]
        rows.append(row)
        print(f"{name} at {MILLION}: median {row['median_ms']:.3f} ms, slowest {row['slowest_ms']:.3f}, bar {row['bar_ms']} ms  "
              f"{'met' if row['met'] else 'MISSED'}", flush=True)
    return rows


def against_torch() -> list[dict]:
    from torch.nn.attention.flex_attention import create_block_mask as torch_create

    compiled = torch.compile(torch_create)
    rows = []
    for name, (source, capture) in functions(TOKENS).items():
        def make(seed, source=source, capture=capture):
            return fresh(source, **capture(seed))

        def again(seed, known=factory(source, **capture(0)), capture=capture):
            return known(**capture(seed))

        mask_mod = make(0)

        def theirs():
            compiled(mask_mod, None, None, TOKENS, TOKENS, device="cuda")

        theirs()
        ours(make, TOKENS, 5)
        other, times = [], dict(median_ms=[], known_ms=[], kept_ms=[])
        for _ in range(TURNS):
            other.append(timed(theirs))
            for column, function in (("median_ms", make), ("known_ms", again), ("kept_ms", lambda _: mask_mod)):
                times[column] += ours(function, TOKENS, 5)
        row = dict(mask=name, tokens=TOKENS, compiled_ms=statistics.median(other),
                   **{column: statistics.median(found) for column, found in times.items()})
        row["times"] = row["compiled_ms"] / row["median_ms"]
        row["met"] = row["times"] >= BAR_TIMES
        rows.append(row)
        print(f"{name} at {TOKENS}: ours {row['median_ms']:.3f} ms (known code {row['known_ms']:.3f}, kept "
              f"{row['kept_ms']:.3f}), torch compiled {row['compiled_ms']:.2f} ms ({row['times']:.0f}x, bar {BAR_TIMES}x)  "
              f"{'met' if row['met'] else 'MISSED'}", flush=True)
    return rows


def report(million: list[dict], compared: list[dict]) -> str:
    lines = [f"{torch.cuda.get_device_name()}, tile {TILE}, torch {torch.__version__}; tracing is part of each sample (see "
             "benchmarks/masks_gpu.py for the method).", "",
             "| mask | tokens | median ms | slowest ms | bar ms | met |", "|---|--:|--:|--:|--:|---|"]
    lines += [f"| {r['mask']} | {r['tokens']:,} | {r['median_ms']:.2f} | {r['slowest_ms']:.2f} | {r['bar_ms']:.0f} | "
              f"{'yes' if r['met'] else 'no'} |" for r in million]
    if compared:
        lines += ["", "| 131,072 tokens | code never seen, ms | times (bar 20) | new function of known code, ms | times "
                  "| kept function, ms | times | torch compiled, kept function, ms | met |",
                  "|---|--:|--:|--:|--:|--:|--:|--:|---|"]
    for r in compared:
        times = " | ".join(f"{r[name]:.3f} | {r['compiled_ms'] / r[name]:.0f}" for name in ("median_ms", "known_ms", "kept_ms"))
        lines.append(f"| {r['mask']} | {times} | {r['compiled_ms']:.2f} | {'yes' if r['met'] else 'no'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    million = at_a_million()
    compared = [] if "--no-torch" in sys.argv else against_torch()
    results = ROOT / "benchmarks" / "results"
    (results / "masks_gpu.json").write_text(json.dumps(dict(million=million, compared=compared), indent=1) + "\n")
    (results / "masks_gpu.md").write_text(report(million, compared))


if __name__ == "__main__":
    from command_line import check

    check(__doc__, options=("--no-torch",))
    main()
