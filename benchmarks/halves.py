"""What the two query tiles of a Blackwell work item save by skipping key tiles apart: tiles of 128 x 128, no GPU.

    python benchmarks/halves.py     prints the table, writes results/halves.md

"together": each query tile works on every tile that one of the two sees; "apart": on those that hold something for it.
"looked at": of these the tiles in which keys are hidden."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import conftest  # noqa: E402, F401
import numpy as np  # noqa: E402
import torch  # noqa: E402

from flexfa4 import create_block_mask, mods  # noqa: E402

FULL = 2


def labels(length: int, most: int) -> torch.Tensor:
    sizes = np.random.default_rng(0).integers(1, most, 4 * length // most)
    ids = torch.from_numpy(np.repeat(np.arange(sizes.size), sizes))
    return torch.cat([ids, ids.new_full((length,), int(ids[-1]))])[:length]


CASES = {
    "causal 4,096": (4096, mods.causal_mask),
    "causal 16,384": (16384, mods.causal_mask),
    "window 1024, 16,384": (16384, mods.sliding_window(1024)),
    "documents up to 4,000, causal, 16,384": (16384, mods.document_causal(labels(16384, 4000))),
    "documents up to 1,000, causal, 16,384": (16384, mods.document_causal(labels(16384, 1000))),
    "documents up to 200, causal, 16,384": (16384, mods.document_causal(labels(16384, 200))),
}


def counts(length: int, mask, halved: bool) -> tuple[int, int]:
    """(tiles, those looked at) of both query tiles."""
    runs = create_block_mask(mask, 1, 1, length, length).work_spans(256, 128, halved).runs.numpy().astype(int)
    tiles = runs[:, 1] - runs[:, 0]
    kinds = (runs[:, 2] & 3, runs[:, 2] >> 2) if halved else (runs[:, 2],) * 2
    return sum(int(tiles[k > 0].sum()) for k in kinds), sum(int(tiles[(k > 0) & (k != FULL)].sum()) for k in kinds)


def main() -> None:
    lines = ["| mask | tiles together | looked at | tiles apart | looked at | saved |", "|---|--:|--:|--:|--:|--:|"]
    for name, (length, mask) in CASES.items():
        together, apart = counts(length, mask, False), counts(length, mask, True)
        saved = 100 * (1 - apart[0] / together[0])
        lines.append(f"| {name} | {together[0]:,} | {together[1]:,} | {apart[0]:,} | {apart[1]:,} | {saved:.1f}% |")
    (ROOT / "benchmarks" / "results" / "halves.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
