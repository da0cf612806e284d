"""The forward pass on a GPU against its rivals in one process: flash-attn-4, FlexAttention (TRITON and FLASH), cuDNN.

    python benchmarks/forward.py [--only NAME ...] [--rivals flexfa4,fa4,cudnn,triton,flash] [--shard i/n] [--repeats 5]
                                 [--out benchmarks/results/forward_h200]

flash-attn-4 runs natively, documents at variable length, ALiBi and the relative bias with score changes of its own form.
Every case runs its rivals in turn, `repeats` times, forwards and backwards by turns; a sample is the median of single calls timed
by CUDA events after as many that are not (the clock follows the power of what ran before), the number reported the median of the
samples. Inputs are normal random numbers in bfloat16; the L2 cache is not flushed (inputs and outputs
are larger than it in all but the short cases). Beside it: host time of a call, time of the first call, memory of a call over its
inputs (output included), and time to build a mask anew. Shards (`--shard 0/4`) write files of their own; a file that exists is
loaded, and only cases that it lacks, or that lack one of the rivals, are measured, with all rivals that they had: ratios are of
one run. `--merge` puts shards together; of a case in several the one with the most rivals stays. Writes OUT.json,
OUT.md and OUT.svg. Without a GPU it says so and measures nothing.
"""
from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Callable

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
import conftest  # noqa: E402, F401
from forward_rivals import MASK_BUILDERS, RIVALS, Unsupported  # noqa: E402

import flexfa4  # noqa: E402

