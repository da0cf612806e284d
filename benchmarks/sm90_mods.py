"""The Hopper forward's mods against its own plain causal kernel: what a score or mask graph costs, on a GPU.

    python benchmarks/sm90_mods.py [--repeats 5] [--only MOD ...] [--out benchmarks/results/sm90_mods]
    ncu --profile-from-start off ... python benchmarks/sm90_mods.py --profile causal alibi_causal causal:64 causal:128:fa4

Shape: B 2, H 16, S 16384. Mods run in turn, `repeats` times; a sample is the median of single calls timed by CUDA events after as
many that are not. TFLOP/s count the pairs that the mask keeps; "of executed tiles" counts every pair of the tiles that are not
empty. Writes OUT.json and OUT.md. `--profile` calls each MOD[:D[:RIVAL]] or docs:SET (one of `documents.py`) three times, the
last one inside the profiler's range, and measures nothing."""
from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Callable

import documents
import torch
from forward import ROOT, SAMPLE_MS, Case, kept_pairs, sample
from forward_rivals import MODS, RIVALS, planned

from flexfa4 import create_block_mask, flex_attention

SHAPE = (2, 16, 16, 16384)
BASE = "causal"


def case_of(mod: str, dim: int) -> Case:
    return Case(mod, *SHAPE, dim, dim, mod)


def executed_pairs(case: Case) -> int:
    """Pairs in the tiles that are not empty, of one batch and head."""
    mod = MODS[case.mod](case)
    if mod.mask_mod is None:
        return case.length**2
    mask = create_block_mask(mod.mask_mod, None, None, case.length, case.length, device="cuda")
    plan, spans = planned(case, mask, mod.score_mod)
    return int((spans.runs[:, 1] - spans.runs[:, 0]).sum()) * plan.q_tile * plan.tiles.kv_tile


def measure(mods: list[str], dim: int, repeats: int) -> dict:
    cases = {mod: case_of(mod, dim) for mod in mods}
    tensors = cases[BASE].tensors()
    ready = {mod: RIVALS["flexfa4"](case, *tensors) for mod, case in cases.items()}
    for run in ready.values():
        run()
    samples = {mod: [] for mod in mods}
    calls = {mod: max(9, int(SAMPLE_MS / max(1e-3, sample(run, 3)))) for mod, run in ready.items()}
    for repeat in range(repeats):
        for mod, run in list(ready.items())[:: -1 if repeat % 2 else 1]:
            samples[mod].append(sample(run, calls[mod]))
    heads = SHAPE[0] * SHAPE[1]
    rows = {}
    for mod, case in cases.items():
        ms, flops = statistics.median(samples[mod]), 4 * heads * dim
        kept, executed = kept_pairs(case), executed_pairs(case)
        rows[mod] = {"ms": ms, "samples": samples[mod], "tflops": flops * kept / ms / 1e9,
                     "executed_tflops": flops * executed / ms / 1e9, "kept": kept / executed}
    return rows


def along_documents(name: str) -> Callable:
    """A function that runs one of the sets of `documents.py`."""
    packed = documents.SETS[name]
    q, k, v = packed.tensors()
    mask = documents.mask_of(packed, "cuda")
    return lambda: flex_attention(q, k, v, block_mask=mask)


def profile(wanted: list[str]) -> None:
    for text in wanted:
        mod, _, packed = text.partition(":")
        if mod == "docs":
            run = along_documents(packed)
        else:
            mod, dim, rival = (text.split(":") + ["128", "flexfa4"][text.count(":"):])[:3]
            case = case_of(mod, int(dim))
            run = RIVALS[rival](case, *case.tensors())
        run(), run()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        run()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def table(results: dict[str, dict]) -> str:
    lines = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}; B,H,Hkv,S {','.join(map(str, SHAPE))}, bf16.", "",
             "| D | mod | ms | over causal, a tile | TFLOP/s of kept pairs | of executed tiles | kept of executed |",
             "|--:|---|" + "--:|" * 5]
    for dim, rows in results.items():
        base = rows[BASE]["executed_tflops"]
        for mod, r in rows.items():
            over = base / r["executed_tflops"] - 1
            lines.append(f"| {dim} | {mod} | {r['ms']:.3f} | {over:+.1%} | {r['tflops']:.0f} | {r['executed_tflops']:.0f} "
                         f"| {r['kept']:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(MODS))
    parser.add_argument("--profile", nargs="*", default=[])
    parser.add_argument("--dim", type=int, nargs="*", default=[128])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "sm90_mods")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    if args.profile:
        profile(args.profile)
        return
    mods = [BASE, *(m for m in args.only if m != BASE)]
    results = {str(dim): measure(mods, dim, args.repeats) for dim in args.dim}
    args.out.with_suffix(".json").write_text(json.dumps(results, indent=1))
    args.out.with_suffix(".md").write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
