"""How long a BlockMask takes to build in two revisions, by turns in one process, so that a busy host hits both alike.

    python benchmarks/mask_revisions.py /path/to/a/checkout/before

One sample is create_block_mask and spans at 131,072 tokens, tile 128, as in masks.py and masks_gpu.py: of a function compiled for
that sample, of one made anew around other tensors by a factory whose code is known, and of one that is kept. With a GPU, on
labels and for spans there, from a synchronised device to a synchronised device; without, on the CPU as found and with the
processor's caches emptied before each sample. Medians; writes results/mask_revisions_gpu.{json,md}, or mask_revisions.{json,md}.
"""
from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Callable

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
TOKENS, TILE = 131072, 128
TURNS, TURNS_EMPTY = 200, 40
DOCUMENT = "(q >= kv) & (doc[q] == doc[kv])"
MASKS = {"causal": ("q >= kv", None), "window 1024": ("(q >= kv) & (q - kv < 1024)", None),
         "documents + causal": (DOCUMENT, "rising"),
         "labels in any order": (DOCUMENT, "shuffled"), "labels that come back": (DOCUMENT, "recurring")}
WAYS = {"code never seen": "fresh", "new function of known code": "known", "kept function": "kept"}


def load(root: Path) -> Callable:
    """create_block_mask of the package in `root`; modules of one loaded before stay with who has them."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "flexfa4"]:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    import flexfa4

    sys.path.remove(str(root))
    if not Path(flexfa4.__file__).is_relative_to(root):
        raise SystemExit(f"{root}: no flexfa4 there")
    return flexfa4.create_block_mask


if __name__ == "__main__":
    from command_line import check

    check(__doc__, range(1, 2))
BEFORE = load(Path(sys.argv[1]).resolve()) if __name__ == "__main__" and len(sys.argv) > 1 else None
AFTER = load(ROOT)
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from masks import factory, fresh, labels  # noqa: E402


def settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def maker(way: str, source: str, captured: dict) -> Callable[[], Callable]:
    """What makes the function of each sample."""
    if way == "fresh":
        return lambda: fresh(source, **captured)
    if way == "known":
        make = factory(source, **captured)
        return lambda: make(**{name: t.clone() for name, t in captured.items()})
    kept = fresh(source, **captured)
    return lambda: kept


def compare(way: str, source: str, captured: dict, device: str, empty: bool) -> tuple[float, float]:
    """Median milliseconds (before, after)."""
    room, times = np.zeros(1 << 24 if empty else 1, np.int64), ([], [])
    sides = [(maker(way, source, captured), create, mine) for create, mine in zip((BEFORE, AFTER), times)]
    for turn in range(TURNS_EMPTY if empty else TURNS):
        for make, create, mine in sides[::-1] if turn % 2 else sides:
            mask_mod = make()
            np.add(room, 1, out=room)
            settle()
            begin = time.perf_counter()
            create(mask_mod, None, None, TOKENS, TOKENS, device=device).spans(TILE, TILE)
            settle()
            mine.append(1e3 * (time.perf_counter() - begin))
    return tuple(statistics.median(mine[5:]) for mine in times)


def main() -> None:
    if BEFORE is None:
        raise SystemExit(__doc__)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    caches = {"": False} if device == "cuda" else {"": False, ", caches emptied": True}
    rows = []
    for name, (source, order) in MASKS.items():
        captured = {} if order is None else dict(doc=labels(TOKENS, order, 0, TOKENS // 1024).to(device))
        row = dict(mask=name)
        for way in WAYS.values():
            for words, empty in caches.items():
                row[way + words] = compare(way, source, captured, device, empty)
        rows.append(row)
        print(row, flush=True)
    where = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    lines = [f"ms before -> after, {TOKENS:,} tokens, {where}, torch {torch.__version__}", "",
             f"| mask | {' | '.join(words + cache for words in WAYS for cache in caches)} |",
             "|---|" + "--:|" * len(WAYS) * len(caches)]
    for row in rows:
        found = (row[way + cache] for way in WAYS.values() for cache in caches)
        cells = (f"{before:.3f} -> {after:.3f} ({100 * after / before - 100:+.0f}%)" for before, after in found)
        lines.append(f"| {row['mask']} | {' | '.join(cells)} |")
    target = ROOT / "benchmarks" / "results" / f"mask_revisions{'_gpu' * (device == 'cuda')}"
    target.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    target.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
