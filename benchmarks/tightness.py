"""How tight the tile kinds are, and what had to be settled element by element, for the gallery's masks and attention-gym's.

    python benchmarks/tightness.py [tokens]      default 131072; prints the table, writes results/tightness.{json,md}

Tightness is checked at 2,048 tokens, where every element is counted: the share of truly full and empty tiles that are called so.
At the full length the share of tiles settled element by element (bar: 5%) and left PARTIAL undecided beyond the
budget is reported.
"""
from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Callable

import numpy as np
import torch
from attn_gym import masks as gym

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import conftest  # noqa: E402, F401  (makes flexfa4.mods importable from a plain checkout)
from flexfa4 import create_block_mask, mods  # noqa: E402
from tests.sparsity.dense import dense, kinds  # noqa: E402

SMALL = 2048
TILE = 128
SETTLED_BAR = 5.0


def offsets(n: int, count: int) -> torch.Tensor:
    cuts = np.sort(np.random.default_rng(0).choice(np.arange(1, n), count - 1, replace=False))
    return torch.from_numpy(np.concatenate([[0], cuts, [n]]))


def labels(n: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32).repeat_interleave(torch.diff(offsets(n, count)))


def cases() -> dict[str, Callable[[int], Callable]]:
    """Name -> number of tokens -> mask function."""
    def grid(n):
        width = int(n ** 0.5)
        return n // width, width

    return {
        "causal": lambda n: mods.causal_mask,
        "causal, bottom right": lambda n: mods.causal_bottom_right(n, n),
        "sliding window": lambda n: mods.sliding_window(n // 128),
        "two-sided window": lambda n: mods.two_sided_window(n // 100, n // 300),
        "prefix LM": lambda n: mods.prefix_lm(n // 13),
        "document": lambda n: mods.document_mask(labels(n, max(4, n // 700))),
        "document + causal": lambda n: mods.document_causal(labels(n, max(4, n // 700))),
        "dilated window": lambda n: mods.dilated_window(n // 256, 8),
        "sink + window": lambda n: mods.sink_window(4, n // 128),
        "shared prefix": lambda n: mods.shared_prefix(n // 40, labels(n, 20)),
        "NATTEN 2-D": lambda n: mods.neighborhood_2d(*grid(n), 13),
        "sliding tile 3-D": lambda n: mods.sliding_tile_3d((4, 4, n // 2048), (4, 4, 8), (3, 3, 1)),
        "block diffusion": lambda n: mods.block_diffusion(n // 2, 48),
        "gym: dilated": lambda n: gym.generate_dilated_sliding_window(n // 128, 3),
        "gym: documents": lambda n: gym.generate_doc_mask_mod(gym.causal_mask, offsets(n, max(4, n // 700))),
        "gym: packed causal documents": lambda n: gym.generate_packed_causal_doc_mask_mod(offsets(n, max(4, n // 700))),
        "gym: block diffusion": lambda n: gym.generate_block_diffusion_mask(n // 2, 32),
        "gym: NATTEN": lambda n: gym.generate_natten(*grid(n), 13, 13),
        "gym: prefix LM": lambda n: gym.generate_prefix_lm_mask(n // 13),
        "gym: sliding window": lambda n: gym.generate_sliding_window(n // 128),
        "gym: global + window": lambda n: gym.generate_global_sliding_window(
            n // 128, torch.rand(n, generator=torch.Generator().manual_seed(0)) < 0.0005),
        "gym: batched causal": lambda n: gym.batchify_mask_mod(gym.causal_mask, 1000),
    }


def tightness(mask_mod: Callable) -> float:
    """Share of truly full and empty tiles at SMALL tokens that are called so, in percent."""
    truth = kinds(dense(mask_mod, 1, 1, SMALL, SMALL), TILE, TILE)
    got = create_block_mask(mask_mod, 1, 1, SMALL, SMALL).spans(TILE, TILE).states()
    if ((got != truth) & (got != 1)).any():
        raise AssertionError("a tile is called full or empty and is not")
    decided = truth != 1
    return 100.0 * float((got == truth)[decided].double().mean()) if decided.any() else 100.0


def main() -> None:
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 131072
    torch.set_num_threads(2)
    lines = [f"Tile {TILE}; tightness at {SMALL:,} tokens, the rest at {tokens:,}.", "",
             "| mask | tight % | settled % | over budget % | full | partial | build ms |", "|---|--:|--:|--:|--:|--:|--:|"]
    rows = []
    for name, make in cases().items():
        tight = tightness(make(SMALL))
        mask = create_block_mask(make(tokens), 1, 1, tokens, tokens)
        begin = time.perf_counter()
        counts = mask.spans(TILE, TILE).counts()
        elapsed = 1e3 * (time.perf_counter() - begin)
        settled, over = (100.0 * x / mask.work.tiles for x in (mask.work.settled, mask.work.over_budget))
        row = dict(mask=name, tight=tight, settled=settled, over_budget=over, full=counts[2], partial=counts[1], ms=elapsed,
                   met=tight == 100.0 and settled <= SETTLED_BAR)
        rows.append(row)
        lines.append(f"| {name} | {tight:.2f} | {settled:.3f} | {over:.3f} | {counts[2]:,} | {counts[1]:,} | {elapsed:.1f} |")
        print(lines[-1], "" if row["met"] else "MISSED", flush=True)
    results = ROOT / "benchmarks" / "results"
    (results / "tightness.json").write_text(json.dumps(rows, indent=1) + "\n")
    (results / "tightness.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    from command_line import check

    check(__doc__, range(2))
    main()
