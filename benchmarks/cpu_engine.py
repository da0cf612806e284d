"""The tiled engine against torch on the same CPU: eager dense attention, scaled_dot_product_attention, compiled flex_attention.

    python benchmarks/cpu_engine.py [--rounds N]      prints the table, writes results/cpu_engine.{json,md}

float32, D 64, inputs random, two threads. Of each case every contestant runs once untimed and is then timed in turn, ours, the
first rival, the second, ours, ..., so that all see the same machine; medians are compared. Masks are built outside the timed
calls for everybody (a bool tensor for the dense ones). Before timing, each output (and gradient) is compared with ours.
"""
from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests"))

import conftest  # noqa: E402,F401  (makes flexfa4.mods importable from a checkout)
from torch.nn.attention import flex_attention as torch_flex  # noqa: E402

import flexfa4  # noqa: E402

DIM = 64
ROUNDS = 7
TOLERANCE = 2e-4          # float32 sums of up to 16,384 terms of size 1


def causal(b, h, q, kv):
    return q >= kv


def window(b, h, q, kv):
    return (q >= kv) & (q - kv < 256)


def alibi(score, b, h, q, kv):
    return score + (kv - q) * torch.exp2(-(h + 1.0))


def softcap(score, b, h, q, kv):
    return 20.0 * torch.tanh(score / 20.0)


def dense(mask: torch.Tensor) -> Callable:
    """Eager attention as it is written by hand: the whole score matrix, masked."""
    def attend(q, k, v):
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        return torch.softmax(scores.masked_fill(~mask, -math.inf), -1) @ v
    return attend


@dataclass
class Case:
    """contestants: name -> attention of (q, k, v); the first is ours. bars: rival -> least (time of the rival / our time)."""

    name: str
    length: int
    heads: int
    backward: bool
    contestants: dict[str, Callable]
    bars: dict[str, float]
    times: dict[str, list[float]] = field(default_factory=dict)


def inputs(case: Case) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(case.length + case.heads)
    made = [torch.randn(1, case.heads, case.length, DIM, generator=g) for _ in range(4)]
    return [t.requires_grad_(case.backward) for t in made[:3]] + [made[3]]


def run(case: Case, attend: Callable, q, k, v, d_out) -> tuple[float, list[torch.Tensor]]:
    """Milliseconds, and the results to compare."""
    begin = time.perf_counter()
    out = attend(q, k, v)
    grads = torch.autograd.grad(out, (q, k, v), d_out) if case.backward else ()
    return 1e3 * (time.perf_counter() - begin), [out.detach(), *grads]


def measure(case: Case, rounds: int) -> dict:
    tensors = inputs(case)
    first = None
    for name, attend in case.contestants.items():
        _, results = run(case, attend, *tensors)
        first = results if first is None else first
        worst = max((a - b).abs().max().item() for a, b in zip(first, results))
        if not worst <= TOLERANCE:
            raise SystemExit(f"{case.name}: {name} differs from ours by {worst}")
        del results
    for _ in range(rounds):
        for name, attend in case.contestants.items():
            gc.collect()
            case.times.setdefault(name, []).append(run(case, attend, *tensors)[0])
    medians = {name: statistics.median(times) for name, times in case.times.items()}
    mine = medians["flexfa4"]
    row = dict(case=case.name, length=case.length, heads=case.heads, backward=case.backward, median_ms=medians, bars=case.bars,
               ratios={name: medians[name] / mine for name in case.bars})
    row["met"] = all(row["ratios"][name] >= bar for name, bar in case.bars.items())
    words = ", ".join(f"{name} {medians[name]:.1f} ms = {row['ratios'][name]:.2f}x (bar {bar:g})"
                      for name, bar in case.bars.items())
    print(f"{case.name:34s} ours {mine:8.1f} ms   {words}   {'met' if row['met'] else 'MISSED'}", flush=True)
    return row


def cases() -> list[Case]:
    sdpa = torch.nn.functional.scaled_dot_product_attention
    flex = torch.compile(torch_flex.flex_attention)

    def ours(mask_mod, length, score_mod=None):
        mask = None if mask_mod is None else flexfa4.create_block_mask(mask_mod, None, None, length, length)
        return lambda q, k, v: flexfa4.flex_attention(q, k, v, score_mod=score_mod, block_mask=mask)

    def theirs(mask_mod, length, score_mod=None):
        mask = None if mask_mod is None else torch_flex.create_block_mask(mask_mod, None, None, length, length, device="cpu")
        return lambda q, k, v: flex(q, k, v, score_mod=score_mod, block_mask=mask)

    def square(mask_mod, length):
        at = torch.arange(length)
        return mask_mod(0, 0, at[:, None], at[None])

    found = [
        Case("causal, forward + backward", 4096, 8, True,
             {"flexfa4": ours(causal, 4096), "dense": dense(square(causal, 4096)),
              "sdpa": lambda q, k, v: sdpa(q, k, v, is_causal=True)},
             {"dense": 2.0, "sdpa": 0.7}),
        Case("window 256, forward + backward", 16384, 1, True,
             {"flexfa4": ours(window, 16384), "dense": dense(square(window, 16384))}, {"dense": 25.0}),
    ]
    for heads, bar in ((8, 1 / 1.25), (1, 1 / 2)):
        for name, mask_mod in (("causal", causal), ("full", None), ("window 256", window)):
            found.append(Case(f"{name}, forward, H={heads}", 4096, heads, False,
                              {"flexfa4": ours(mask_mod, 4096), "flex": theirs(mask_mod, 4096)}, {"flex": bar}))
    for name, score_mod in (("alibi", alibi), ("softcap", softcap)):
        found.append(Case(f"{name} causal, forward, H=8", 4096, 8, False,
                          {"flexfa4": ours(causal, 4096, score_mod), "flex": theirs(causal, 4096, score_mod)}, {"flex": 1 / 2}))
    return found


def report(rows: list[dict], rounds: int) -> str:
    lines = [f"float32, D {DIM}, {torch.get_num_threads()} threads, torch {torch.__version__}, medians of {rounds} alternated "
             "rounds (see benchmarks/cpu_engine.py for the method). A ratio is the rival's time over ours.", "",
             "| case | S | H | flexfa4 ms | rival | rival ms | ratio | bar | met |", "|---|--:|--:|--:|---|--:|--:|--:|---|"]
    for r in rows:
        for name, bar in r["bars"].items():
            ratio = r["ratios"][name]
            lines.append(f"| {r['case']} | {r['length']:,} | {r['heads']} | {r['median_ms']['flexfa4']:.1f} | {name} | "
                         f"{r['median_ms'][name]:.1f} | {ratio:.2f} | {bar:g} | {'yes' if ratio >= bar else 'no'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="run the cases whose name contains this; nothing is written")
    asked = parser.parse_args()
    torch.set_num_threads(2)
    rows = [measure(case, asked.rounds) for case in cases() if asked.only in case.name]
    if asked.only:
        return
    results = ROOT / "benchmarks" / "results"
    (results / "cpu_engine.json").write_text(json.dumps(rows, indent=1) + "\n")
    (results / "cpu_engine.md").write_text(report(rows, asked.rounds))


if __name__ == "__main__":
    main()
