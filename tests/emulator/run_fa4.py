"""Run by test_fa4.py in a process of its own for each arch: flash-attn-4 against float64. Prints one JSON list.

Arguments: arch, number of seeds, names of cases separated by "; ", of those left out after "but" (none: every case)."""

import json
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]
ARCH, SEEDS, NAMES = sys.argv[1], int(sys.argv[2]), sys.argv[3].split("; ") if len(sys.argv) > 3 else None
import fa4  # noqa: E402

fa4.setup(ARCH)
import fa4_cases  # noqa: E402

rows = []
for case in fa4_cases.cases(ARCH):
    if NAMES and (case.name in NAMES) is (NAMES[0] == "but"):
        continue
    tensors = fa4_cases.inputs(case)
    wanted = fa4_cases.reference(case, *tensors)
    for seed in range(SEEDS):
        for completion in ("immediate", "random", "late"):
            found, dev = fa4_cases.run(case, *tensors, dict(arch=ARCH, seed=seed, completion=completion, races=True))
            rows.append(
                dict(
                    case=case.name,
                    scale=case.scale,
                    seed=seed,
                    completion=completion,
                    errors=fa4_cases.errors(found, wanted),
                    findings=dev.findings,
                    launches=[launch.kernel for launch in dev.launches],
                    cancels=sum(n for launch in dev.launches for op, n in launch.by_opcode().items() if "try_cancel" in op),
                )
            )
print(json.dumps(rows))
