"""How far each order is from the lower bound, for the mask families of docs/scheduling.md.

    python benchmarks/schedule.py            prints the table, writes results/schedule.{json,md} and the table in
    docs/scheduling.md

Spans are generated here from the formula of each family, so that the numbers do not depend on the mask analysis.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from flexfa4.schedule import (  # noqa: E402
    CostModel,
    FULL,
    PARTIAL,
    Work,
    lpt_order,
    make_schedule,
    makespan,
    section_kv_heads,
    shortest_first,
    simulate_deterministic,
)

TILE = 128
HEAD_DIM = 128
MARK = ("<!-- table: begin (benchmarks/schedule.py) -->", "<!-- table: end -->")


def spans(kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row_ptr, runs) of a dense int8 [rows, kv_tiles] array of kinds (0 empty)."""
    padded = np.pad(kind, ((0, 0), (1, 1)))
    row, edge = np.nonzero(padded[:, 1:] != padded[:, :-1])
    value_after = padded[row, edge + 1]
    starts = value_after != 0
    # Each start is closed by the next change of the same row.
    begin, end = edge[starts], edge[np.flatnonzero(starts) + 1]
    runs = np.stack([begin, end, value_after[starts]], axis=1).astype(np.int32)
    row_ptr = np.zeros(len(kind) + 1, np.int32)
    np.cumsum(np.bincount(row[starts], minlength=len(kind)), out=row_ptr[1:])
    return row_ptr, runs


def _classify(low: np.ndarray, high: np.ndarray, tokens: int) -> np.ndarray:
    """Kinds where query i sees keys low[i] <= kv < high[i], from the extremes of a query tile; monotone limits only."""
    tiles = tokens // TILE
    low, high = low.reshape(tiles, TILE), high.reshape(tiles, TILE)
    first = np.arange(tiles)[None] * TILE
    last = first + TILE - 1
    some = (low.min(1)[:, None] <= last) & (high.max(1)[:, None] > first)
    every = (low.max(1)[:, None] <= first) & (high.min(1)[:, None] > last)
    return np.where(every, FULL, np.where(some, PARTIAL, 0)).astype(np.int8)


def causal(tokens: int = 32768) -> np.ndarray:
    q = np.arange(tokens)
    return _classify(np.zeros(tokens, int), q + 1, tokens)


def prefix(tokens: int = 32768, length: int = 8000) -> np.ndarray:
    q = np.arange(tokens)
    return _classify(np.zeros(tokens, int), np.maximum(q + 1, length), tokens)


def window(tokens: int = 32768, size: int = 1024) -> np.ndarray:
    q = np.arange(tokens)
    return _classify(np.maximum(q - size + 1, 0), q + 1, tokens)


