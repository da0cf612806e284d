"""The two softmax warpgroups of the Blackwell forward in modelled time: how far apart they keep their exponentials by the order
of the products alone, and when they take turns; no GPU.

    python benchmarks/sm100_turns.py     prints the table, writes results/sm100_turns.md and docs/performance_blackwell.md

A work item of 256 queries and 2560 keys on one SM, bf16 (tests/kernels/sm100_timeline.py). Clocks are of a KV tile of 128 keys
and both query tiles, under the usual assumptions, then with slow and fast events, and with half as deep queues of arithmetic;
"both": share of the clocks in which both warpgroups are between their first and last exponential; "unit": share in which the
special function unit works. Of the plan as it is, the row in bold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import performance_page  # noqa: E402

from flexfa4.plan.build import TURN_COLUMNS, in_turns, sm100_tiles  # noqa: E402
from flexfa4.plan.roofline import clocks  # noqa: E402

CASES = [((d, d), "plain") for d in (64, 80, 96, 112, 128)]
CASES += [((192, 128), "plain"), *(((d, d), "causal") for d in (80, 96, 128))]


def measured(dims: tuple[int, int], mask: str, columns: int) -> list[dict]:
    """A row a set of assumptions, in a process of its own: an architecture is chosen once a process."""
    script = ROOT / "tests" / "kernels" / "sm100_timeline.py"
    done = subprocess.run([sys.executable, str(script), *map(str, dims), mask, str(columns)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def line(dims: tuple[int, int], mask: str, columns: int) -> str:
    usual, *others = measured(dims, mask, columns)
    mark = "**" if (columns > 0) == in_turns(*dims) else ""
    least = max(clocks(sm100_tiles(*dims)).values())
    return (f"| D={dims[0] if dims[0] == dims[1] else f'{dims[0]}, {dims[1]}'} {mask} | {'turns' if columns else 'free'} | "
            f"{mark}{usual['tile']:.0f}{mark} | {' / '.join(format(row['tile'], '.0f') for row in others)} | {least} | "
            f"{usual['share']:.1%} | {usual['busy']:.1%} |")


def main() -> None:
    lines = ["| kernel | exponentials | clocks a tile | slow / fast / half the queue | no less than | both | unit |",
             "|---|---|--:|--:|--:|--:|--:|"]
    for dims, mask in CASES:
        for columns in (0, TURN_COLUMNS):
            lines.append(line(dims, mask, columns))
            print(lines[-1], flush=True)
    performance_page.publish("sm100_turns.py", "\n".join(lines))


if __name__ == "__main__":
    from command_line import check

    check(__doc__)
    main()
