"""A forward kernel in the emulator against dense float64 attention, over a grid of calls; no GPU.

    python benchmarks/kernel_grid.py sm100|sm90 [PART[:SLICE] ...]     writes results/sm100_grid.{json,md} (sm90_grid)

Parts: cases (the situations of tests/cases by file name), lengths (head dims, types and masks at lengths from 1 to 600 around
tile edges), graphs (random integer graphs as masks), scores (random graphs as score edits), captures (captured tensors of
every type, strides and kind of index), packed (groups of heads that share query tiles, with masks, edits, types and
schedulers), forward (the cases of tests/kernels/forward_emulated.py: the gallery, splits, packed heads, schedulers, output
graphs, rows without keys). Every call runs with several seeds and completion policies. A part alone begins its rows anew;
with the number of one of its slices, of a few minutes each, those calls are added to the rows that are there.
"out": the largest error over its bound, the rounding of P and of the output to the inputs' type and, of a score graph, what its
arithmetic in float32 may move (`tests/kernels/kernel_grid.py`, `conditioning`); "lse": the same of the logarithm, whose bound is
that of the exponentials."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
KERNELS = ROOT / "tests" / "kernels"
SHARES = 4
AT_ONCE = len(os.sched_getaffinity(0))  # processes
PARTS = {
    "cases": [("kernel_grid.py", "cases")],
    "lengths": [("kernel_grid.py", "lengths", f"{i}/{SHARES}") for i in range(SHARES)],
    "graphs": [("kernel_grid.py", "graphs", "12", str(seed)) for seed in range(2)],
    "scores": [("kernel_grid.py", "scores", "12", str(seed)) for seed in range(3)],
    "captures": [("kernel_grid.py", "captures", f"{i}/{SHARES}") for i in range(SHARES)],
    "packed": [("kernel_grid.py", "packed", f"{i}/{SHARES}") for i in range(SHARES)],
    "forward": [("forward_emulated.py", f"{i}/{SHARES}") for i in range(SHARES)],
}
OUT_BOUND = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
LSE_BOUND = 7.6e-5 + 3e-6


def rows_of(kernel: str, script: str, *words: str) -> list[dict]:
    done = subprocess.run([sys.executable, str(KERNELS / script), kernel, *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def each(rows: list[dict]) -> dict[str, list]:
    """Of every call: runs, findings, largest error of the output and of the logarithm over their bounds; or why it is not
    covered."""
    found: dict[str, list] = {row["case"]: [row["not_covered"]] for row in rows if "not_covered" in row}
    for row in rows:
        if "not_covered" not in row:
            runs, findings, out, lse = found.get(row["case"], [0, 0, 0.0, 0.0])
            out = max(out, share(row["out"], OUT_BOUND[row["half"]] * row["largest"]))
            lse = max(lse, share(row["lse"], LSE_BOUND + 2.0**-22 * row["largest_lse"]))
            found[row["case"]] = [runs + 1, findings + len(row["findings"]), out, lse]
    return found


def share(error: float, bound: float) -> float:
    return round(error / bound, 3) if bound else math.inf if error else 0.0


def table(found: dict[str, dict]) -> str:
    lines = ["| part | calls | runs | findings | out, of its bound | lse, of its bound |", "|---|--:|--:|--:|--:|--:|"]
    for part, calls in found.items():
        runs, findings, out, lse = zip(*(call for call in calls.values() if len(call) == 4))
        lines.append(f"| {part} | {len(runs)} | {sum(runs)} | {sum(findings)} | {max(out):.2f} | {max(lse):.2f} |")
    return "\n".join(lines)


def main() -> None:
    kernel, *wanted = sys.argv[1:] or ["sm100"]
    path = RESULTS / f"{kernel}_grid.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    asked = [word.partition(":")[::2] for word in wanted or PARTS]
    slices = [(part, i, words) for part, i in asked for words in ([PARTS[part][int(i)]] if i else PARTS[part])]
    for part in {part for part, i in asked if not i}:
        found[part] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (part, *_), rows in zip(slices, pool.map(lambda one: rows_of(kernel, *one[2]), slices)):
            found[part] = found.get(part, {}) | each(rows)
            keep(found, path)
    print(table(found))


def keep(found: dict[str, dict], path: Path) -> None:
    """Writes both files: after every slice, so that a run that is stopped loses one at most."""
    found = {part: found[part] for part in PARTS if found.get(part)}
    lines = [f"{json.dumps(part)}: {{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in calls.items()) + "\n}"
             for part, calls in found.items()]  # fmt: skip
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    path.with_suffix(".md").write_text(table(found) + "\n")


if __name__ == "__main__":
    main()
