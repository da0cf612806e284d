"""A CTA by itself and one of a pair, in the Blackwell forward: clocks of each resource, and machine code. No GPU.

    python benchmarks/sm100_pairs.py

Clocks are `flexfa4/plan/roofline.py`'s. Issue slots: warp instructions of all roles of a CTA for a KV tile of 128 keys without
hidden keys and its query tiles, along the shortest way (`flexfa4/emit/sass.py`); of a pair the mean of its two CTAs, of which one
issues the products. Writes results/sm100_pairs.md and docs/performance_blackwell.md. Needs nvidia-cutlass-dsl and nvdisasm."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import conftest  # noqa: E402, F401
import performance_page  # noqa: E402

from flexfa4.emit import sass  # noqa: E402
from flexfa4.emit.cubin import kernel_facts  # noqa: E402
from flexfa4.ir import DType  # noqa: E402
from flexfa4.plan import Signature, Sm100Forward, plan_forward  # noqa: E402
from flexfa4.plan.budget import check_smem  # noqa: E402
from flexfa4.plan.build import pair_pays, sm100_pair, sm100_tiles  # noqa: E402
from flexfa4.plan.roofline import clocks, shared_memory  # noqa: E402

DIMS = ((64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256))
BOX_COLUMNS = (64, 32, 16)  # of 16 bits, in one TMA instruction: the swizzle's width, the widest that divides a tile's


def issue_slots(tiles: Sm100Forward, code: tuple) -> tuple[int, dict[str, int]]:
    """(a CTA's, the way of one warp of each role)."""
    products = tiles.q_tiles * (tiles.kv_tile + tiles.head_dim) // 16
    boxes = sum(n // next(w for w in BOX_COLUMNS if n % w == 0) for n in (tiles.head_dim, tiles.head_dim_v // tiles.ctas))
    ways = dict(
        softmax=len(sass.tile_ways(code, tiles.kv_tile)[0]), correction=len(sass.role_path(code, "LDS", tiles.q_tiles)),
        mma=len(sass.role_path(code, "UTCHMMA", products)), load=len(sass.role_path(code, "UTMALDG", boxes)),
    )  # fmt: skip
    slots = 4 * tiles.q_tiles * ways["softmax"] + 4 * ways["correction"] + ways["mma"] / tiles.ctas + ways["load"]
    return round(slots), ways


def row(tiles: Sm100Forward) -> list:
    from flexfa4.runtime import compiler

    plan = plan_forward("sm100", DType.BF16, tiles.head_dim, tiles.head_dim_v)
    cubin = compiler.cubin(Signature(replace(plan, tiles=replace(tiles, scheduler="counter")), counted=True))
    slots, ways = issue_slots(tiles, sass.disassemble(cubin))
    (facts,) = kernel_facts(cubin)
    found = clocks(tiles)
    tensor, special, operands, copies = found.values()
    return [
        f"D={tiles.head_dim}, {tiles.head_dim_v}", "pair" if tiles.ctas == 2 else "alone", tiles.rows, tiles.kv_stages, tensor,
        special, operands, copies, shared_memory(found), slots, slots // 4, ", ".join(map(str, ways.values())), facts.frame_bytes,
        f"{check_smem(tiles.smem):,}",
    ]  # fmt: skip


def table() -> str:
    heads = ["head dims", "CTA", "rows a work tile", "stages", "tensor core", "special functions", "operands", "TMA of K and V",
             "shared memory", "issue slots", "clocks of issue", "softmax, correction, mma, load", "spilled bytes", "shared bytes"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "--:|" * (len(heads) - 2)]
    for dims in DIMS:
        for tiles in (sm100_tiles(*dims), *([sm100_pair(*dims)] if pair_pays(*dims) else [])):
            lines.append("| " + " | ".join(map(str, row(tiles))) + " |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> int:
    performance_page.publish("sm100_pairs.py", table())
    return 0


if __name__ == "__main__":
    from command_line import check

    check(__doc__)
    sys.exit(main())
