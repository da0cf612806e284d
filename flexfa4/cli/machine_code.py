"""What a mod costs in machine code: instructions a score, by class, of the kernels for Hopper and Blackwell. No GPU."""

from __future__ import annotations

import sys
from collections import Counter

from ..emit import sass
from ..errors import UnsupportedError
from ..ir import DType, Graph
from ..plan import Signature, plan_forward
from ..trace import bind
from . import info, target

GPU = {"sm90": "sm_90a", "sm100": "sm_100a"}
SHOWN = ("MUFU", "FMA", "ALU")
HEAD_DIM = 128
SIZES = dict(seq_len=330, heads=4, kv_heads=2, batch=2)  # of an example of the gallery
HEAD = ("kernel", "mod", "tile", *(f"{kind} / score" for kind in SHOWN), "other / score", "all / score")


def graphs_of(where: str, kind: str | None) -> tuple[tuple[Graph, ...], str]:
    """(graphs, name) of FILE.py:NAME, or of a name of the gallery with all its mods. Raises TargetError."""
    found = target.find(where, kind, **SIZES)
    return tuple(bind(mod, kind).graph for kind, mod in found.mods.items()), found.name


def gallery_graphs(entry) -> tuple[Graph, ...]:
    return graphs_of(entry.name, None)[0]


def rows(graphs: tuple[Graph, ...], name: str, archs: tuple[str, ...] = tuple(GPU)) -> list[tuple[str, ...]]:
    """A row of `HEAD` for each kernel and kind of tile: FULL ones and, on sm_100a where they take another way through the code,
    PARTIAL ones. Raises UnsupportedError where the compiler or the disassembler is missing."""
    if missing := info.missing_of_compiler():
        raise UnsupportedError(f"--sass compiles kernels with {missing}, which is not installed: pip install 'flexfa4[cuda]'")
    try:
        sass.nvdisasm()
    except FileNotFoundError as missing:
        raise UnsupportedError(f"--sass needs a disassembler, and {missing}") from missing
    found = []
    for arch in archs:
        for tile, per_score in per_tile(arch, graphs).items():
            numbers = [*(per_score[kind] for kind in SHOWN), per_score["other"], sum(per_score.values())]
            found.append((GPU[arch], name, tile, *(f"{x:.2f}" for x in numbers)))
    return found


def per_tile(arch: str, graphs: tuple[Graph, ...]) -> dict[str, Counter]:
    """Kind of tile -> instructions of a softmax thread for each of its scores, by class."""
    arguments, sys.argv = sys.argv, sys.argv[:1]  # the compiler parses the options of the process
    try:
        from ..runtime import compiler
    finally:
        sys.argv = arguments
    plan = plan_forward(arch, DType.BF16, HEAD_DIM, HEAD_DIM, graphs)
    masked = bool(plan.mask)
    dense = tuple(True for kind in ("score", "mask", "out") for g in graphs if g.kind == kind for _ in g.captures)
    code = sass.disassemble(compiler.cubin(Signature(plan, masked, masked, arch == "sm90", dense)))
    kv_tile = plan.tiles.kv_tile
    if arch == "sm90":
        # A thread has half of two rows' scores. PARTIAL tiles share code with FULL ones in a way that is not told apart here.
        return {"FULL": _by_class(sass.consumer_path(code), kv_tile // 2)}
    ways = sass.tile_ways(code, kv_tile)
    return {"FULL": _by_class(ways[0], kv_tile), "PARTIAL": _by_class(ways[-1], kv_tile)}


def _by_class(path: list, scores: int) -> Counter:
    kinds = Counter()
    for kind, n in sass.by_class(path).items():
        kinds[kind if kind in SHOWN else "other"] += n / scores
    return kinds


def text(made: list[tuple[str, ...]]) -> str:
    """Rows as aligned columns."""
    lines = [HEAD, *made]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return "\n".join("  ".join(f"{cell:<{w}}" if i < 3 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(line, widths)))
                     for line in lines)


def report(graphs: tuple[Graph, ...], name: str) -> str:
    """The text of `flexfa4 inspect --sass`: the mod beside no mod."""
    table = text([*rows((), "none"), *rows(graphs, name)])
    return (f"{table}\nbf16, head dim {HEAD_DIM}; of one softmax thread, on the shortest way through a tile: no rescaling\n"
            "a mask runs on PARTIAL tiles alone (counted on sm_100a only)\n"
            "other: conversions, tensor memory, loads, barriers, branches, uniform registers")
