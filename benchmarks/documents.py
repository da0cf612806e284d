"""Packed documents on a Hopper GPU: tiles that begin with documents, tiles on the grid, flash-attn-4's variable-length call.

    python benchmarks/documents.py [--repeats 5] [--only SET ...] [--out benchmarks/results/documents]

Counts the area of the tiles that are worked on first (no GPU needed), then times one call of each variant on a GPU: a sample is
the median of single calls timed by CUDA events, variants run in turn, the median of the samples is shown. Inputs are normal
random numbers in bfloat16, D=128. Sets, of 16,384 tokens with B=2, H=16 but where said: the anchor case, two of uniform
lengths, and one document of 24,576 tokens among short ones in 65,536 (B=1, H=16 and H=2), the ragged set of
`benchmarks/schedule.py`. "natural order": rows as they come, drawn from a counter, none split.
Writes OUT.json and OUT.md; without a GPU only the areas.
"""
from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

import numpy as np
import torch
from forward import ROOT, SAMPLE_MS, Case, sample
from forward_rivals import DOCUMENTS, planned
from schedule import ragged_lengths

from flexfa4 import create_block_mask, flex_attention
from flexfa4.runtime import kernels, lists
from flexfa4.schedule import make_schedule
from flexfa4.schedule.work import FULL, INSIDE, PARTIAL

DIM = 128
AREA_TILES = ((64, 128), (128, 64), (128, 128), (128, 176), (192, 128))