def ragged_lengths(tokens: int, seed: int = 0) -> tuple[int, ...]:
    """Of documents that fill `tokens`: one of 24,576 among short ones of 100 to 2,000."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(100, 2000, size=tokens // 100)
    lengths[20] = 24576
    ends = np.unique(np.minimum(np.cumsum(lengths), tokens))
    return tuple(int(n) for n in np.diff(ends, prepend=0))


def documents(tokens: int = 65536, causal_too: bool = False, seed: int = 0) -> np.ndarray:
    lengths = ragged_lengths(tokens, seed)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    begin, end = np.repeat(starts, ends - starts), np.repeat(ends, ends - starts)
    kinds = _classify(begin, np.arange(tokens) + 1 if causal_too else end, tokens)
    return kinds


def random_tiles(tokens: int = 131072, share: float = 0.1, heads: int = 1, seed: int = 0) -> np.ndarray:
    """A tenth of the tiles, a different set for each head: [heads * q_tiles, kv_tiles]."""
    tiles = tokens // TILE
    return np.where(np.random.default_rng(seed).random((heads * tiles, tiles)) < share, FULL, 0).astype(np.int8)


FAMILIES = {
    "causal, 32k": (causal, 32768),
    "documents, 64k, one of 24k": (documents, 65536),
    "documents + causal, 64k, one of 24k": (lambda: documents(causal_too=True), 65536),
    "prefix 8000, 32k": (prefix, 32768),
    "window 1024, 32k": (window, 32768),
    "random tenth, 131k": (random_tiles, 131072),
}


def case(name: str, heads: int) -> tuple[Work, int]:
    """The work of a family for B=1 and `heads` heads (eight at most for the random one), and KV heads a section."""
    make, tokens = FAMILIES[name]
    if make is random_tiles:
        heads = min(heads, 8)
        row_ptr, runs = spans(random_tiles(heads=heads))
        work = Work(row_ptr, runs, batch=1, heads=heads, kv_heads=heads, mask_heads=heads)
    else:
        work = Work(*spans(make()), batch=1, heads=heads, kv_heads=heads)
    return work, section_kv_heads(tokens, HEAD_DIM, HEAD_DIM, itemsize=2)


def measure(name: str, heads: int, workers: int) -> dict:
    work, per_section = case(name, heads)
    cost = CostModel()
    costs = work.costs(cost)
    began = time.perf_counter()
    split = make_schedule(work, workers, per_section, cost)
    seconds = time.perf_counter() - began
    bound = float(costs.sum()) / workers
    order = lpt_order(work, costs, per_section)
    return {
        "mask": name,
        "heads": work.heads,
        "workers": workers,
        "rows": work.rows,
        "bound": bound,
        "natural": makespan(costs, workers),
        "reversed": makespan(costs[::-1], workers),
        "lpt": makespan(costs[order], workers),
        "lpt_split": split.makespan,
        "strategy": split.strategy,
        "split_rows": len(split.combine_rows),
        "parts": split.parts,
        "build_ms": seconds * 1e3,
    }


def deterministic() -> list[dict]:
    """Stalls of the deterministic backward, causal 16k, transposed: KV tile j is visited by the query tiles from j on."""
    rows = []
    kinds = causal(16384).T.copy()
    for heads in (1, 16):
        work = Work(*spans(kinds), batch=1, heads=heads, kv_heads=heads)
        costs = work.costs(CostModel())
        per_section = section_kv_heads(16384, HEAD_DIM, HEAD_DIM, itemsize=2)
        for label, order in (
            ("shortest first", shortest_first(work, costs, per_section)),
            ("longest first", lpt_order(work, costs, per_section)),
            ("natural", np.arange(work.rows)),
        ):
            for descending in (True, False):
                result = simulate_deterministic(work, order, 148, descending=descending)
                rows.append(
                    {
                        "heads": heads,
                        "order": label,
                        "walk": "descending" if descending else "ascending",
                        "bound": float(costs.sum()) / 148,
                        "makespan": result.makespan,
                        "stalled": result.stalled,
                    }
                )
    return rows


def table(results: list[dict]) -> str:
    lines = [
        "| mask | heads | P | total/P | natural | reversed | LPT | LPT+split | over total/P | rows split (parts) | build ms |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for r in results:
        lines.append(
            f"| {r['mask']} | {r['heads']} | {r['workers']} | {r['bound']:.1f} | {r['natural']:.1f} | {r['reversed']:.1f} | "
            f"{r['lpt']:.1f} | {r['lpt_split']:.1f} | +{r['lpt_split'] - r['bound']:.1f} | "
            f"{r['split_rows']} ({r['parts']}) | {r['build_ms']:.1f} |"
        )
    return "\n".join(lines)


def deterministic_table(results: list[dict]) -> str:
    lines = ["| heads | order | query tiles walked | total/P | makespan | time stalled |", "|--:|---|---|--:|--:|--:|"]
    for r in results:
        lines.append(
            f"| {r['heads']} | {r['order']} | {r['walk']} | {r['bound']:.1f} | {r['makespan']:.1f} | {r['stalled']:.0%} |"
        )
    return "\n".join(lines)


def main() -> int:
    results = [measure(name, heads, workers) for name in FAMILIES for heads in (16, 1) for workers in (148, 132)]
    stalls = deterministic()
    text = f"{table(results)}\n\nDeterministic backward, causal 16k, 148 workers:\n\n{deterministic_table(stalls)}\n"
    print(text)
    out = Path(__file__).parent / "results"
    out.mkdir(exist_ok=True)
    (out / "schedule.json").write_text(json.dumps({"forward": results, "deterministic_backward": stalls}, indent=1) + "\n")
    (out / "schedule.md").write_text(text)
    doc = ROOT / "docs" / "scheduling.md"
    if doc.exists():
        before, _, rest = doc.read_text().partition(MARK[0])
        doc.write_text(f"{before}{MARK[0]}\n{text}{MARK[1]}{rest.partition(MARK[1])[2]}")
    missed = [r for r in results if not (r["lpt_split"] <= r["bound"] + 5 and r["lpt_split"] <= r["natural"])]
    for r in missed:
        print("BAR MISSED:", r["mask"], r["heads"], r["workers"])
    return len(missed)


if __name__ == "__main__":
    from command_line import check

    check(__doc__)
    sys.exit(main())
