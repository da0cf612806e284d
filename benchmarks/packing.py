"""What sharing query tiles between the heads of a KV head is worth on a Hopper GPU, beside a head a query tile.

    python benchmarks/packing.py [--repeats 3] [--out benchmarks/results/packing]

Inputs are normal random numbers in bfloat16, D = 128; a sample is the median of single calls timed by CUDA events, the
variants of a case run in turn, and the median of the samples is shown. Rows that are too few for the device are split over keys
in every variant; the combine counts. GB/s: keys and values, read once, by the time. Writes OUT.json and OUT.md.
"""
from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from forward import Case, ROOT, alternated

from flexfa4 import create_block_mask
from flexfa4.ir import DType
from flexfa4.plan import Heads, RowLayout, plan_forward, row_layout
from flexfa4.runtime import kernels, lists

# (batch, query heads, key heads, keys), queries, mask
SHAPES = [
    ((1, 64, 8, 131072), 1, ""), ((8, 32, 8, 32768), 1, ""), ((64, 32, 8, 4096), 1, ""), ((8, 24, 8, 32768), 1, ""),
    ((8, 32, 4, 8192), 16, ""), ((8, 32, 4, 8192), 128, ""),
    ((2, 32, 4, 16384), 16384, "causal"), ((2, 32, 4, 16384), 16384, "window"), ((8, 32, 4, 2048), 2048, "causal"),
]
MASKS = {"causal": lambda b, h, q, kv: q >= kv, "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 1024)}
DIM = 128


def layouts(heads: Heads, queries: int) -> dict[str, RowLayout]:
    planned = row_layout("sm90", DIM, DIM, heads, queries)
    return {"as planned": planned, "a head a tile": RowLayout(1, planned.short), "a head a tile of 192 rows": RowLayout()}


def runner(tensors: tuple, layout: RowLayout, mask):
    q, k, _ = tensors
    plan = plan_forward("sm90", DType.BF16, DIM, DIM, () if mask is None else (mask.bound.graph,), layout)
    if mask is None:
        held = lists.dense_lists(plan, q, k)
    else:
        held = lists.lists_of(mask.work_spans(plan.q_tile, plan.tiles.kv_tile), plan, q, k)
    bounds = (None, None if mask is None else mask.bound, None)
    return lambda: kernels.forward(plan, tensors, DIM**-0.5, bounds, held)


def measure(shape: tuple, queries: int, mask_name: str, repeats: int) -> dict:
    batch, heads, kv_heads, keys = shape
    tensors = Case("", *shape, DIM, DIM, "plain", queries).tensors()
    mask = create_block_mask(MASKS[mask_name], None, None, queries, keys) if mask_name else None
    found = layouts(Heads(heads // kv_heads, mask is not None), queries)
    ready = {name: runner(tensors, layout, mask) for name, layout in found.items()}
    outs = [run()[0].float() for run in ready.values()]
    assert all((out - outs[0]).abs().max() < 0.02 for out in outs), "the layouts differ in what they compute"
    times = alternated(ready, calls=9, repeats=repeats)
    return dict(ms=times, pack=found["as planned"].pack, rate=4 * batch * kv_heads * keys * DIM / times["as planned"] / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "packing")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    results = {}
    for shape, queries, mask in SHAPES:
        name = f"{mask or 'plain'} {','.join(map(str, shape))}, {queries} queries"
        results[name] = measure(shape, queries, mask, args.repeats)
        args.out.with_suffix(".json").write_text(json.dumps(results, indent=1))
        print(name, results[name], flush=True)
    args.out.with_suffix(".md").write_text(table(results))


def table(results: dict) -> str:
    names = list(next(iter(results.values()))["ms"])
    head = ["mask B,H,Hkv,Skv", "places", *names, "GB/s"]
    lines = [f"{torch.cuda.get_device_name()}; ms (ratio to the plan as it is).", "",
             "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for case, row in results.items():
        base = row["ms"]["as planned"]
        cells = [f"{row['ms'][name]:.3f} ({row['ms'][name] / base:.3f})" for name in names]
        lines.append("| " + " | ".join([case, str(row["pack"]), *cells, f"{row['rate']:.0f}"]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
