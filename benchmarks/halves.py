"""What the two query tiles of a Blackwell work item save by skipping key tiles apart: tiles of 128 x 128, no GPU.

    python benchmarks/halves.py     prints the table, writes results/halves.md

"together": each query tile works on every tile that one of the two sees; "apart": on those that hold something for it.
"looked at": of these the tiles in which keys are hidden. "spans": milliseconds of create_block_mask and its spans of work tiles,
on the CPU, of a function whose code is known, medians by turns."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import conftest  # noqa: E402, F401
import numpy as np  # noqa: E402
import torch  # noqa: E402

from flexfa4 import create_block_mask, mods  # noqa: E402
from flexfa4.sparsity.halves import tiles_seen  # noqa: E402

SAMPLES, MILLION = 31, 1 << 20


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
    "causal 1,048,576": (MILLION, mods.causal_mask),
    "window 1024, 1,048,576": (MILLION, mods.sliding_window(1024)),
    "documents up to 2,000, causal, 1,048,576": (MILLION, mods.document_causal(labels(MILLION, 2000))),
    "documents up to 200, causal, 16,384": (16384, mods.document_causal(labels(16384, 200))),
}


def spans_of(length: int, mask, halved: bool):
    return create_block_mask(mask, 1, 1, length, length).work_spans(256, 128, halved)


def build_times(length: int, mask) -> tuple[float, float]:
    """Milliseconds for work tiles whose query tiles skip together, and apart."""
    times = {False: [], True: []}
    for _ in range(SAMPLES):
        for halved, found in times.items():
            begin = time.perf_counter()
            spans_of(length, mask, halved)
            found.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[False]), statistics.median(times[True])


def main() -> None:
    torch.set_num_threads(1)
    lines = ["| mask | tiles together | looked at | tiles apart | looked at | saved | spans together, ms | apart, ms |",
             "|---|--:|--:|--:|--:|--:|--:|--:|"]
    for name, (length, mask) in CASES.items():
        together, apart = (tiles_seen(spans_of(length, mask, halved).runs.numpy(), halved) for halved in (False, True))
        saved = 100 * (1 - apart[0] / together[0])
        times = " | ".join(f"{t:.2f}" for t in build_times(length, mask))
        lines.append(f"| {name} | {together[0]:,} | {together[1]:,} | {apart[0]:,} | {apart[1]:,} | {saved:.1f}% | {times} |")
    (ROOT / "benchmarks" / "results" / "halves.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    from command_line import check

    check(__doc__)
    main()
