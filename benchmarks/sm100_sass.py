"""Machine code of the Blackwell forward beside flash-attn-4's, compiled the same way on this machine; no GPU.

    python benchmarks/sm100_sass.py     prints the table, writes results/sm100_sass.{json,md} and docs/performance_blackwell.md

Counted along the shortest way through each role's loop over KV tiles (`flexfa4/emit/sass.py`): a tile without hidden keys, no
rescaling; "keys hidden": of the softmax where the mask hides some. A KV tile is 128 keys for both query tiles of 128 rows; each
of the 8 softmax warps executes its path once for it, 4 correction warps theirs, and one mma and one load warp theirs.
Barrier operations: waits,
arrivals and commits of all of them. Needs nvidia-cutlass-dsl, nvdisasm and, for its rows, flash-attn-4. One process
a maker: flash-attn-4's interface is made to compile for CPU tensors (tests/emulator/fa4.py)."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import performance_page  # noqa: E402
from flexfa4.emit import sass  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "sm100_sass"
# name -> head dims, what of the gallery, arguments of flash-attn-4
CASES = {
    "D=128": ((128, 128), "", {}),
    "D=128 causal": ((128, 128), "causal", dict(causal=True)),
    "D=64": ((64, 64), "", {}),
    "D=96": ((96, 96), "", {}),
    "D=192, 128": ((192, 128), "", {}),
    "D=128 softcap": ((128, 128), "softcap", dict(softcap=20.0)),
    "D=128 ALiBi": ((128, 128), "alibi without mask", dict(score_mod="alibi")),
    "D=128 learned relative bias": ((128, 128), "learned_relative_bias", dict(score_mod="relative")),
    "D=128 documents": ((128, 128), "document_causal", dict(mask_mod="documents")),
}
SHOWN = ("MUFU", "FMA", "ALU", "convert")
WARPS = dict(softmax=8, correction=4, mma=1, load=1)


def ours() -> dict[str, tuple[bytes, int]]:
    """Case -> (cubin, bytes of shared memory)."""
    import torch

    from flexfa4 import mods
    from flexfa4.ir import DType
    from flexfa4.plan import Signature, plan_forward
    from flexfa4.plan.budget import check_smem
    from flexfa4.runtime import compiler
    from flexfa4.trace import bind

    made = {}
    for name, (dims, entry, _) in CASES.items():
        graphs = gallery_graphs(entry)
        if entry == "document_causal":  # with labels of 32 bits, as on the other side
            graphs = (bind(mods.document_causal(torch.zeros(330, dtype=torch.int32)), "mask").graph,)
        plan = plan_forward("sm100", DType.BF16, *dims, graphs)
        made[name] = compiler.cubin(Signature(plan, masked=bool(plan.mask), halved=bool(plan.mask))), check_smem(plan.tiles.smem)
    return made


def gallery_graphs(entry: str) -> tuple:
    """The graphs of a gallery entry ("" for none; "NAME without mask": its score graph alone)."""
    from flexfa4 import mods
    from flexfa4.cli import machine_code

    name, _, alone = entry.partition(" ")
    found = (g for e in mods.GALLERY if e.name == name for g in machine_code.gallery_graphs(e))
    return tuple(g for g in found if not alone or g.kind == "score")


def theirs() -> dict[str, tuple[bytes, int]]:
    sys.path.insert(0, str(ROOT / "tests" / "emulator"))
    import fa4

    fa4.setup("sm_100a")
    import flash_attn.cute.interface as interface
    import torch

    import fa4_score_mods

    kept, original = [], fa4.Call.__init__
    fa4.Call.__init__ = lambda self, compiled: (kept.append(compiled), original(self, compiled))[1]
    made = {}
    for name, (dims, _, options) in CASES.items():
        if options is None:
            continue
        for kind in ("score_mod", "mask_mod"):
            if kind in options:
                mod = options[kind]
                options = {kind: getattr(fa4_score_mods, mod), "aux_tensors": fa4_score_mods.aux(mod)}
        q, k, v = fa4.inputs(1, 256, 256, 1, 1, *dims)
        with fa4.device("sm_100a", completion="immediate") as dev, torch.no_grad():
            dev.recorded = []
            interface._flash_attn_fwd(q, k, v, return_lse=True, **options)
        made[name] = kept[-1].__cubin__, dev.recorded[0].smem
    return made


def softmax_ways(code: tuple, maker: str) -> tuple[list, list]:
    """A softmax warp's way through a tile without hidden keys, and through one with some. Ours branches inside of one loop over
    tiles, and runs graphs in loops over columns; flash-attn-4 has a loop for each kind of tile, without loops inside."""
    if maker == "flexfa4":
        ways = sass.tile_ways(code, 128)
        return ways[0], ways[-1]
    return sass.softmax_path(code), sass.masked_path(code)


def copies(head_dim: int) -> int:
    """TMA copies of a K or V tile: of as many columns as the widest swizzle that divides them spans."""
    return head_dim // next(columns for columns in (64, 32, 16) if head_dim % columns == 0)


def figures(maker: str, cubin: bytes, smem: int, dims: tuple[int, int]) -> dict:
    from flexfa4.emit.cubin import kernel_facts

    code = sass.disassemble(cubin)
    products = 2 * (128 // 16 + dims[0] // 16)
    softmax, hidden = softmax_ways(code, maker)
    paths = dict(
        softmax=softmax, correction=sass.role_path(code, "LDS", 2), mma=sass.role_path(code, "UTCHMMA", products),
        load=sass.role_path(code, "UTMALDG", sum(map(copies, dims))),
    )  # fmt: skip
    (facts,) = kernel_facts(cubin)
    slots, barriers, kinds = 0, 0, Counter()
    for role, path in paths.items():
        slots += WARPS[role] * len(path)
        barriers += WARPS[role] * sum(sass.count(path, opcode) for opcode in ("SYNCS", "UTCBAR", "BAR."))
        kinds += Counter({kind: WARPS[role] * n for kind, n in sass.by_class(path).items()})
    return dict(
        frame_bytes=facts.frame_bytes, registers=sass.register_limits(code), smem=smem, code_bytes=facts.code_bytes,
        **{role: len(path) for role, path in paths.items()}, hidden=len(hidden),
        classes=dict(sass.by_class(paths["softmax"])), all_classes=dict(kinds), barriers=barriers, issue=slots,
    )  # fmt: skip


def table(rows: dict[str, dict[str, dict]]) -> str:
    heads = ["kernel", "of", *(f"{c} / score" for c in SHOWN), "all / score", "softmax", "keys hidden"]
    heads += ["correction", "mma", "load"]
    lines = [_line([*heads, "issue slots"]), "|---|---|" + "--:|" * (len(heads) - 1)]
    for name, maker, f in _each(rows):
        cells = [f"{f['classes'].get(c, 0) / 128:.2f}" for c in SHOWN] + [f"{f['softmax'] / 128:.2f}"]
        cells += [f[role] for role in ("softmax", "hidden", "correction", "mma", "load", "issue")]
        lines.append(_line([name, maker, *cells]))
    return "\n".join(lines)


def resources(rows: dict[str, dict[str, dict]]) -> str:
    heads = ["kernel", "of", "registers by role", "spilled bytes", "shared memory", "code KiB", "barrier operations"]
    lines = [_line(heads), "|---|---|---|" + "--:|" * (len(heads) - 3)]
    for name, maker, f in _each(rows):
        registers = " / ".join(map(str, f["registers"]))
        cells = [name, maker, registers, f["frame_bytes"], f"{f['smem']:,}", f"{f['code_bytes'] / 1024:.0f}", f["barriers"]]
        lines.append(_line(cells))
    return "\n".join(lines)


def roofline(rows: dict[str, dict[str, dict]]) -> str:
    """Clocks of an SM for 128 keys of both query tiles, by resource, with the rates that the paper on FlashAttention-4 gives for
    the B200: a clock has 8192 operations of the tensor core (multiplications and additions), 16 special functions, 128 bytes of
    shared memory, 4 warp instructions. A product reads both operands from shared memory, but P from tensor memory."""
    shown = {name: CASES[name][0] for name in ("D=64", "D=128", "D=192, 128")}
    clocks = {
        "tensor core, both products": lambda d, dv, f: 2 * 2 * 128 * 128 * (d + dv) // 8192,
        "special functions": lambda d, dv, f: f["classes"]["MUFU"] * 32 * 8 // 16,
        "shared memory, operands of the products": lambda d, dv, f: 2 * 2 * 128 * (2 * d + dv) // 128,
        "shared memory, TMA of K and V": lambda d, dv, f: 2 * 128 * (d + dv) // 128,
        "issue": lambda d, dv, f: f["issue"] // 4,
    }
    lines = [_line(["clocks", *shown]), "|---|" + "--:|" * len(shown)]
    for resource, of in clocks.items():
        lines.append(_line([resource, *(of(*dims, rows["flexfa4"][name]) for name, dims in shown.items())]))
    return "\n".join(lines)


def _line(cells: list) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _each(rows: dict[str, dict[str, dict]]) -> list[tuple[str, str, dict]]:
    return [(name, maker, of[name]) for name in CASES for maker, of in rows.items() if name in of]


def main() -> None:
    if len(sys.argv) > 1:
        maker, sys.argv = sys.argv[1], sys.argv[:1]
        cubins = {"flexfa4": ours, "flash-attn-4": theirs}[maker]()
        print("\n" + json.dumps({name: figures(maker, *found, CASES[name][0]) for name, found in cubins.items()}))
        return
    rows = {}
    for maker in ("flexfa4", "flash-attn-4"):
        done = subprocess.run([sys.executable, __file__, maker], capture_output=True, text=True)
        if done.returncode:
            print(f"{maker}: {done.stderr[-2000:]}", file=sys.stderr)
            continue
        rows[maker] = json.loads(done.stdout.splitlines()[-1])
    text = "\n\n".join((table(rows), resources(rows), roofline(rows)))
    RESULTS.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    performance_page.publish("sm100_sass.py", text)
    print(text)


if __name__ == "__main__":
    from command_line import check

    check(__doc__, range(2), first=("flexfa4", "flash-attn-4"))
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(ROOT))
    if (ROOT / "tests" / "conftest.py").exists():
        sys.path.append(str(ROOT / "tests"))
        import conftest  # noqa: F401  (makes `flexfa4.mods` importable from a checkout)
    main()