# Milliseconds of GPU work in a sample.
SAMPLE_MS = 60.0
# Of GPU work while the host is timed.
HOST_MS = 200.0
# A bar counts as met within this share.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Case:
    """One call. mod: a key of `forward_rivals.MODS`. queries: their number where it is not that of the keys, `length`; such cases
    have no mask. Flops counted are those of the pairs that the mask keeps."""

    name: str
    batch: int
    heads: int
    kv_heads: int
    length: int
    dim: int
    dim_v: int
    mod: str
    queries: int | None = None

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v as [B, H, S, D], contiguous as [B, S, H, D], which is what a projection leaves and every rival takes."""
        g = torch.Generator(device="cuda").manual_seed(0)

        def make(heads, length, dim):
            t = torch.randn(self.batch, length, heads, dim, generator=g, device="cuda", dtype=torch.bfloat16)
            return t.transpose(1, 2)

        q = make(self.heads, self.queries or self.length, self.dim)
        return q, make(self.kv_heads, self.length, self.dim), make(self.kv_heads, self.length, self.dim_v)


def cases() -> list[Case]:
    shapes = [
        (8, 16, 16, 4096, 128, 128), (2, 16, 16, 16384, 128, 128), (4, 32, 32, 8192, 64, 64),
        (2, 32, 4, 16384, 128, 128), (4, 16, 16, 2048, 128, 128), (16, 16, 16, 512, 128, 128),
        (1, 8, 8, 131072, 128, 128), (2, 16, 16, 8192, 192, 128), (2, 16, 16, 8192, 256, 256), (2, 16, 16, 8192, 96, 96),
        (1, 1, 1, 128, 128, 128),
    ]
    found = [Case(_name(s, mod), *s, mod) for s in shapes for mod in ("plain", "causal")]
    long = (2, 16, 16, 16384, 128, 128)
    mods = ("window1024", "window128", "document", "prefix2048", "alibi_causal", "softcap_causal", "relbias_causal")
    found += [Case(_name(long, mod), *long, mod) for mod in mods]
    grouped = (2, 32, 4, 16384, 128, 128)
    found += [Case(_name(grouped, "window1024"), *grouped, "window1024")]
    # Decoding: few queries of every sequence, many keys; bound by reading them.
    few = [(1, (1, 64, 8, 131072, 128, 128)), (1, (8, 32, 8, 32768, 128, 128)), (1, (64, 32, 8, 4096, 128, 128)),
           (1, (8, 24, 8, 32768, 128, 128)), (16, (8, 32, 4, 8192, 128, 128)), (128, (8, 32, 4, 8192, 128, 128))]
    return found + [Case(f"{queries} queries, {_name(shape, 'plain')}", *shape, "plain", queries) for queries, shape in few]


def _name(shape: tuple, mod: str) -> str:
    batch, heads, kv_heads, length, dim, dim_v = shape
    return f"{mod} {batch},{heads},{kv_heads},{length},{dim if dim == dim_v else f'{dim}/{dim_v}'}"


def kept_pairs(case: Case) -> float:
    """Pairs that the mask keeps, of one batch and head."""
    from forward_rivals import MODS
    s = case.length
    mask = MODS[case.mod](case).mask_mod
    if mask is None:
        return float(case.queries or s) * s
    if case.mod.endswith("causal"):
        return s * (s + 1) / 2
    q, total, zero = torch.arange(s, device="cuda")[:, None], 0, torch.zeros((), dtype=torch.long, device="cuda")
    for keys in torch.arange(s, device="cuda").split(1024):
        total += int(mask(zero, zero, q, keys).sum())
    return float(total)


def own_kernel(run: Callable) -> None:
    """Calls, until those after it run with no kernel that stands in for theirs."""
    run()
    # Older checkouts, which revisions.py measures, have none.
    getattr(flexfa4, "wait_for_kernels", bool)()
    run()


def sample(run: Callable, calls: int) -> float:
    """Median milliseconds of one call, after as many that are not timed."""
    own_kernel(run)
    for _ in range(calls):
        run()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
    for begin, end in events:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def alternated(ready: dict[str, Callable], calls: int, repeats: int) -> dict[str, float]:
    """Name -> median milliseconds of `repeats` samples, all of them in turn."""
    samples = {name: [] for name in ready}
    for _ in range(repeats):
        for name, run in ready.items():
            samples[name].append(sample(run, calls))
    return {name: statistics.median(values) for name, values in samples.items()}


def host_us(run: Callable, calls: int) -> float:
    """Microseconds that a call keeps the host, median; the GPU is idle before each."""
    own_kernel(run)
    times = []
    for _ in range(calls):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    torch.cuda.synchronize()
    return 1e6 * statistics.median(times)


def measure(case: Case, rivals: list[str], repeats: int) -> dict:
    tensors, ready, result = case.tensors(), {}, {"case": asdict(case), "rivals": {}}
    pairs = kept_pairs(case)
    for rival in rivals:
        try:
            began = time.perf_counter()
            run = RIVALS[rival](case, *tensors)
            out = run()
            torch.cuda.synchronize()
            first = time.perf_counter() - began
            ready[rival] = (run, max(3, min(200, int(SAMPLE_MS / max(1e-3, sample(run, 3))))))
            result["rivals"][rival] = {"first_s": first, "samples_ms": [], "out": out}
        except Unsupported as reason:
            result["rivals"][rival] = {"unsupported": str(reason)}
        except Exception as error:  # a rival that fails is a result
            result["rivals"][rival] = {"unsupported": f"{type(error).__name__}: {str(error)[:200]}"}
    _compare(result["rivals"])
    for repeat in range(repeats):
        for rival, (run, calls) in list(ready.items())[:: -1 if repeat % 2 else 1]:
            result["rivals"][rival]["samples_ms"].append(sample(run, calls))
    flops = 2 * case.batch * case.heads * pairs * (case.dim + case.dim_v)
    for rival, (run, _) in ready.items():
        row = result["rivals"][rival]
        row["ms"] = statistics.median(row["samples_ms"])
        row["tflops"] = flops / row["ms"] / 1e9
        row["host_us"] = host_us(run, int(min(50, max(5, HOST_MS / row["ms"]))))
        row["memory_mib"] = memory_mib(run)
        row["mask_ms"] = mask_ms(rival, case)
    result["machine"] = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return result


def memory_mib(run: Callable) -> float:
    """What a call allocates at most, over what is there before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def mask_ms(rival: str, case: Case) -> float | None:
    """Milliseconds to build the case's mask anew, median of five; None where the rival builds none."""
    build = MASK_BUILDERS.get(rival, lambda case: None)(case)
    if build is None:
        return None
    times = []
    for _ in range(6):
        torch.cuda.synchronize()
        began = time.perf_counter()
        build()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[1:])


def _compare(rows: dict) -> None:
    """The largest difference of each output from the first rival's that runs: a rival that computes something else shows."""
    outs = {name: row.pop("out") for name, row in rows.items() if "out" in row}
    base = next(iter(outs.values()), None)
    for name, out in outs.items():
        rows[name]["difference"] = (out.float() - base.float()).abs().max().item()


def report(results: list[dict], rivals: list[str]) -> str:
    machine = results[0].get("machine", "") if results else ""
    lines = [f"{machine}; flash-attn-4 4.0.0b36; medians of alternated samples; case: mod B,H,Hkv,S,D.", "",
             *_table(["case", *(f"{r} ms (TFLOP/s)" for r in rivals), "ratio to the best rival"],
                     [[result["case"]["name"], *_each(result, rivals, lambda r: f"{r['ms']:.3f} ({r['tflops']:.0f})"),
                       ratio(result)] for result in results]), ""]
    for title, key, form in (
            ("Host time of a call, us", "host_us", "{:.0f}"), ("First call, s", "first_s", "{:.1f}"),
            ("Memory of a call, MiB", "memory_mib", "{:.0f}"), ("Building the mask anew, ms", "mask_ms", "{:.2f}")):
        rows = [[result["case"]["name"], *_each(result, rivals, lambda r: form.format(r[key]) if r.get(key) is not None else "-")]
                for result in results]
        lines += [title, "", *_table(["case", *rivals], [r for r in rows if set(r[1:]) != {"-"}]), ""]
    return "\n".join(lines).rstrip() + "\n"


