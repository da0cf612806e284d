"""Masks rebuilt inside a CUDA graph on a Hopper GPU: what a replay takes, beside a mask that is kept and one that is made anew.

    python benchmarks/fixed_masks.py [--repeats 5] [--out benchmarks/results/fixed_masks]

Causal documents, bfloat16, D=128. "kept": one call of five in a graph over a BlockMask whose labels stay. "fixed": the same over
its FixedMask, less the rebuild. "rebuild": a graph of `rebuild_into` alone. Their times are medians over replays between CUDA
events. "anew": one call outside a graph after the labels changed, from a synchronised device to a synchronised device, with the
BlockMask (host work) and with the FixedMask. Host: microseconds of a call outside a graph whose labels stay. Writes OUT.json and
OUT.md.
"""
from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Callable

import torch
from documents import SETS
from forward import ROOT, SAMPLE_MS, host_us, sample

from flexfa4 import create_block_mask, flex_attention, mods

# Calls in a graph.
CALLS = 5
LENGTHS = {name: packed.lengths for name, packed in SETS.items()}
CASES = [("12 documents", LENGTHS["12 documents"], 2, 16), ("12 documents", LENGTHS["12 documents"], 1, 4),
         ("uniform to 1000", LENGTHS["uniform to 1000"], 2, 16), ("96 documents", LENGTHS["12 documents"] * 8, 1, 8)]


def graph_of(calls: Callable) -> tuple[torch.cuda.CUDAGraph, list]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = calls()
    return graph, found


def anew_ms(labels: torch.Tensor, run: Callable) -> float:
    times = []
    for _ in range(12):
        labels.add_(1)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[2:])


def measure(name: str, lengths: tuple[int, ...], batch: int, heads: int, repeats: int) -> dict:
    tokens = sum(lengths)
    labels = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).cuda()
    g = torch.Generator(device="cuda").manual_seed(0)
    q, k, v = (torch.randn(batch, tokens, heads, 128, generator=g, device="cuda").bfloat16().transpose(1, 2) for _ in range(3))
    mask = create_block_mask(mods.document_causal(labels), None, None, tokens, tokens)
    fixed = mask.reserve()
    first, again = (flex_attention(q, k, v, block_mask=m) for m in (mask, fixed))
    difference = (first.float() - again.float()).abs().max().item()
    assert difference < 0.02, f"{name}: kept and fixed differ by {difference}"
    ready = {
        "kept": graph_of(lambda: [flex_attention(q, k, v, block_mask=mask) for _ in range(CALLS)]),
        "rebuild": graph_of(lambda: mask.rebuild_into(fixed)),
        "both": graph_of(lambda: [mask.rebuild_into(fixed), *(flex_attention(q, k, v, block_mask=fixed) for _ in range(CALLS))]),
    }
    ready["both"][0].replay()
    assert torch.equal(ready["both"][1][-1], again), name
    samples = {which: [] for which in ready}
    for _ in range(repeats):
        for which, (graph, _) in ready.items():
            calls = max(5, min(100, int(SAMPLE_MS / max(1e-3, sample(graph.replay, 2)))))
            samples[which].append(sample(graph.replay, calls))
    kept, rebuild, both = (statistics.median(samples[which]) for which in ready)
    run = {which: lambda m=m: flex_attention(q, k, v, block_mask=m) for which, m in (("mask", mask), ("fixed", fixed))}
    return dict(set=name, documents=len(lengths), tokens=tokens, batch=batch, heads=heads, kept_ms=kept / CALLS,
                fixed_ms=(both - rebuild) / CALLS, rebuild_ms=rebuild, anew_mask_ms=anew_ms(labels, run["mask"]),
                anew_fixed_ms=anew_ms(labels, run["fixed"]), host_us=host_us(run["fixed"], 30))


def report(rows: list[dict]) -> str:
    lines = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}; ms, see benchmarks/fixed_masks.py for the method.", "",
             "| causal documents | tokens | B x H | kept, a call | fixed, a call | rebuild | rebuild and 32 calls over 32 kept "
             "| anew, BlockMask | anew, FixedMask | host us, FixedMask |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for r in rows:
        layers = (r["rebuild_ms"] + 32 * r["fixed_ms"]) / (32 * r["kept_ms"])
        lines.append(f"| {r['set']} ({r['documents']}) | {r['tokens']:,} | {r['batch']} x {r['heads']} | {r['kept_ms']:.3f} | "
                     f"{r['fixed_ms']:.3f} | {r['rebuild_ms']:.3f} | {layers:.2f} | {r['anew_mask_ms']:.2f} | "
                     f"{r['anew_fixed_ms']:.2f} | {r['host_us']:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "fixed_masks")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    rows = [measure(*case, args.repeats) for case in CASES]
    print(report(rows))
    args.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(report(rows))


if __name__ == "__main__":
    main()
