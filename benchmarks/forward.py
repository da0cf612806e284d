"""The forward pass on a GPU against its rivals in one process: flash-attn-4, FlexAttention (TRITON and FLASH), cuDNN.

    python benchmarks/forward.py [--only NAME ...] [--rivals flexfa4,fa4,cudnn,triton,flash] [--shard i/n] [--repeats 5]
                                 [--out benchmarks/results/forward_h200]

Every case runs its rivals in turn, `repeats` times; a sample is the median of single calls timed by CUDA events, the number
reported the median of the samples. Inputs are normal random numbers in bfloat16; the L2 cache is not flushed (inputs and outputs
are larger than it in all but the short cases). Shards (`--shard 0/4`) write files of their own; a file that exists is loaded, and
only what it lacks is measured. Writes OUT.json and OUT.md. Without a GPU it says so and measures nothing.
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
from forward_rivals import RIVALS, Unsupported  # noqa: E402

# Milliseconds of GPU work in a sample.
SAMPLE_MS = 60.0
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
        (8, 16, 16, 4096, 128, 128), (4, 16, 16, 4096, 128, 128), (2, 16, 16, 16384, 128, 128), (4, 32, 32, 8192, 64, 64),
        (2, 32, 4, 16384, 128, 128), (4, 16, 16, 2048, 128, 128), (16, 16, 16, 512, 128, 128), (1, 16, 16, 65536, 128, 128),
        (1, 8, 8, 131072, 128, 128), (2, 16, 16, 8192, 192, 128), (2, 16, 16, 8192, 256, 256), (2, 16, 16, 8192, 96, 96),
        (1, 1, 1, 128, 128, 128),
    ]
    found = [Case(_name(s, mod), *s, mod) for s in shapes for mod in ("plain", "causal")]
    long = (2, 16, 16, 16384, 128, 128)
    mods = ("window1024", "document", "prefix2048", "alibi_causal", "softcap_causal", "relbias_causal")
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


def sample(run: Callable, calls: int) -> float:
    """Median milliseconds of one call."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
    for begin, end in events:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def host_us(run: Callable, calls: int = 50) -> float:
    """Microseconds that a call keeps the host, median; the GPU is idle before each."""
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
    for _ in range(repeats):
        for rival, (run, calls) in ready.items():
            result["rivals"][rival]["samples_ms"].append(sample(run, calls))
    flops = 2 * case.batch * case.heads * pairs * (case.dim + case.dim_v)
    for rival, (run, _) in ready.items():
        row = result["rivals"][rival]
        row["ms"] = statistics.median(row["samples_ms"])
        row["tflops"] = flops / row["ms"] / 1e9
        row["host_us"] = host_us(run)
    return result


def _compare(rows: dict) -> None:
    """The largest difference of each output from the first rival's that runs: a rival that computes something else shows."""
    outs = {name: row.pop("out") for name, row in rows.items() if "out" in row}
    base = next(iter(outs.values()), None)
    for name, out in outs.items():
        rows[name]["difference"] = (out.float() - base.float()).abs().max().item()


def report(results: list[dict], rivals: list[str]) -> str:
    head = ["case", *(f"{r} ms (TFLOP/s)" for r in rivals), "ratio to the best rival", *(f"{r} host us" for r in rivals)]
    lines = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}; ms, medians; case: mod B,H,Hkv,S,D.", "",
             "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for result in results:
        rows = result["rivals"]
        cells = [f"{rows[r]['ms']:.3f} ({rows[r]['tflops']:.0f})" if "ms" in rows.get(r, {}) else "-" for r in rivals]
        hosts = [f"{rows[r]['host_us']:.0f}" if "ms" in rows.get(r, {}) else "-" for r in rivals]
        others = [rows[r]["ms"] for r in rivals if r != "flexfa4" and "ms" in rows.get(r, {})]
        mine = rows.get("flexfa4", {}).get("ms", math.nan)
        ratio = f"{min(others) / mine:.3f}" if others else "-"
        lines.append("| " + " | ".join([result["case"]["name"], *cells, ratio, *hosts]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name holds one of these")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=480, help="start no case after this")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "forward_h200")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing measured")
        return
    rivals, (shard, shards) = args.rivals.split(","), map(int, args.shard.split("/"))
    path = args.out.with_suffix(".json") if shards == 1 else Path(f"{args.out}_{shard}.json")
    results = json.loads(path.read_text()) if path.exists() else []
    known, began = {r["case"]["name"] for r in results}, time.monotonic()
    wanted = [c for c in cases() if not args.only or any(word in c.name for word in args.only)]
    for case in wanted[shard::shards]:
        if case.name in known or time.monotonic() - began > args.seconds:
            continue
        results.append(measure(case, rivals, args.repeats))
        path.write_text(json.dumps(results, indent=1))
        print(report(results[-1:], rivals).splitlines()[-1], flush=True)
        for rival, row in results[-1]["rivals"].items():
            if "unsupported" in row:
                print(f"  {rival}: {row['unsupported']}", flush=True)
        torch.cuda.empty_cache()
    path.with_suffix(".md").write_text(report(results, rivals))


if __name__ == "__main__":
    main()
