"""A forward kernel in the emulator against dense float64 attention, over a grid of calls; or, of the same calls, on a GPU.

    python benchmarks/kernel_grid.py sm100|sm90 [PART[:SLICE] ...]     writes results/sm100_grid.{json,md} (sm90_grid)
    python benchmarks/kernel_grid.py sm90 --gpu [PART[:SLICE] ...]     writes results/sm90_grid_gpu.{json,md}

Parts: cases (the situations of tests/cases by file name), lengths (head dims, types and masks at lengths from 1 to 600 around
tile edges), graphs (random integer graphs as masks), scores (random graphs as score edits), captures (captured tensors of
every type, strides and kind of index), packed (groups of heads that share query tiles, with masks, edits, types and
schedulers), forward (the cases of tests/kernels/forward_emulated.py: the gallery, splits, packed heads, schedulers, output
graphs, rows without keys). Every call runs with several seeds and completion policies; on a GPU with two sets of inputs (score
graphs with one), twice each, where a finding is a bit that differs between the two launches. A part alone begins its rows anew;
with the number of one of its slices, of a few minutes each, those calls are added to the rows that are there. --at-once: how many
slices run at a time, each a process; --out: another folder for the results. The exit code is 1 where a slice fails (the others
are kept), a call has findings, or an error is above twice its bound.
"out": the largest error over its bound, the rounding of P and of the output to the inputs' type and, of a score graph, what its
arithmetic in float32 may move (`tests/kernels/kernel_grid.py`, `conditioning`); "lse": the same of the logarithm, whose bound is
that of the exponentials."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
KERNELS = ROOT / "tests" / "kernels"
SHARES = 4
LENGTHS = 12  # slices: a call of it has a kernel of its own as any other, and they are half of the calls
GPU_SECONDS = 480  # of a slice; a launch that hangs ends there
PARTS = {
    "cases": [("kernel_grid.py", "cases")],
    "lengths": [("kernel_grid.py", "lengths", f"{i}/{LENGTHS}") for i in range(LENGTHS)],
    "graphs": [("kernel_grid.py", "graphs", "12", str(seed)) for seed in range(2)],
    "scores": [("kernel_grid.py", "scores", "12", str(seed)) for seed in range(3)],
    "captures": [("kernel_grid.py", "captures", f"{i}/{SHARES}") for i in range(SHARES)],
    "packed": [("kernel_grid.py", "packed", f"{i}/{SHARES}") for i in range(SHARES)],
    "forward": [("forward_emulated.py", f"{i}/{SHARES}") for i in range(SHARES)],
}
OUT_BOUND = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
LSE_BOUND = 7.6e-5 + 3e-6
# P and the output are each rounded by at most twice what the bound has for them, just above a power of two.
MOST = 2.0


class Failed(NamedTuple):
    """A slice that gave no rows: why."""

    message: str


def rows_of(kernel: str, script: str, *words: str) -> list[dict] | Failed:
    command = [sys.executable, str(KERNELS / script), kernel, *words]
    seconds = GPU_SECONDS if kernel.endswith("-gpu") else None
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return Failed(f"longer than {seconds} s\n{last(late.stderr)}")
    if done.returncode:
        return Failed(f"exit code {done.returncode}\n{last(done.stderr)}")
    return json.loads(done.stdout.splitlines()[-1])


def last(errors: bytes | None) -> str:
    """The call that was running, and the end of what was said."""
    text = (errors or b"").decode(errors="replace")
    calls = [line for line in text.splitlines() if line.startswith("call: ")]
    return "\n".join([*calls[-1:], text[-3000:]])


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
        covered = [call for call in calls.values() if len(call) == 4]
        if not covered:
            continue
        runs, findings, out, lse = zip(*covered)
        lines.append(f"| {part} | {len(runs)} | {sum(runs)} | {sum(findings)} | {max(out):.2f} | {max(lse):.2f} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", nargs="?", choices=("sm100", "sm90"), default="sm100")
    parser.add_argument("parts", nargs="*", metavar="PART[:SLICE]", default=list(PARTS))
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_intermixed_args(words)
    path = given.out / f"{given.kernel}_grid{'_gpu' * given.gpu}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    asked = [word.partition(":")[::2] for word in given.parts]
    slices = [(part, i) for part, one in asked for i in ([int(one)] if one else range(len(PARTS[part])))]
    for part in {part for part, one in asked if not one}:
        found[part] = {}
    kernel, failed, new = given.kernel + "-gpu" * given.gpu, [], {}
    with ThreadPoolExecutor(given.at_once) as pool:
        running = {pool.submit(rows_of, kernel, *PARTS[part][i]): (part, i) for part, i in slices}
        for one in as_completed(running):
            part, i = running[one]
            if isinstance(rows := one.result(), Failed):
                failed.append(f"{part}:{i}: {rows.message}")
                continue
            new[part, i] = each(rows)
            keep(merged(found, new), path)
    found, calls = merged(found, new), [(part, *call) for (part, _), rows in sorted(new.items()) for call in rows.items()]
    print(table(found))
    for part, call, row in calls:
        if not within(row, 1.0):
            print(f"beyond its bound, or with findings: {part}, {call}: {row}")
    for message in failed:
        print(message, file=sys.stderr)
    return int(bool(failed) or not all(within(row, MOST) for *_, row in calls))


def merged(found: dict[str, dict], new: dict[tuple[str, int], dict]) -> dict[str, dict]:
    """Rows of before and of slices, the slices in order whichever was done first."""
    found = dict(found)
    for (part, _), rows in sorted(new.items()):
        found[part] = found.get(part, {}) | rows
    return found


def within(row: list, most: float) -> bool:
    """Of a row of `each`: no finding, errors up to `most` of their bounds, or not covered."""
    return len(row) == 1 or row[1] == 0 and all(error <= most for error in row[2:])


def keep(found: dict[str, dict], path: Path) -> None:
    """Writes both files: after every slice, so that a run that is stopped loses one at most."""
    found = {part: found[part] for part in PARTS if found.get(part)}
    lines = [f"{json.dumps(part)}: {{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in calls.items()) + "\n}"
             for part, calls in found.items()]  # fmt: skip
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    path.with_suffix(".md").write_text(table(found) + "\n")


if __name__ == "__main__":
    sys.exit(main())
