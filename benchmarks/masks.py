"""How long a BlockMask takes to build and what it weighs, against the bars, and against torch's create_block_mask in
the same run.

    python benchmarks/masks.py [--no-torch | --launch | --random]   prints the tables, writes results/masks.{json,md}; --launch:
                                            with the last table but one alone measured anew, --random: with the last alone

One sample is one call of create_block_mask and one of spans, on a function compiled from source for that sample
alone, so that it is traced each time; the process is warm (one untimed sample with other data). The table shows the
median and the slowest of the samples; the median is held against the bar. torch's own function runs on the same
machine with the same number of threads, on one function that it keeps, so that it never compiles again: compiled, once untimed
and then in turn with ours, medians of both; eager once. Ours is also shown for a function made anew by a factory whose code is
known, as a training step makes its document mask (around other labels), and for a function that it keeps.

The last table but one is what the first call of a kernel with a new mask needs before its launch: create_block_mask and spans
of work tiles at the tiles of plans (sm90: 128 x 128 and 192 x 80; sm100: 256 x 128 in halves), of known code around labels of a
document for each 1,024 tokens, and the order of the work for 16 query heads, 4 KV heads and 132 workers; CPU time of one thread.

The last table is of labels at random, which leave nothing to skip: one build of each in a process of its own, CPU time of one
thread, and the most memory that the process held beyond what it held before.
"""
from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from flexfa4 import block_mask_from_tiles, create_block_mask  # noqa: E402
from flexfa4.runtime.lists import work_of  # noqa: E402
from flexfa4.schedule import make_schedule, section_kv_heads  # noqa: E402

TILE = 128
MILLION = 1 << 20
SAMPLES = 15
TURNS = 15
DOCUMENTS = 1000


def fresh(source: str, **captured) -> Callable:
    """A mask function with a code object of its own, which no cache can know."""
    names = ", ".join(captured)
    namespace: dict = {}
    exec(f"def make({names}):\n    return lambda b, h, q, kv: {source}", namespace)
    return namespace["make"](**captured)


def factory(source: str, **captured) -> Callable:
    """What makes functions of one code object around given captures."""
    namespace: dict = {}
    exec(f"def make({', '.join(captured)}):\n    return lambda b, h, q, kv: {source}", namespace)
    return namespace["make"]


