"""flash-attn-4 in the emulator against float64: every case of tests/emulator/fa4_cases.py, many seeds and completion policies.

    python benchmarks/emulator_fa4.py sm_100a --seeds 16 [--only "backward"] [--seconds 300] [--results FILE]
    python benchmarks/emulator_fa4.py sm_100a --table

Odd seeds run with race checks, even ones with the plain checks. Rows are appended to a file of JSON lines; what it holds already
of the same core is not run again. `--table` writes the file as benchmarks/results/emulator_fa4.md. Needs flash-attn-4, no GPU.
One process for each arch: the DSL reads its environment once. All of one arch take about two minutes of one core that is free."""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emulator")]
POLICIES = ("immediate", "random", "late")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", choices=("sm_90a", "sm_100a"))
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop starting runs after this many seconds")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "emulator_fa4.jsonl")
    parser.add_argument("--table", action="store_true")
    return parser.parse_args()


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: list[dict]) -> str:
    """One line for each arch and case: runs, largest errors, reports; of the core that ran last on each arch."""
    last = {r["arch"]: r["core"] for r in rows}
    rows = [r for r in rows if r["core"] == last[r["arch"]]]
    lines = ["| arch | case | runs (with race checks) | out | lse | dq | dk | dv | reports |", "|---" * 9 + "|"]
    for arch, case in sorted({(r["arch"], r["case"]) for r in rows}):
        mine = [r for r in rows if (r["arch"], r["case"]) == (arch, case)]
        worst = [max((r["errors"].get(x, float("nan")) for r in mine if "errors" in r), default=float("nan"))
                 for x in ("out", "lse", "dq", "dk", "dv")]
        reports = {f[0] for r in mine for f in r["findings"]} | {r["stopped"][:60] for r in mine if r.get("stopped")}
        checked = sum(r["races"] for r in mine)
        cells = " | ".join("" if x != x else f"{x:.1e}" for x in worst)
        lines.append(f"| {arch} | {case} | {len(mine)} ({checked}) | {cells} | {', '.join(sorted(reports))} |")
    return "\n".join(lines)


def main() -> None:
    options = arguments()
    rows = read(options.results)
    if options.table:
        text = table(rows)
        (ROOT / "benchmarks" / "results" / "emulator_fa4.md").write_text(text + "\n")
        print(text)
        return
    import fa4

    fa4.setup(options.arch)
    import fa4_cases
    from flexfa4 import emulator
    from flexfa4.emulator import build

    core = build.core_library().parent.name
    done = {(r["arch"], r["case"], r["seed"], r["completion"]) for r in rows if r["core"] == core}

    start = time.perf_counter()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for case in fa4_cases.cases(options.arch):
        if options.only not in case.name:
            continue
        tensors, wanted = fa4_cases.inputs(case), None
        for seed in range(options.seeds):
            for completion in POLICIES:
                if (options.arch, case.name, seed, completion) in done or time.perf_counter() - start > options.seconds:
                    continue
                wanted = wanted or fa4_cases.reference(case, *tensors)
                began = time.perf_counter()
                device = dict(arch=options.arch, seed=seed, completion=completion, races=seed % 2 == 1)
                row = dict(**device, case=case.name, core=core, findings=[])
                try:
                    found, dev = fa4_cases.run(case, *tensors, device)
                    row |= dict(errors=fa4_cases.errors(found, wanted), findings=sorted(set(dev.findings)),
                                instructions=sum(x.warp_instructions for x in dev.launches))
                except emulator.EmulatorError as error:
                    row["stopped"] = f"{error.kind}: {error}"[:400]
                row["seconds"] = round(time.perf_counter() - began, 2)
                with options.results.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                print(row["case"], seed, completion, row["seconds"], row.get("stopped", ""), row["findings"][:1], flush=True)


if __name__ == "__main__":
    main()
