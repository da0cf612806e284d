"""What the decisions of the Hopper plan are worth: the forward with one of them changed at a time, in one process on one GPU.

    python benchmarks/sm90_choices.py [--repeats 5] [--out benchmarks/results/sm90_choices]

Inputs are normal random numbers in bfloat16; a sample is the median of single calls timed by CUDA events, the variants of a case
run in turn, and the median of the samples is shown. Writes OUT.json and OUT.md.
"""
from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from forward import Case, ROOT, alternated
from forward_rivals import MODS, planned

from flexfa4 import create_block_mask
from flexfa4.plan import BudgetError
from flexfa4.runtime import kernels, lists
from flexfa4.schedule import make_schedule
from flexfa4.trace import bind

CASES = [Case("", *shape, mod) for shape, mods in {
    (2, 16, 16, 16384, 128, 128): ("plain", "causal", "softcap_causal", "alibi_causal", "relbias_causal"),
    (4, 32, 32, 8192, 64, 64): ("plain", "causal"),
    (2, 16, 16, 8192, 256, 256): ("plain", "causal"),
}.items() for mod in mods]
# name: changes of the tiles; "counter" and "order" are changes of the launch.
VARIANTS = {
    "as planned": {},
    "no turns": dict(turns=False),
    "products of a tile in the other order": dict(own_p=None),
    "O rescaled at every new maximum": dict(rescale_tau=0.0),
    "one query stage": dict(q_stages=1),
    "two query stages": dict(q_stages=2),
    "a CTA a work item": dict(workers="items"),
    "work dealt out, not drawn": dict(counter=False),
    "natural order": dict(order=False),
    "kv_tile 112": dict(kv_tile=112),
    "kv_tile 144": dict(kv_tile=144),
    "kv_tile 160": dict(kv_tile=160),
    "kv_tile 176, one query stage": dict(kv_tile=176, q_stages=1),
    "kv_tile 64": dict(kv_tile=64),
    "three stages of K and V": dict(kv_stages=3, q_stages=2),
    "two warpgroups, kv_tile 128": dict(consumers=2, registers=(240, 24), kv_tile=128, own_p=True, q_stages=3),
    "two warpgroups, kv_tile 192": dict(consumers=2, registers=(240, 24), kv_tile=192),
    "three warpgroups, kv_tile 64": dict(consumers=3, registers=(160, 32), kv_tile=64, own_p=False),
    "three warpgroups, kv_tile 64, P of its own": dict(consumers=3, registers=(160, 32), kv_tile=64, own_p=True, q_stages=2),
    "three warpgroups, kv_tile 80": dict(consumers=3, registers=(160, 32), kv_tile=80, own_p=False),
}
LAUNCH = ("workers", "counter", "order")


def variant(case: Case, changes: dict):
    """A function that runs it; raises BudgetError where the tiles do not fit."""
    q, k, v = case.tensors()
    mod = MODS[case.mod](case)
    mask = create_block_mask(mod.mask_mod, None, None, case.length, case.length, device="cuda") if mod.mask_mod else None
    score = bind(mod.score_mod, "score") if mod.score_mod else None
    plan, _ = planned(case, mask, mod.score_mod)
    if "own_p" in changes:
        changes = changes | {"own_p": not plan.tiles.own_p}
    plan = replace(plan, tiles=replace(plan.tiles, **{k: v for k, v in changes.items() if k not in LAUNCH}))
    held, device = lists.NO_MASK, q.device
    if mask is not None:
        spans, heads = mask.spans(plan.tiles.rows, plan.tiles.kv_tile), (case.batch, case.heads, case.kv_heads)
        section = lists.section_kv_heads(case.length, case.dim, case.dim_v, 2, lists.L2_BYTES["sm90"])
        schedule = make_schedule(lists.work_of(spans, heads), lists.workers_of(device), section)
        held = lists.make_lists(spans, schedule if changes.get("order", True) else None, device)
    items = kernels.work_items(plan, q, k, held)
    crew = kernels.crew_of(plan, device, items)
    if changes.get("workers") == "items":
        crew = kernels.Crew(items)
    elif not changes.get("counter", True):
        crew = kernels.Crew(crew.workers)
    bounds = (score, None if mask is None else mask.bound, None)
    return lambda: kernels.forward(plan, (q, k, v), case.dim ** -0.5, bounds, held, crew)


def measure(case: Case, repeats: int, names: list[str]) -> dict:
    ready, first = {}, None
    for name in names:
        changes = VARIANTS[name]
        try:
            run = variant(case, changes)
        except BudgetError as error:
            print(f"  {name}: {str(error)[:90]}")
            continue
        out = run()[0]
        first = out if first is None else first
        difference = (out.float() - first.float()).abs().max().item()
        assert difference < 0.02, f"{name} differs by {difference}"
        ready[name] = run
    return alternated(ready, calls=7, repeats=repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), help="variants")
    parser.add_argument("--cases", nargs="*", help="MOD:D; all by default")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "sm90_choices")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    results = {}
    for case in CASES:
        if args.cases and f"{case.mod}:{case.dim}" not in args.cases:
            continue
        label = f"{case.mod} {case.batch},{case.heads},{case.length},{case.dim}"
        results[label] = measure(case, args.repeats, args.only)
        args.out.with_suffix(".json").write_text(json.dumps(results, indent=1))
        print(label, {name: round(ms, 3) for name, ms in results[label].items()}, flush=True)
    head = ["variant", *results]
    lines = [f"{torch.cuda.get_device_name()}; ms (ratio to the plan as it is).", "",
             "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name in args.only:
        cells = [f"{r[name]:.3f} ({r[name] / r['as planned']:.3f})" if name in r else "-" for r in results.values()]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    args.out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