def labels(tokens: int, order: str, seed: int = 0, count: int = DOCUMENTS) -> torch.Tensor:
    """int32 [tokens]: ragged documents, numbered in rising order, in arbitrary order, or so that some numbers come back."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(np.arange(1, tokens), count - 1, replace=False))
    names = np.arange(count) if order == "rising" else rng.permutation(count)
    if order == "recurring":
        again, first = ([count * share // 1000 for share in shares] for shares in ((700, 850, 990), (3, 10, 500)))
        names[again] = names[first]
    return torch.from_numpy(np.repeat(names, np.diff(np.concatenate([[0], cuts, [tokens]]))).astype(np.int32))


def functions() -> dict[str, Callable]:
    """Name -> seed -> mask function."""
    document = "(q >= kv) & (doc[q] == doc[kv])"
    return {
        "causal": lambda seed: fresh("q >= kv"),
        "window 1024": lambda seed: fresh("(q >= kv) & (q - kv < 1024)"),
        "documents + causal": lambda seed: fresh(document, doc=labels(MILLION, "rising", seed)),
        "documents + causal, labels in any order": lambda seed: fresh(document, doc=labels(MILLION, "shuffled", seed)),
        "documents + causal, labels that come back": lambda seed: fresh(document, doc=labels(MILLION, "recurring", seed)),
    }


# name -> (bar in ms, bar in KiB)
BARS = {
    "causal": (15, 256), "window 1024": (15, 256), "documents + causal": (25, None),
    "documents + causal, labels in any order": (25, None), "documents + causal, labels that come back": (100, None),
    "random tiles (10%) as data": (15, 1024),
}


def timed(build: Callable, make: Callable, samples: int = SAMPLES,
          clock: Callable = time.perf_counter) -> tuple[list[float], object]:
    """Milliseconds of each sample, and the last spans."""
    times, spans = [], None
    for seed in range(samples + 1):
        prepared = make(seed)
        begin = clock()
        spans = build(prepared)
        times.append(1e3 * (clock() - begin))
    return times[1:], spans


def ours() -> list[dict]:
    rows = []
    cases = [(name, MILLION, lambda f: create_block_mask(f, None, None, MILLION, MILLION).spans(TILE, TILE), make)
             for name, make in functions().items()]
    side = 131072 // TILE
    cases.append(("random tiles (10%) as data", 131072,
                  lambda t: block_mask_from_tiles(t, 131072, 131072, TILE).spans(TILE, TILE),
                  lambda seed: torch.rand(1, 1, side, side, generator=torch.Generator().manual_seed(seed)) < 0.1))
    for name, tokens, build, make in cases:
        times, spans = timed(build, make)
        bar_ms, bar_kib = BARS[name]
        row = dict(mask=name, tokens=tokens, median_ms=statistics.median(times), slowest_ms=max(times), bar_ms=bar_ms,
                   kib=spans.nbytes / 1024, bar_kib=bar_kib, runs=len(spans.compact))
        row["met"] = row["median_ms"] <= bar_ms and (bar_kib is None or row["kib"] <= bar_kib)
        rows.append(row)
        print(f"{name:42s} {tokens:8d}  median {row['median_ms']:7.2f} ms  slowest {row['slowest_ms']:7.2f}  bar {bar_ms:4d} ms  "
              f"{row['kib']:8.1f} KiB  bar {bar_kib or '-'}  {'met' if row['met'] else 'MISSED'}", flush=True)
    return rows


def _build(tokens: int) -> Callable:
    return lambda f: create_block_mask(f, None, None, tokens, tokens).spans(TILE, TILE)


def against_torch(tokens: int = 32768) -> list[dict]:
    """Causal and documents + causal at 32,768 tokens: ours in three ways, torch compiled, torch eager."""
    from torch.nn.attention.flex_attention import create_block_mask as torch_create

    def ask(function, mask_mod):
        begin = time.perf_counter()
        function(mask_mod, None, None, tokens, tokens, device="cpu")
        return 1e3 * (time.perf_counter() - begin)

    def captured(seed):
        return dict(doc=labels(tokens, "rising", seed, 32))

    cases = {"causal": ("q >= kv", lambda seed: {}), "documents + causal": ("(q >= kv) & (doc[q] == doc[kv])", captured)}
    rows = []
    for name, (source, capture) in cases.items():
        def make(seed, source=source, capture=capture):
            return fresh(source, **capture(seed))

        def again(seed, known=factory(source, **capture(0)), capture=capture):
            return known(**capture(seed))

        mask_mod, compiled_function = make(0), torch.compile(torch_create)
        ask(compiled_function, mask_mod)
        timed(_build(tokens), make, 20)
        fresh_times, known_times, kept_times, compiled_times = [], [], [], []
        for seed in range(TURNS):
            compiled_times.append(ask(compiled_function, mask_mod))
            fresh_times += timed(_build(tokens), make, 5)[0]
            known_times += timed(_build(tokens), again, 5)[0]
            kept_times += timed(_build(tokens), lambda _: mask_mod, 5)[0]
        eager = ask(torch_create, mask_mod)
        mine, known, kept, compiled = (statistics.median(t) for t in (fresh_times, known_times, kept_times, compiled_times))
        row = dict(mask=name, tokens=tokens, median_ms=mine, known_ms=known, kept_ms=kept, compiled_ms=compiled, eager_ms=eager,
                   over_compiled=compiled / mine, over_eager=eager / mine)
        row["met"] = row["over_compiled"] >= 300 and row["over_eager"] >= 5000
        rows.append(row)
        print(f"{name} at {tokens}: ours {mine:.3f} ms (known code {known:.3f}, kept {kept:.3f}), "
              f"torch compiled {compiled:.0f} ms ({row['over_compiled']:.0f}x, bar 300x), "
              f"torch eager {eager:.0f} ms ({row['over_eager']:.0f}x, bar 5000x) {'met' if row['met'] else 'MISSED'}", flush=True)
    return rows


def with_empty_caches(tokens: int = 131072) -> list[dict]:
    """What a build takes where the processor's caches hold something else: between samples 128 MiB are written."""
    room = np.zeros(1 << 24, np.int64)
    rows = []
    for name, source, order in (("causal", "q >= kv", None), ("documents + causal", "(q >= kv) & (doc[q] == doc[kv])", "rising")):
        captured = {} if order is None else dict(doc=labels(tokens, order, 0, tokens // 1024))
        kept, known = fresh(source, **captured), factory(source, **captured)
        ways = {"fresh": lambda: fresh(source, **captured), "known": lambda: known(**captured), "kept": lambda: kept}
        row = dict(mask=name, tokens=tokens)
        for way, make in ways.items():
            for caches, empty in (("full", False), ("empty", True)):
                times, _ = timed(_build(tokens), lambda _: (empty and np.add(room, 1, out=room), make())[1], 40)
                row[f"{way}_{caches}_ms"] = statistics.median(times)
        rows.append(row)
        print(row, flush=True)
    return rows


WORK_TILES = ((128, 128, False), (192, 80, False), (256, 128, True))


def before_a_launch() -> list[dict]:
    """Work spans at the tiles of plans, and the order of the work, medians of `SAMPLES`."""
    masks = {"causal": ("q >= kv", None), "window 1024": ("(q >= kv) & (q - kv < 1024)", None)}
    orders = {"documents + causal": "rising", "labels in any order": "shuffled", "labels that come back": "recurring"}
    for name, order in orders.items():
        masks[name] = "(q >= kv) & (doc[q] == doc[kv])", order
    rows = []
    for tokens in (131072, MILLION):
        for name, (source, order) in masks.items():
            def make(seed, source=source, order=order, known={}):
                captured = {} if order is None else dict(doc=labels(tokens, order, seed, tokens // 1024))
                return known.setdefault(source, factory(source, **captured))(**captured)

            row = dict(mask=name, tokens=tokens)
            for tiles in WORK_TILES:
                times, spans = timed(lambda f: create_block_mask(f, None, None, tokens, tokens).work_spans(*tiles), make,
                                     clock=time.process_time)
                row["{} x {}".format(*tiles)] = statistics.median(times)
                if tiles == WORK_TILES[0]:
                    section = section_kv_heads(tokens, 128, 128, 2)
                    times, _ = timed(lambda _: make_schedule(work_of(spans, (1, 16, 4)), 132, section), lambda _: None,
                                     clock=time.process_time)
                    row["order"] = statistics.median(times)
            rows.append(row)
            print(row, flush=True)
    return rows


AT_RANDOM = "(q >= kv) & (doc[q] == doc[kv])", "doc[q] == doc[kv]"
# Name -> (labels, tokens of each in a row, mask).
LABELS = {
    "2 labels, 64 tokens each, causal": (2, 64, AT_RANDOM[0]),
    "2 labels, 64 tokens each": (2, 64, AT_RANDOM[1]),
    "1,000 labels, 64 tokens each, causal": (1000, 64, AT_RANDOM[0]),
    "2 labels, a token each, causal": (2, 1, AT_RANDOM[0]),
    "10,000 labels, a token each": (10000, 1, AT_RANDOM[1]),
    "1,000,000 labels, a token each, causal": (1000000, 1, AT_RANDOM[0]),
    "20 labels and 30 others, 64 and 32 tokens each": (20, 64, "(doc[q] == doc[kv]) & (other[q] == other[kv])"),
    "200 labels or 300 others, 64 and 32 tokens each": (200, 64, "(doc[q] == doc[kv]) | (other[q] == other[kv])"),
    "100 labels, 64 tokens each, and ranks in any order": (100, 64, "(doc[q] == doc[kv]) & (rank[q] >= rank[kv])"),
}


def at_random(name: str) -> dict:
    """One build of each kind of spans of the labels called `name`, in this process."""
    count, length, source = LABELS[name]
    rng = np.random.default_rng(0)
    captured = dict(doc=rng.integers(0, count, MILLION // length).repeat(length), rank=rng.permutation(MILLION),
                    other=rng.integers(0, 300 if "|" in source else 30, MILLION // 32).repeat(32))
    mask_mod = fresh(source, **{k: torch.from_numpy(v.astype(np.int32)) for k, v in captured.items() if k in source})
    mask = create_block_mask(mask_mod, None, None, MILLION, MILLION)
    before, row = _most_memory(), dict(mask=name)
    builds = {"spans": lambda: mask.spans(TILE, TILE)}
    builds |= {"{} x {}".format(*tiles): (lambda tiles=tiles: mask.work_spans(*tiles)) for tiles in WORK_TILES}
    for what, build in builds.items():
        begin = time.process_time()
        spans = build()
        row[what] = time.process_time() - begin
        row.setdefault("runs", len(spans.compact) if what == "spans" else 0)
        if what == "{} x {}".format(*WORK_TILES[0]):
            begin = time.process_time()
            make_schedule(work_of(spans, (1, 16, 4)), 132, section_kv_heads(MILLION, 128, 128, 2))
            row["order"] = time.process_time() - begin
        del spans
        mask = mask.resize(MILLION, MILLION)
    row["mib"] = _most_memory() - before
    return row


def _most_memory() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def all_at_random() -> list[dict]:
    rows = []
    for name in LABELS:
        script = f"import json, torch, masks; torch.set_num_threads(1); print(json.dumps(masks.at_random({name!r})))"
        found = subprocess.check_output([sys.executable, "-c", script], cwd=Path(__file__).parent, text=True)
        rows.append(json.loads(found))
        print(rows[-1], flush=True)
    return rows


def report(rows: list[dict], torch_rows: list[dict], cache_rows: list[dict], work_rows: list[dict],
           random_rows: list[dict]) -> str:
    lines = [f"Tile {TILE}, {torch.get_num_threads()} threads, torch {torch.__version__}, median of {SAMPLES} samples; tracing "
             "is part of each sample (see benchmarks/masks.py for the method).", "",
             "| mask | tokens | median ms | slowest ms | bar ms | KiB | bar KiB | runs | met |",
             "|---|--:|--:|--:|--:|--:|--:|--:|---|"]
    for r in rows:
        lines.append(f"| {r['mask']} | {r['tokens']:,} | {r['median_ms']:.2f} | {r['slowest_ms']:.2f} | {r['bar_ms']} | "
                     f"{r['kib']:.0f} | {r['bar_kib'] or ''} | {r['runs']:,} | {'yes' if r['met'] else 'no'} |")
    if torch_rows:
        lines += ["", "| 32,768 tokens | code never seen, ms | times torch compiled (bar 300) | new function of known code, ms "
                  "| times | kept function, ms | times | torch compiled ms | torch eager ms | times ours (bar 5,000) | met |",
                  "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"]
    for t in torch_rows:
        times = " | ".join(f"{t[name]:.3f} | {t['compiled_ms'] / t[name]:.0f}" for name in ("median_ms", "known_ms", "kept_ms"))
        lines.append(f"| {t['mask']} | {times} | {t['compiled_ms']:.0f} | {t['eager_ms']:.0f} | {t['over_eager']:.0f} | "
                     f"{'yes' if t['met'] else 'no'} |")
    lines += ["", "| 131,072 tokens, ms, as found / with the processor's caches emptied before each sample | code never seen "
              "| new function of known code | kept function |", "|---|--:|--:|--:|"]
    for c in cache_rows:
        ways = " | ".join(f"{c[f'{way}_full_ms']:.3f} / {c[f'{way}_empty_ms']:.3f}" for way in ("fresh", "known", "kept"))
        lines.append(f"| {c['mask']} | {ways} |")
    tiles = ["{} x {}".format(*t) for t in WORK_TILES]
    heads = " | ".join(f"work spans {t}" for t in tiles)
    lines += ["", f"| before a first launch, CPU ms | tokens | {heads}, halves | order of work |",
              "|---|--:|--:|--:|--:|--:|"]
    for w in work_rows:
        lines.append(f"| {w['mask']} | {w['tokens']:,} | {' | '.join(f'{w[t]:.2f}' for t in tiles)} | {w['order']:.2f} |")
    lines += ["", f"| labels at random, 1,048,576 tokens, CPU s | spans | runs | {heads}, halves | order of work | MiB |",
              "|---|--:|--:|--:|--:|--:|--:|--:|"]
    for w in random_rows:
        lines.append(f"| {w['mask']} | {w['spans']:.2f} | {w['runs']:,} | {' | '.join(f'{w[t]:.2f}' for t in tiles)} | "
                     f"{w['order']:.2f} | {w['mib']:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(2)
    kept = ROOT / "benchmarks" / "results" / "masks.json"
    before, alone = json.loads(kept.read_text()), {"--launch", "--random"} & set(sys.argv)
    found = dict(before, bars=ours(), caches=with_empty_caches()) if not alone else before
    if not alone and "--no-torch" not in sys.argv:
        found["torch"] = against_torch()
    torch.set_num_threads(1)
    if "--random" not in alone:
        found["work"] = before_a_launch()
    if "--launch" not in alone:
        found["random"] = all_at_random()
    torch.set_num_threads(2)
    kept.write_text(json.dumps(found, indent=1) + "\n")
    kept.with_suffix(".md").write_text(report(*(found[name] for name in ("bars", "torch", "caches", "work", "random"))))


if __name__ == "__main__":
    from command_line import check

    check(__doc__, options=("--no-torch", "--launch", "--random"))
    main()
