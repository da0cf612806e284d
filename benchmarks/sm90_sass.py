"""Machine code of the Hopper forward: instructions of one KV tile of a consumer warp, by pipe; no GPU.

    python benchmarks/sm90_sass.py [--only NAME ...] [--listing DIR]

Counted along the shortest way through the loop over KV tiles (`flexfa4/emit/sass.py`): a FULL tile, no rescaling. "/ score":
instructions of a thread over the scores that it holds of a tile (kv_tile / 2). Needs nvidia-cutlass-dsl and nvdisasm. --listing
writes each case's whole code to DIR. Prints a table and writes results/sm90_sass.{json,md}."""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from sm100_sass import ROOT, gallery_graphs

sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
import conftest  # noqa: E402, F401

from flexfa4.emit import sass  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "sm90_sass"
# name -> head dims, what of the gallery; three warpgroups (`RowLayout.wide`) where a name says "long rows"
CASES = {
    "D=128": ((128, 128), ""),
    "D=128 causal": ((128, 128), "causal"),
    "D=64": ((64, 64), ""),
    "D=64 causal": ((64, 64), "causal"),
    "D=256": ((256, 256), ""),
    "D=256 causal": ((256, 256), "causal"),
    "D=128 ALiBi": ((128, 128), "alibi"),
    "D=128 softcap": ((128, 128), "softcap"),
    "D=128 learned relative bias": ((128, 128), "learned_relative_bias"),
    "D=128 window": ((128, 128), "sliding_window"),
    "D=128 documents": ((128, 128), "document"),
    "D=128 long rows": ((128, 128), ""),
    "D=128 causal, long rows": ((128, 128), "causal"),
    "D=96 causal, long rows": ((96, 96), "causal"),
    "D=128 ALiBi, long rows": ((128, 128), "alibi"),
    "D=128 learned relative bias, long rows": ((128, 128), "learned_relative_bias"),
    "D=128 documents, long rows": ((128, 128), "document"),
}
LONG_ROWS = "long rows"
SHOWN = ("MUFU", "FMA", "ALU", "convert", "memory")


def compiled(dims: tuple[int, int], entry: str, wide: bool):
    """(plan, cubin)."""
    from flexfa4.ir import DType
    from flexfa4.plan import RowLayout, Signature, plan_forward
    from flexfa4.runtime import compiler

    graphs = gallery_graphs(entry)
    plan = plan_forward("sm90", DType.BF16, *dims, graphs, RowLayout(wide=wide))
    dense = tuple(True for g in graphs for _ in g.captures)
    masked = bool(plan.mask)
    return plan, compiler.cubin(Signature(plan, masked=masked, ordered=masked, counted=True, contiguous=dense,
                                              halved=masked and plan.halves))


def measure(name: str, listing: Path | None) -> dict:
    plan, cubin = compiled(*CASES[name], LONG_ROWS in name)
    if listing:
        listing.mkdir(parents=True, exist_ok=True)
        path = listing / (name.replace(" ", "_").replace("=", "") + ".cubin")
        path.write_bytes(cubin)
        text = subprocess.run([sass.nvdisasm(), "-c", str(path)], capture_output=True, text=True, check=True).stdout
        path.with_suffix(".sass").write_text(text)
    code = sass.disassemble(cubin)
    path, scores = sass.consumer_path(code), plan.tiles.kv_tile // 2
    kinds = sass.by_class(path)
    spills = sum(x.opcode.startswith(("LDL", "STL")) for x in code[0])
    return {"tile": len(path), "spills": spills, "scores": scores, "products": sass.count(path, "HGMMA"), "kinds": kinds,
            "code KiB": len(code[0]) * 16 // 1024}


def table(rows: dict[str, dict]) -> str:
    head = ["kernel", "code KiB", "spills", *(f"{k} / score" for k in SHOWN), "all / score", "a tile"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    for name, r in rows.items():
        per = [f"{r['kinds'].get(k, 0) / r['scores']:.2f}" for k in SHOWN]
        lines.append("| " + " | ".join([name, str(r["code KiB"]), str(r["spills"]), *per, f"{r['tile'] / r['scores']:.2f}",
                                        str(r["tile"])]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="cases with one of these names")
    parser.add_argument("--listing", type=Path)
    args = parser.parse_args()
    rows = {name: measure(name, args.listing) for name in CASES if not args.only or name in args.only}
    print(table(rows))
    if not args.only:
        RESULTS.with_suffix(".json").write_text(json.dumps(rows, indent=1))
        RESULTS.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
