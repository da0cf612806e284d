"""Packed documents on a Hopper GPU: tiles that begin with documents, tiles on the grid, flash-attn-4's variable-length call.

    python benchmarks/documents.py [--repeats 5] [--out benchmarks/results/documents]

Counts the area of the tiles that are worked on first (no GPU needed), then times one call of each variant on a GPU: a sample is
the median of single calls timed by CUDA events, variants run in turn, the median of the samples is shown. Inputs are normal
random numbers in bfloat16, B=2, H=16, D=128. Writes OUT.json and OUT.md; without a GPU only the areas.
"""
from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Callable

import numpy as np
import torch
from forward import ROOT, SAMPLE_MS, Case, sample
from forward_rivals import DOCUMENTS

from flexfa4 import create_block_mask, flex_attention
from flexfa4.ir import DType
from flexfa4.plan import plan_forward
from flexfa4.runtime import kernels, lists
from flexfa4.schedule import make_schedule
from flexfa4.schedule.work import FULL, INSIDE, PARTIAL

TOKENS = 16384
BATCH, HEADS, DIM = 2, 16, 128
AREA_TILES = ((64, 128), (128, 64), (128, 128), (128, 176), (192, 128))


def random_lengths(seed: int, most: int) -> tuple[int, ...]:
    """Uniform lengths up to `most` that add up to TOKENS."""
    random, lengths = np.random.default_rng(seed), []
    while sum(lengths) < TOKENS:
        lengths.append(int(min(random.integers(1, most + 1), TOKENS - sum(lengths))))
    return tuple(lengths)


SETS = {"12 documents": DOCUMENTS, "uniform to 1000": random_lengths(0, 1000), "uniform to 200": random_lengths(1, 200)}


def causal(b, h, q, kv):
    return q >= kv


def mask_of(lengths: tuple[int, ...], device: str = "cpu"):
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(device)
    return create_block_mask(lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv), None, None, TOKENS, TOKENS)


def useful(lengths: tuple[int, ...]) -> float:
    """Pairs that the mask keeps."""
    return sum(n * (n + 1) / 2 for n in lengths)


