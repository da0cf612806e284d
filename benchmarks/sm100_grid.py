"""The Blackwell forward in the emulator against dense float64 attention, over a grid of calls; no GPU.

    python benchmarks/sm100_grid.py [PART ...]     writes results/sm100_grid.{json,md}

Parts: cases (the situations of tests/cases by file name), lengths (head dims, types and masks at lengths from 1 to 600 around
tile edges), graphs (random integer graphs as masks), forward (the cases of tests/kernels/forward_emulated.py: the gallery,
splits, packed heads, schedulers, output graphs, rows without keys). Every call runs with several seeds and completion policies.
"out": the largest error over the rounding of P and of the output to the inputs' type, which is its bound; "lse": the largest
error over the bound of the exponentials. Minutes on two cores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "sm100_grid"
KERNELS = ROOT / "tests" / "kernels"
SHARES = 4
RUNS = {
    "cases": [("sm100_grid.py", "cases")],
    "lengths": [("sm100_grid.py", "lengths", f"{i}/{SHARES}") for i in range(SHARES)],
    "graphs": [("sm100_grid.py", "graphs", "12", str(seed)) for seed in range(2)],
    "forward": [("forward_emulated.py", "sm100", f"{i}/{SHARES}") for i in range(SHARES)],
}
OUT_BOUND = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
LSE_BOUND = 7.6e-5 + 3e-6


def rows_of(script: str, *words: str) -> list[dict]:
    done = subprocess.run([sys.executable, str(KERNELS / script), *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def summary(rows: list[dict]) -> dict:
    ran = [row for row in rows if "not_covered" not in row]
    return dict(
        calls=len({row["case"] for row in ran}), runs=len(ran), findings=sum(len(row["findings"]) for row in ran),
        out=max(row["out"] / (OUT_BOUND[row["half"]] * row["largest"]) for row in ran),
        lse=max(row["lse"] / (LSE_BOUND + 2.0**-22 * row["largest_lse"]) for row in ran),
        not_covered={row["case"]: row["not_covered"] for row in rows if "not_covered" in row},
        each={row["case"]: round(row["out"] / row["largest"], 6) for row in ran},
    )  # fmt: skip


def table(found: dict[str, dict]) -> str:
    lines = ["| part | calls | runs | findings | out, of its bound | lse, of its bound |", "|---|--:|--:|--:|--:|--:|"]
    lines += [f"| {part} | {f['calls']} | {f['runs']} | {f['findings']} | {f['out']:.2f} | {f['lse']:.2f} |"
              for part, f in found.items()]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    path = RESULTS.with_suffix(".json")
    found = json.loads(path.read_text()) if path.exists() else {}
    for part in sys.argv[1:] or RUNS:
        found[part] = summary([row for words in RUNS[part] for row in rows_of(*words)])
        path.write_text(json.dumps(found, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(table(found) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
