"""A table of what Nsight Compute counted: cycles, how busy each pipe was, and what warps waited for.

    ncu --clock-control none --profile-from-start off --section SpeedOfLight --section ComputeWorkloadAnalysis \\
        --section WarpStateStats -k regex:cutlass -o report python benchmarks/sm90_mods.py --profile causal causal:64 \\
        prefix2048:128:flash "docs:uniform to 200"
    ncu -i report.ncu-rep --page raw --csv > raw.csv
    python benchmarks/ncu_table.py "label=raw.csv" causal causal:64

Launches of less than a tenth of a millisecond (lists and masks) are left out; names follow the order of the others."""
from __future__ import annotations

import csv
import sys
from pathlib import Path

LEAST_MS = 0.1
# Column -> metric of ncu 2025.3.
COLUMNS = {
    "million cycles": "gpc__cycles_elapsed.max",
    "ms": "gpu__time_duration.sum",
    "tensor %": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "MUFU %": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "FMA %": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "ALU %": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "issue %": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "L2 %": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM %": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
}
# Warps that wait, for each instruction issued.
STALLS = {"fixed latency": "wait", "dispatch": "dispatch_stall", "barrier": "barrier", "memory, mbarrier": "long_scoreboard",
          "not selected": "not_selected", "product": "gmma",
          "special functions": "short_scoreboard", "pipe full": "math_pipe_throttle", "queue full": "mio_throttle"}


def rows(label: str, path: Path, names: list[str]) -> list[list[str]]:
    launches = list(csv.DictReader(path.open()))[1:]
    launches = [r for r in launches if float(r[COLUMNS["ms"]]) > LEAST_MS]
    assert len(launches) == len(names), f"{len(launches)} launches for {len(names)} names"
    made = []
    for name, r in zip(names, launches):
        numbers = [float(r[metric]) if r.get(metric) else None for metric in COLUMNS.values()]
        numbers[0] /= 1e6
        stalls = [float(r[f"smsp__average_warps_issue_stalled_{s}_per_issue_active.ratio"]) for s in STALLS.values()]
        made.append([label, name, *("-" if x is None else f"{x:.2f}" if i < 2 else f"{x:.0f}" for i, x in enumerate(numbers)),
                     *(f"{x:.2f}" for x in stalls)])
    return made


def main() -> None:
    found, label, path, names = [], None, None, []
    for word in [*sys.argv[1:], "="]:
        if "=" in word:
            if path:
                found += rows(label, Path(path), names)
            label, path = word.split("=", 1)
            names = []
        else:
            names.append(word)
    head = ["revision", "kernel", *COLUMNS, *STALLS]
    print("| " + " | ".join(head) + " |")
    print("|---|---|" + "--:|" * (len(head) - 2))
    for row in found:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(__doc__)
    else:
        main()
