"""Instructions a score of every mod of the gallery, in the kernels for Hopper and Blackwell; no GPU.

    python benchmarks/gallery_sass.py

What `flexfa4 inspect NAME --sass` prints for each, and the same of masks that are written as numbers. Writes
results/gallery_sass.md and docs/performance_blackwell.md. Needs nvidia-cutlass-dsl and nvdisasm; takes about 3 s a mod."""
from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import conftest  # noqa: E402, F401
import performance_page  # noqa: E402

import torch  # noqa: E402

from flexfa4 import mods  # noqa: E402
from flexfa4.cli import machine_code  # noqa: E402
from flexfa4.trace import bind  # noqa: E402

PADDED = torch.zeros(4, 330)
NUMBERS = {
    "`torch.where(kv <= q, score, -1e10)`": lambda score, b, h, q, kv: torch.where(kv <= q, score, -1e10),
    "`score + torch.where(kv <= q, 0.0, -1e9)`": lambda score, b, h, q, kv: score + torch.where(kv <= q, 0.0, -1e9),
    "`score + padded[b, kv]`": lambda score, b, h, q, kv: score + PADDED[b, kv],
}


def table() -> str:
    """A line for each mod, beside the kernel without one: all instructions a score, MUFU, FMA and ALU among them."""
    lines = ["| mod | sm_90a, FULL tile: MUFU, FMA, ALU, all | sm_100a, FULL tile: MUFU, FMA, ALU, all | sm_100a, PARTIAL tile |",
             "|---|--:|--:|--:|"]
    entries = [("none", ()), *((e.name, machine_code.gallery_graphs(e)) for e in mods.GALLERY),
               *((name, (bind(mod, "score").graph,)) for name, mod in NUMBERS.items())]
    for name, graphs in entries:
        cells = []
        for arch in machine_code.GPU:
            found = {row[2]: row for row in machine_code.rows(graphs, name, (arch,))}
            for tile in ("FULL", "PARTIAL")[:1 + (arch == "sm100")]:
                cells.append(", ".join((*found[tile][3:6], found[tile][7])) if tile in found else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> int:
    performance_page.publish("gallery_sass.py", table())
    return 0


if __name__ == "__main__":
    from command_line import check

    check(__doc__)
    sys.exit(main())