@dataclass(frozen=True)
class Packed:
    """Documents packed into one sequence, and for how many sequences and heads it is timed."""

    lengths: tuple[int, ...]
    batch: int = 2
    heads: int = 16

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def pairs(self) -> float:
        """Pairs of a head that the mask keeps."""
        return sum(n * (n + 1) / 2 for n in self.lengths)

    @property
    def case(self) -> Case:
        return Case("", self.batch, self.heads, self.heads, self.tokens, DIM, DIM, "document")

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v as `Case.tensors` makes them."""
        return self.case.tensors()


def random_lengths(seed: int, most: int, tokens: int = 16384) -> tuple[int, ...]:
    """Uniform lengths up to `most` that add up to `tokens`."""
    random, lengths = np.random.default_rng(seed), []
    while sum(lengths) < tokens:
        lengths.append(int(min(random.integers(1, most + 1), tokens - sum(lengths))))
    return tuple(lengths)


SETS = {"12 documents": Packed(DOCUMENTS), "uniform to 1000": Packed(random_lengths(0, 1000)),
        "uniform to 200": Packed(random_lengths(1, 200)),
        "one of 24k in 64k, H=16": Packed(ragged_lengths(65536), 1, 16),
        "one of 24k in 64k, H=2": Packed(ragged_lengths(65536), 1, 2)}


def causal(b, h, q, kv):
    return q >= kv


def mask_of(packed: Packed, device: str = "cpu"):
    ids = torch.repeat_interleave(torch.arange(len(packed.lengths)), torch.tensor(packed.lengths)).to(device)
    return create_block_mask(lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv), None, None, packed.tokens, packed.tokens)


def variable_length_tiles(lengths: tuple[int, ...], q_tile: int, kv_tile: int) -> int:
    """Tiles of a kernel that treats each document as a sequence of its own."""
    return sum(-(-min(n, first + q_tile) // kv_tile) for n in lengths for first in range(0, n, q_tile))


def areas() -> list[dict]:
    rows, seen = [], set()
    for name, packed in SETS.items():
        mask, lengths = mask_of(packed), packed.lengths
        if lengths in seen:  # the same documents for another number of heads
            continue
        seen.add(lengths)
        for q_tile, kv_tile in AREA_TILES:
            per_tile = q_tile * kv_tile / packed.pairs
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
        lines.append(f"| {r['set']} ({r['documents']}) | {r['tile']} | {r['grid']:.3f} | {r['placed']:.3f} "
                     f"| {r['varlen']:.3f} | "
                     f"{r['grid_partial']} | {r['placed_partial']} | {r['placed_inside']} |")
    return "\n".join(lines) + "\n"


def pairs_in_tiles(plan, spans) -> int:
    """Of a head."""
    return int((spans.runs[:, 1] - spans.runs[:, 0]).sum()) * plan.q_tile * plan.tiles.kv_tile


def variants(packed: Packed, tensors: tuple) -> tuple[dict[str, Callable], dict[str, int]]:
    """(name -> function that runs it, pairs in the executed tiles of a head for flexfa4 and plain causal)."""
    q, k, v = tensors
    tokens, heads = packed.tokens, packed.heads
    mask, whole = mask_of(packed, "cuda"), create_block_mask(causal, None, None, tokens, tokens, device="cuda")
    plan, along = planned(packed.case, mask)
    looked_at = replace(along, runs=along.runs.clone())
    looked_at.runs[:, 2].clamp_(max=FULL).masked_fill_(along.runs[:, 2] == INSIDE, PARTIAL)
    section = lists.section_kv_heads(tokens, DIM, DIM, 2, lists.L2_BYTES["sm90"])

    def launch(spans, natural: bool = False) -> Callable:
        work, workers = lists.work_of(spans, (packed.batch, heads, heads)), lists.workers_of(q.device)
        schedule = make_schedule(work, workers, section, split=False)
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
    if (rival := variable_length_call(packed, tensors)) is not None:
        found["flash-attn-4, variable length"] = rival
    return found, {"flexfa4": pairs_in_tiles(plan, along), "plain causal": pairs_in_tiles(*planned(packed.case, whole))}


def variable_length_call(packed: Packed, tensors: tuple) -> Callable | None:
    try:
        from flash_attn.cute import flash_attn_varlen_func
    except ImportError:
        return None
    ends = torch.tensor(packed.lengths * packed.batch, device="cuda").cumsum(0)
    bounds = torch.cat([ends.new_zeros(1), ends]).int()
    flat = [t.transpose(1, 2).reshape(-1, packed.heads, DIM) for t in tensors]

    longest = max(packed.lengths)

    def run():
        out = flash_attn_varlen_func(*flat, cu_seqlens_q=bounds, cu_seqlens_k=bounds, max_seqlen_q=longest, max_seqlen_k=longest,
                                     causal=True)
        return (out[0] if isinstance(out, tuple) else out).view(packed.batch, packed.tokens, packed.heads, DIM).transpose(1, 2)

    return run


def measure(name: str, packed: Packed, repeats: int) -> dict:
    tokens = packed.tokens
    tensors = packed.tensors()
    ready, executed = variants(packed, tensors)
    first, calls, result = None, {}, dict(set=name, executed=executed, variants={})
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
    pairs = {"plain causal": tokens * (tokens + 1) / 2}
    for variant, row in result["variants"].items():
        row["ms"] = statistics.median(row["samples_ms"])
        row["tflops"] = 4 * packed.batch * packed.heads * DIM * pairs.get(variant, packed.pairs) / row["ms"] / 1e9
    rate = {n: area / result["variants"][n]["ms"] for n, area in executed.items()}
    result["share_of_causal_rate"] = rate["flexfa4"] / rate["plain causal"]
    return result


def time_table(results: list[dict]) -> str:
    names = list(results[0]["variants"])
    head = ["documents", *names, "natural order / flexfa4", "time of variable length / flexfa4",
            "rate of an executed tile / plain causal's"]
    lines = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}; ms (useful TFLOP/s), medians:", "",
             "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for r in results:
        cells = [f"{r['variants'][n]['ms']:.3f} ({r['variants'][n]['tflops']:.0f})" for n in names]
        rival = r["variants"].get("flash-attn-4, variable length")
        ratio = f"{rival['ms'] / r['variants']['flexfa4']['ms']:.3f}" if rival else "-"
        order = r["variants"]["natural order"]["ms"] / r["variants"]["flexfa4"]["ms"]
        lines.append("| " + " | ".join([r["set"], *cells, f"{order:.3f}", ratio, f"{r['share_of_causal_rate']:.3f}"]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(SETS), help="sets that are timed")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "documents")
    args = parser.parse_args()
    rows = areas()
    text, results = area_table(rows), []
    print(text, flush=True)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured, nothing written")
        return
    for name in args.only:
        results.append(measure(name, SETS[name], args.repeats))
        print(time_table(results[-1:]), flush=True)
    text += "\n" + time_table(results)
    args.out.with_suffix(".json").write_text(json.dumps(dict(areas=rows, times=results), indent=1))
    args.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
