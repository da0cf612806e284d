"""Revisions of the Hopper forward against each other on one GPU: a process each, samples in turn.

    python benchmarks/revisions.py before=/path/to/a/checkout after=. [--only CASE ...] [--repeats 5] [--out ...]

A case is MOD[:SHAPE] (a key of SHAPES), MOD of `forward_rivals.MODS` or one of the document sets of `documents.py`
("docs:NAME"). A sample is the median of single calls timed by CUDA events after as many that are not; revisions take their
samples in turn, forwards and backwards, since the clock follows the power of what ran before. Kernels are compiled first, in many
processes. Writes OUT.json and OUT.md, each median with the least and the most of its samples. Without a GPU it says so and
measures nothing.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
CASES = ["plain", "causal", "causal:64", "causal:192", "plain:256", "causal:256", "window1024", "docs:12 documents",
         "docs:uniform to 1000", "docs:uniform to 200", "softcap_causal", "alibi_causal", "relbias_causal"]
# Batch, heads, KV heads, length, D, Dv and, where they are few, queries.
SHAPES = {"": (2, 16, 16, 16384, 128, 128), "64": (4, 32, 32, 8192, 64, 64), "192": (2, 16, 16, 8192, 192, 128),
          "256": (2, 16, 16, 8192, 256, 256), "96": (2, 16, 16, 8192, 96, 96), "gqa": (2, 32, 4, 16384, 128, 128),
          "512": (16, 16, 16, 512, 128, 128), "2k": (4, 16, 16, 2048, 128, 128), "4k": (8, 16, 16, 4096, 128, 128),
          "8k": (4, 16, 16, 8192, 128, 128), "131k": (1, 8, 8, 131072, 128, 128), "decode": (1, 64, 8, 131072, 128, 128, 1),
          "decode8": (8, 32, 8, 32768, 128, 128, 1)}
SAMPLE_MS = 40.0
PROCESSES = 14


def worker(tree: Path) -> None:
    """Answers "prepare CASE" and "sample CALLS CASE" (0 calls: as many as SAMPLE_MS needs), a line of JSON each. Imports the
    package and the cases of `tree`."""
    sys.path[:0] = [str(tree / "benchmarks"), str(tree / "tests"), str(tree)]
    import conftest  # noqa: F401
    import documents
    from forward import Case, sample
    from forward_rivals import RIVALS

    from flexfa4 import flex_attention

    def prepared(name: str):
        mod, _, what = name.partition(":")
        if mod != "docs":
            *shape, queries = (*SHAPES[what], None)[:7]
            case = Case(mod, *shape, mod, queries)
            return RIVALS["flexfa4"](case, *case.tensors())
        q, k, v = documents.SETS[what].tensors()
        mask = documents.mask_of(documents.SETS[what], "cuda")
        return lambda: flex_attention(q, k, v, block_mask=mask)

    runs = {}
    for line in sys.stdin:
        command, _, rest = line.strip().partition(" ")
        if command == "prepare":
            runs[rest] = prepared(rest)
            answer = {"mean": runs[rest]().float().abs().mean().item()}
        else:
            calls, _, name = rest.partition(" ")
            calls = int(calls) or max(3, min(150, int(SAMPLE_MS / sample(runs[name], 3))))
            answer = {"calls": calls, "ms": sample(runs[name], calls)}
        print(json.dumps(answer), flush=True)


class Process:
    """A worker on a checkout."""

    def __init__(self, tree: Path):
        paths = [str(tree), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", str(tree)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=tree, env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths)))

    def ask(self, text: str) -> dict:
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        while line and not line.startswith("{"):
            line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended at: {text}")
        return json.loads(line)

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def one_a_kernel(cases: list[str]) -> list[str]:
    """One case of each kind of kernel; some that remain take another for split rows, and compile it themselves."""
    def kernel(case: str) -> tuple:
        mod, _, what = case.partition(":")
        if mod == "docs":
            return mod, "H=" in what
        _, heads, kv_heads, _, *dims = SHAPES[what]
        return mod, heads // kv_heads, *dims

    return list({kernel(case): case for case in cases}.values())


def compile_all(trees: dict[str, Path], cases: list[str]) -> None:
    def one(job: tuple[Path, str]) -> None:
        process = Process(job[0])
        process.ask(f"prepare {job[1]}")
        process.end()

    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(one, [(tree, case) for tree in trees.values() for case in one_a_kernel(cases)]))


def measure(processes: dict[str, Process], case: str, repeats: int) -> dict[str, list[float]]:
    means = [p.ask(f"prepare {case}")["mean"] for p in processes.values()]
    assert max(means) - min(means) <= 2e-3 * max(means), f"{case}: the outputs differ: {means}"
    calls = {name: p.ask(f"sample 0 {case}")["calls"] for name, p in processes.items()}
    samples = {name: [] for name in processes}
    for repeat in range(repeats):
        for name, process in list(processes.items())[:: -1 if repeat % 2 else 1]:
            samples[name].append(process.ask(f"sample {calls[name]} {case}")["ms"])
    return samples


def table(results: dict[str, dict[str, list[float]]]) -> str:
    names = list(next(iter(results.values())))
    lines = ["| case | " + " | ".join(f"{n}, ms" for n in names) + " | last over first |", "|---|" + "--:|" * (len(names) + 1)]
    for case, samples in results.items():
        medians = [statistics.median(samples[n]) for n in names]
        cells = [f"{m:.3f} ({min(samples[n]):.3f} to {max(samples[n]):.3f})" for m, n in zip(medians, names)]
        lines.append(f"| {case} | " + " | ".join(cells) + f" | {medians[-1] / medians[0] - 1:+.1%} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revisions", nargs="*", help="NAME=CHECKOUT")
    parser.add_argument("--only", nargs="*", default=CASES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "sm90_revisions")
    parser.add_argument("--worker", type=Path)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
        return
    if not torch.cuda.is_available() or len(args.revisions) < 2:
        print("no CUDA device, or fewer than two revisions: nothing measured")
        return
    trees = {name: Path(path).resolve() for name, _, path in (r.partition("=") for r in args.revisions)}
    compile_all(trees, args.only)
    processes, results = {name: Process(tree) for name, tree in trees.items()}, {}
    for case in args.only:
        results[case] = measure(processes, case, args.repeats)
        print(table({case: results[case]}).splitlines()[-1], flush=True)
        args.out.with_suffix(".json").write_text(json.dumps(results, indent=1))
    for process in processes.values():
        process.end()
    args.out.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
