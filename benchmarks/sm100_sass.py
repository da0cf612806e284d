"""Machine code of the Blackwell forward beside flash-attn-4's, compiled the same way on this machine; no GPU.

    python benchmarks/sm100_sass.py            prints the table, writes results/sm100_sass.{json,md} and docs/performance.md

Counted along the shortest way through each role's loop over KV tiles (`sass.py`): a tile without mask, no rescaling. A KV tile
is 128 keys for both query tiles of 128 rows; each of the 8 softmax warps executes its path once for it, 4 correction warps
theirs, and one mma and one load warp theirs. Needs nvidia-cutlass-dsl, nvdisasm and, for its rows, flash-attn-4. One process
a maker: flash-attn-4's interface is made to compile for CPU tensors (tests/emulator/fa4.py)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import sass

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "sm100_sass"
MARK = ("<!-- table: begin (benchmarks/sm100_sass.py) -->", "<!-- table: end (benchmarks/sm100_sass.py) -->")
# name -> head dims, what of the gallery, arguments of flash-attn-4
CASES = {
    "D=128": ((128, 128), "", {}),
    "D=128 causal": ((128, 128), "causal", dict(causal=True)),
    "D=64": ((64, 64), "", {}),
    "D=192, 128": ((192, 128), "", {}),
    "D=128 softcap": ((128, 128), "softcap", dict(softcap=20.0)),
    "D=128 ALiBi": ((128, 128), "alibi without mask", dict(score_mod="alibi")),
    "D=128 learned relative bias": ((128, 128), "learned_relative_bias", dict(score_mod="relative")),
    "D=128 documents": ((128, 128), "document", None),
}
SHOWN = ("MUFU", "FMA", "ALU", "convert")


def ours() -> dict[str, bytes]:
    """Case -> cubin."""
    import cutlass.cute as cute

    from flexfa4.ir import DType
    from flexfa4.kernels.arguments import Signature, fake_arguments
    from flexfa4.kernels.sm100.forward import Forward
    from flexfa4.plan import plan_forward

    made = {}
    with tempfile.TemporaryDirectory() as dumps:  # what is kept is also written to a file
        options = f"--enable-tvm-ffi --gpu-arch sm_100a --keep-cubin --dump-dir {dumps}"
        for name, (dims, entry, _) in CASES.items():
            graphs = gallery_graphs(entry) if entry else {}
            plan = plan_forward("sm100", DType.BF16, *dims, tuple(graphs.values()))
            signature = Signature(plan, masked="mask" in graphs)
            made[name] = cute.compile(Forward(signature), *fake_arguments(signature, True), options=options).__cubin__
    return made


def gallery_graphs(entry: str) -> dict:
    from flexfa4 import mods
    from flexfa4.trace import bind

    found = next(e for e in mods.GALLERY if e.name == entry.split()[0])
    example = found(seq_len=330, heads=4, kv_heads=2, batch=2).make()
    kinds = ("score",) if "without mask" in entry else ("score", "mask", "out")
    return {kind: bind(example[f"{kind}_mod"], kind).graph for kind in kinds if example.get(f"{kind}_mod") is not None}


def theirs() -> dict[str, bytes]:
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
        if "score_mod" in options:
            mod = options["score_mod"]
            options = dict(score_mod=getattr(fa4_score_mods, mod), aux_tensors=fa4_score_mods.aux(mod))
        q, k, v = fa4.inputs(1, 256, 256, 1, 1, *dims)
        with fa4.device("sm_100a", completion="immediate"), torch.no_grad():
            interface._flash_attn_fwd(q, k, v, return_lse=True, **options)
        made[name] = kept[-1].__cubin__
    return made


def figures(cubin: bytes, dims: tuple[int, int]) -> dict:
    from flexfa4.emit.cubin import kernel_facts

    code = sass.disassemble(cubin)
    softmax = sass.softmax_path(code)
    products = 2 * (128 // 16 + dims[0] // 16)
    paths = dict(
        mma=sass.role_path(code, "UTCHMMA", products), correction=sass.role_path(code, "LDS", 2),
        load=sass.role_path(code, "UTMALDG", -(-dims[0] // 64) + -(-dims[1] // 64)),
    )  # fmt: skip
    facts = kernel_facts(cubin)[0]
    return dict(
        frame_bytes=facts.frame_bytes, registers=facts.registers, code_bytes=facts.code_bytes, softmax=len(softmax), **paths,
        classes=dict(sass.by_class(softmax)),
        issue=8 * len(softmax) + 4 * paths["correction"] + paths["mma"] + paths["load"],
    )  # fmt: skip


def table(rows: dict[str, dict[str, dict]]) -> str:
    heads = ["kernel", "of", "spilled bytes", "code KiB", *(f"{c} / score" for c in SHOWN), "all / score"]
    heads += ["softmax", "correction", "mma", "load", "issue slots"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "--:|" * (len(heads) - 2)]
    for name in CASES:
        for maker, of in rows.items():
            if name in of:
                f = of[name]
                cells = [name, maker, f["frame_bytes"], f"{f['code_bytes'] / 1024:.0f}"]
                cells += [f"{f['classes'].get(c, 0) / 128:.2f}" for c in SHOWN] + [f"{f['softmax'] / 128:.2f}"]
                cells += [f["softmax"], f["correction"], f["mma"], f["load"], f["issue"]]
                lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) > 1:
        maker, sys.argv = sys.argv[1], sys.argv[:1]
        cubins = {"flexfa4": ours, "flash-attn-4": theirs}[maker]()
        print("\n" + json.dumps({name: figures(cubin, CASES[name][0]) for name, cubin in cubins.items()}))
        return
    rows = {}
    for maker in ("flexfa4", "flash-attn-4"):
        done = subprocess.run([sys.executable, __file__, maker], capture_output=True, text=True)
        if done.returncode:
            print(f"{maker}: {done.stderr[-2000:]}", file=sys.stderr)
            continue
        rows[maker] = json.loads(done.stdout.splitlines()[-1])
    text = table(rows)
    RESULTS.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(text + "\n")
    page = ROOT / "docs" / "performance.md"
    before, rest = page.read_text().split(MARK[0])
    page.write_text(f"{before}{MARK[0]}\n\n{text}\n\n{MARK[1]}{rest.split(MARK[1])[1]}")
    print(text)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(ROOT))
    if (ROOT / "tests" / "conftest.py").exists():
        sys.path.append(str(ROOT / "tests"))
        import conftest  # noqa: F401  (makes `flexfa4.mods` importable from a checkout)
    main()