def variable_length_tiles(lengths: tuple[int, ...], q_tile: int, kv_tile: int) -> int:
    """Tiles of a kernel that treats each document as a sequence of its own."""
    return sum(-(-min(n, first + q_tile) // kv_tile) for n in lengths for first in range(0, n, q_tile))


def areas() -> list[dict]:
    rows = []
    for name, lengths in SETS.items():
        mask = mask_of(lengths)
        for q_tile, kv_tile in AREA_TILES:
            per_tile = q_tile * kv_tile / useful(lengths)
            work, grid = mask.work_spans(q_tile, kv_tile), mask.spans(q_tile, kv_tile).counts()
            counts = work.counts()
            rows.append(dict(
                set=name, documents=len(lengths), tile=f"{q_tile} x {kv_tile}", work_tiles=int(work.present.sum()),
                grid=(grid[PARTIAL] + grid[FULL]) * per_tile, placed=sum(counts.values()) * per_tile,
                varlen=variable_length_tiles(lengths, q_tile, kv_tile) * per_tile, grid_partial=grid[PARTIAL],
                placed_partial=counts[PARTIAL], placed_inside=counts[INSIDE]))
    return rows


def area_table(rows: list[dict]) -> str:
    head = ["documents", "tile", "on the grid", "along documents", "variable length", "partial on the grid",
            "partial along documents", "partial, labels known"]
    lines = ["Area of the tiles over the area of the pairs kept (one head), and how many tiles look at labels:", "",
             "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for r in rows:
        lines.append(f"| {r['set']} ({r['documents']}) | {r['tile']} | {r['grid']:.3f} | {r['placed']:.3f} | {r['varlen']:.3f} | "
                     f"{r['grid_partial']} | {r['placed_partial']} | {r['placed_inside']} |")
    return "\n".join(lines) + "\n"


def variants(lengths: tuple[int, ...], tensors: tuple) -> tuple[dict[str, Callable], int]:
    """(name -> function that runs it, tiles of a head along documents)."""
    q, k, v = tensors
    mask, whole = mask_of(lengths, "cuda"), create_block_mask(causal, None, None, TOKENS, TOKENS, device="cuda")
    plan = plan_forward("sm90", DType.BF16, DIM, DIM, (mask.bound.graph,))
    along = mask.work_spans(plan.q_tile, plan.tiles.kv_tile)
    looked_at = replace(along, runs=along.runs.clone())
    looked_at.runs[:, 2].clamp_(max=FULL).masked_fill_(along.runs[:, 2] == INSIDE, PARTIAL)
    section = lists.section_kv_heads(TOKENS, DIM, DIM, 2, lists.L2_BYTES["sm90"])

    def launch(spans, natural: bool = False) -> Callable:
        schedule = make_schedule(lists.work_of(spans, (BATCH, HEADS, HEADS)), lists.workers_of(q.device), section, split=False)
        if natural:
            schedule = replace(schedule, tiles=schedule.tiles[np.lexsort(schedule.tiles[:, 2::-1].T)])
        held = lists.make_lists(spans, schedule, q.device)
        return lambda: kernels.forward(plan, tensors, DIM ** -0.5, (None, mask.bound, None), held)[0]

    found = {
        "flexfa4": lambda: flex_attention(q, k, v, block_mask=mask),
        "labels looked at": launch(looked_at),
        "natural order": launch(along, natural=True),
        "on the grid": launch(mask.kept_spans(plan.q_tile, plan.tiles.kv_tile, device="cpu")),
        "plain causal": lambda: flex_attention(q, k, v, block_mask=whole),
    }
    if (rival := variable_length_call(lengths, tensors)) is not None:
        found["flash-attn-4, variable length"] = rival
    return found, sum(along.counts().values())


def variable_length_call(lengths: tuple[int, ...], tensors: tuple) -> Callable | None:
    try:
        from flash_attn.cute import flash_attn_varlen_func
    except ImportError:
        return None
    ends = torch.tensor(lengths * BATCH, device="cuda").cumsum(0)
    bounds = torch.cat([ends.new_zeros(1), ends]).int()
    flat = [t.transpose(1, 2).reshape(-1, HEADS, DIM) for t in tensors]

    def run():
        out = flash_attn_varlen_func(*flat, cu_seqlens_q=bounds, cu_seqlens_k=bounds, max_seqlen_q=max(lengths),
                                     max_seqlen_k=max(lengths), causal=True)
        return (out[0] if isinstance(out, tuple) else out).view(BATCH, TOKENS, HEADS, DIM).transpose(1, 2)

    return run


def measure(name: str, lengths: tuple[int, ...], repeats: int) -> dict:
    tensors = Case("", BATCH, HEADS, HEADS, TOKENS, DIM, DIM, "document").tensors()
    ready, tiles = variants(lengths, tensors)
    first, calls, result = None, {}, dict(set=name, tiles=tiles, variants={})
    for variant, run in ready.items():
        out = run()
        torch.cuda.synchronize()
        first = out if first is None else first
        difference = None if variant == "plain causal" else (out.float() - first.float()).abs().max().item()
        assert difference is None or difference < 0.02, f"{variant} differs by {difference}"
        calls[variant] = max(3, min(200, int(SAMPLE_MS / max(1e-3, sample(run, 3)))))
        result["variants"][variant] = dict(samples_ms=[], difference=difference)
    for _ in range(repeats):
        for variant, run in ready.items():
            result["variants"][variant]["samples_ms"].append(sample(run, calls[variant]))
    pairs = {"plain causal": TOKENS * (TOKENS + 1) / 2}
    for variant, row in result["variants"].items():
        row["ms"] = statistics.median(row["samples_ms"])
        row["tflops"] = 4 * BATCH * HEADS * DIM * pairs.get(variant, useful(lengths)) / row["ms"] / 1e9
    causal_tiles = sum(range(1, TOKENS // 128 + 1))
    rate = {n: t / result["variants"][n]["ms"] for n, t in (("flexfa4", tiles), ("plain causal", causal_tiles))}
    result["share_of_causal_rate"] = rate["flexfa4"] / rate["plain causal"]
    return result


def time_table(results: list[dict]) -> str:
    names = list(results[0]["variants"])
    head = ["documents", *names, "time of variable length / flexfa4", "rate of an executed tile / plain causal's"]
    lines = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}; ms (useful TFLOP/s), medians:", "",
             "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for r in results:
        cells = [f"{r['variants'][n]['ms']:.3f} ({r['variants'][n]['tflops']:.0f})" for n in names]
        rival = r["variants"].get("flash-attn-4, variable length")
        ratio = f"{rival['ms'] / r['variants']['flexfa4']['ms']:.3f}" if rival else "-"
        lines.append("| " + " | ".join([r["set"], *cells, ratio, f"{r['share_of_causal_rate']:.3f}"]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "documents")
    args = parser.parse_args()
    rows = areas()
    text, results = area_table(rows), []
    print(text, flush=True)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured, nothing written")
        return
    for name, lengths in SETS.items():
        results.append(measure(name, lengths, args.repeats))
        print(time_table(results[-1:]), flush=True)
    text += "\n" + time_table(results)
    args.out.with_suffix(".json").write_text(json.dumps(dict(areas=rows, times=results), indent=1))
    args.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