def rivals_of(known: dict | None, rivals: list[str]) -> list[str]:
    """Whom a case is to be measured with: those that a result has and those that it lacks; nobody where it lacks none."""
    had = list(known["rivals"]) if known else []
    lacks = [r for r in rivals if r not in had]
    return [r for r in RIVALS if r in had or r in lacks] if lacks else []


def merged(results: list[dict]) -> list[dict]:
    """One result a case, in the order of the cases: of several the one with the most rivals measured, of such the last."""
    found: dict[str, dict] = {}
    for result in sorted(results, key=lambda r: sum("ms" in row for row in r["rivals"].values())):
        found[result["case"]["name"]] = result
    return [found[case.name] for case in cases() if case.name in found]


def columns(results: list[dict], rivals: list[str]) -> list[str]:
    """The rivals of a table: those asked for, and those that a result has."""
    return [r for r in RIVALS if r in rivals or any(r in result["rivals"] for result in results)]


def ratio(result: dict) -> str:
    others = [row["ms"] for name, row in result["rivals"].items() if name != "flexfa4" and "ms" in row]
    mine = result["rivals"].get("flexfa4", {}).get("ms", math.nan)
    return f"{min(others) / mine:.3f}" if others else "-"


def _each(result: dict, rivals: list[str], show: Callable) -> list[str]:
    rows = [result["rivals"].get(r, {}) for r in rivals]
    return [show(row) if "ms" in row else "-" for row in rows]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(row) + " |" for row in rows)]


def plot(results: list[dict], rivals: list[str], path: Path) -> None:
    """TFLOP/s of each case, a bar a rival. Needs matplotlib."""
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = path.stem  # names of elements are the same each time
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 0.16 * len(rivals) * len(results) + 1.5))
    height = 0.8 / len(rivals)
    for i, rival in enumerate(rivals):
        speeds = [result["rivals"].get(rival, {}).get("tflops", 0.0) for result in results]
        axis.barh([y + (i - len(rivals) / 2 + 0.5) * height for y in range(len(results))], speeds, height, label=rival)
    axis.set_yticks(range(len(results)), [result["case"]["name"] for result in results], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("TFLOP/s of the pairs that the mask keeps")
    axis.legend(fontsize=7)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def write(results: list[dict], rivals: list[str], path: Path) -> None:
    path.with_suffix(".json").write_text(json.dumps(results, indent=1))
    path.with_suffix(".md").write_text(report(results, rivals))
    plot(results, rivals, path.with_suffix(".svg"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name holds one of these")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=440, help="start no case after this: a shard ends before 8 minutes")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "forward_h200")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="JSON files to put together, without measuring")
    args = parser.parse_args()
    if args.merge:
        put_together = merged([r for file in args.merge for r in json.loads(file.read_text())])
        write(put_together, columns(put_together, args.rivals.split(",")), args.out)
        return
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    rivals, (shard, shards) = args.rivals.split(","), map(int, args.shard.split("/"))
    path = args.out.with_suffix(".json") if shards == 1 else Path(f"{args.out}_{shard}.json")
    results = json.loads(path.read_text()) if path.exists() else []
    known, began = {r["case"]["name"]: r for r in results}, time.monotonic()
    wanted = [c for c in cases() if not args.only or any(word in c.name for word in args.only)]
    for case in wanted[shard::shards]:
        all_rivals = rivals_of(known.get(case.name), rivals)
        if not all_rivals or time.monotonic() - began > args.seconds:
            continue
        known[case.name] = measure(case, all_rivals, args.repeats)
        results = [known[name] for name in dict.fromkeys([r["case"]["name"] for r in results] + [case.name])]
        path.write_text(json.dumps(results, indent=1))
        print(report([known[case.name]], all_rivals).splitlines()[4], flush=True)
        for rival, row in known[case.name]["rivals"].items():
            if "unsupported" in row:
                print(f"  {rival}: {row['unsupported']}", flush=True)
        torch.cuda.empty_cache()
    write(results, columns(results, rivals), path)


if __name__ == "__main__":
    main()
