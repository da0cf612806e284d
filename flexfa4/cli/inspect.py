"""`flexfa4 inspect`: everything the library finds out about one mod, as text, and a picture."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Callable, Iterator

import numpy as np
import torch

from ..errors import LookupOutOfRange, UnsupportedError
from ..facts.simplify import simplify
from ..interpret.poison import evaluate_checked, lookup_error
from ..ir import DType, Op
from ..ir.bound import BoundGraph
from ..ir.text import show
from ..plan import TMA_BYTES, Heads, plan_forward, row_layout, unpaired
from ..plan.hoist import hoist
from ..plan.roofline import TENSOR_CORE, clocks, shared_memory
from ..runtime import engine
from ..schedule import CostModel, Work, lower_bound, make_schedule, makespan, natural_order, section_kv_heads
from ..sparsity import BlockMask, Kind, Spans, create_block_mask
from ..sparsity.draw import picture as tile_map
from ..sparsity.halves import tiles_seen
from ..sparsity.work_spans import INSIDE, WorkSpans
from ..trace import trace
from . import target, words

MAP_COLUMNS = 64  # tiles across the text map; its tiles are twice as high as wide, as characters are
TILE = 128
POSITIONS = 2048
WORKERS = {"sm100": 148, "sm90": 132}  # SMs of a B200 and of an H100
PAIRED_DIMS = ((128, 128), (192, 128), (256, 256))  # where pairs of CTAs pay
SIGNS = {Kind.EMPTY: ".", Kind.PARTIAL: "+", Kind.FULL: "#"}


def report(where: str, kind: str | None, q_len: int | None, kv_len: int | None, picture: Path | None) -> str:
    """The text of `flexfa4 inspect`, one mod after another. Raises FlexError (among them TargetError) where `where` is no mod or
    cannot be traced. q_len, kv_len: None for as many as the other, or `POSITIONS`."""
    if picture is not None:
        target.refuse_picture(picture)
    kv_len = kv_len or q_len or POSITIONS
    found = target.find(where, kind, seq_len=kv_len, batch=1)
    if found.example is not None and found.example.short_queries:
        q_len = found.example.q_len
    first, lengths = next(iter(found.mods)), (q_len or (kv_len if found.example else POSITIONS), kv_len)
    return "\n\n".join(_of_one(mod, found.name, kind, *lengths, picture if kind == first else None)
                       for kind, mod in found.mods.items())


def _of_one(mod: Callable, name: str, kind: str, q_len: int, kv_len: int, picture: Path | None) -> str:
    bound = trace(mod, kind)
    small = replace(bound, graph=simplify(bound.graph))
    parts = [
        _head(bound, name),
        _section("Graph", show(small.graph)),
        _section("Facts", "\n".join(_facts(small))),
        _section("Computed", str(hoist(small.graph))),
    ]
    if kind == "mask":
        mask = create_block_mask(mod, 1, 1, q_len, kv_len)
        seen = [what for op, what in ((Op.B, "batch entry 0"), (Op.H, "head 0")) if small.graph.uses(op)]
        of = f" of {' and '.join(seen)} alone" if seen else ""
        with _lengths_told(q_len, kv_len):
            parts += [_section(f"Tiles{of}", tiles(mask)), _section(f"Schedule{of}", _schedule(mask))]
    parts.append(_section(f"Kernel on sm100, {q_len:,} queries", _blackwell(small, q_len)))
    if picture is not None:
        with _lengths_told(q_len, kv_len):
            parts.append(f"Drawn: {_draw(bound, mod, name, (q_len, kv_len), picture)}")
    return "\n\n".join(parts)


@contextmanager
def _lengths_told(q_len: int, kv_len: int) -> Iterator[None]:
    """A look-up past the end of a table may be the fault of the lengths, which are this command's."""
    try:
        yield
    except LookupOutOfRange as error:
        raise target.TargetError(f"{error}. This is with {q_len:,} queries and {kv_len:,} keys: --q-len and --kv-len give other "
                                 "lengths") from error


def _blackwell(bound: BoundGraph, q_len: int) -> str:
    """How many CTAs work on a tile of rows, and why, with this graph alone."""
    heads, lines = Heads.of(1, (bound.graph,)), []
    for dims in PAIRED_DIMS:
        plan = plan_forward("sm100", DType.BF16, *dims, (bound.graph,), row_layout("sm100", *dims, heads, q_len))
        why = unpaired("sm100", *dims, heads, q_len)
        found = clocks(plan.tiles)
        of = "two CTAs" if plan.ctas == 2 else f"one CTA: {why}"
        lines.append(
            f"D={dims[0]}, {dims[1]}: {plan.tiles.rows} query rows a work tile of {of}; clocks a CTA and key tile: "
            f"tensor core {found[TENSOR_CORE]}, shared memory {shared_memory(found)}"
        )
    return "\n".join([*lines, *_inputs(bound)])


def _inputs(bound: BoundGraph) -> list[str]:
    """Which calls the kernel takes, and which tensors it reads where they lie."""
    takes, scale = [], 0.1
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        one = torch.empty(1, 1, 1, 64, dtype=dtype)
        takes.append((str(dtype).removeprefix("torch."), engine.choose("sm100", one, one, one, scale, (bound,)).plan is not None))
    dims = (torch.empty(1, 1, 1, dim, dtype=torch.bfloat16) for dim in range(16, 1024, 16))
    widest = max(one.shape[3] for one in dims if engine.choose("sm100", one, one, one, scale, (bound,)).plan is not None)
    return [
        f"takes {' and '.join(name for name, taken in takes if taken)} up to head dim {widest}; "
        f"{' and '.join(name for name, taken in takes if not taken)}, and wider ones, go to the tiled engine with a warning",
        f"q, k and v are read where they lie if the last stride is 1, and the base and the other strides are multiples of "
        f"{TMA_BYTES} bytes; any other view is copied once a call, to rows padded to {TMA_BYTES} bytes",
    ]


def _section(title: str, body: str) -> str:
    return f"{title}\n" + "\n".join(f"  {line}" for line in body.splitlines())


def _head(bound: BoundGraph, name: str) -> str:
    article = "an" if bound.graph.kind == "out" else "a"
    return f"{name}: {article} {bound.graph.kind}_mod, {bound.origin.where()}, {len(bound.graph.nodes)} nodes as written"


def _facts(bound: BoundGraph) -> list[str]:
    lines = [words.dependence(bound), *words.captures(bound), *words.affine_facts(bound)]
    cancels = words.row_constant(bound)
    return lines if cancels is None else [*lines, cancels]


def text_map(spans: Spans) -> str:
    """One sign a tile of batch 0 and head 0: queries down, keys across."""
    return "\n".join("".join(SIGNS[Kind(k)] for k in row) for row in spans.states()[0, 0].tolist())


def tiles(mask: BlockMask) -> str:
    q_len, kv_len = mask.shape[2:]
    size = max(16, -(-max(q_len, kv_len) // MAP_COLUMNS))
    drawn = text_map(mask.spans(2 * size, size))
    counts = mask.spans(TILE, TILE).counts()
    total = sum(counts.values())
    shares = ", ".join(f"{counts[k]:,} {k.name.lower()} ({counts[k] / total:.1%})" for k in (Kind.FULL, Kind.PARTIAL, Kind.EMPTY))
    spans = mask.spans(TILE, TILE)
    return (
        f"{q_len:,} queries x {kv_len:,} keys in tiles of {TILE} x {TILE}, as scheduled below: {shares}; "
        f"{len(spans.runs):,} spans, {spans.nbytes:,} bytes\n"
        f"{_documents(mask)}{_halves(mask)}"
        f"map in tiles of its own, {2 * size} queries x {size} keys each (# full, + partial, . empty):\n\n{drawn}"
    )


def _halves(mask: BlockMask) -> str:
    """What the two query tiles of a Blackwell work tile save by skipping key tiles apart; nothing where there is one."""
    if mask.shape[2] <= TILE:
        return ""
    spans = [mask.work_spans(2 * TILE, TILE, halved) for halved in (False, True)]
    (together, _), (apart, hidden) = (tiles_seen(s.runs.numpy(), halved) for s, halved in zip(spans, (False, True)))
    saved = f"{1 - apart / together:.1%} less" if apart < together else "no less"
    return (
        f"on sm100 the two query tiles of a work tile skip key tiles apart: {len(spans[1].runs):,} spans, {apart:,} tiles of "
        f"{TILE} x {TILE}, {hidden:,} of them partial; {saved} than the {together:,} of work tiles of {2 * TILE} queries\n"
    )


def _documents(mask: BlockMask) -> str:
    """Of a mask of documents: where the work tiles of a kernel begin, and what they are; else nothing."""
    spans = mask.work_spans(TILE, TILE)
    if isinstance(spans, Spans):
        return ""
    counts = spans.counts()
    begin = "where documents do" if spans.by_document else "on the grid: documents that begin anywhere would make no fewer"
    return (
        f"labels are compared, and a kernel's work tiles may begin anywhere: {spans.present.sum():,} of {TILE} rows at most, "
        f"{begin}; {counts[Kind.FULL]:,} full tiles of {TILE} keys, {counts[Kind.PARTIAL]:,} partial, "
        f"{counts[INSIDE]:,} partial in which labels need no look\n"
    )


def _schedule(mask: BlockMask) -> str:
    spans, lines = mask.work_spans(TILE, TILE), []
    present = spans.present if isinstance(spans, WorkSpans) else None
    work = Work(spans.row_ptr.cpu().numpy(), spans.runs.cpu().numpy(), 1, 1, 1, present=present)
    costs = work.costs(CostModel())
    for arch, workers in WORKERS.items():
        bound = least(costs, workers, CostModel())
        made = make_schedule(work, workers, section_kv_heads(mask.shape[3], 128, 128, itemsize=2))
        lines.append(
            f"{arch}, {workers} SMs, one head: {len(made)} work tiles, {made.strategy}; the last ends at {made.makespan:.1f} "
            f"(in natural order at {makespan(costs[natural_order(work)], workers):.1f}, no schedule is under {bound:.1f})"
        )
    model = CostModel()
    lines.append(f"unit: the time of one full tile; a partial one takes {model.partial}, and a work tile {model.fixed} more")
    return "\n".join(lines)


def least(costs: np.ndarray, workers: int, model: CostModel) -> float:
    """A time that no schedule is under: the work shared evenly, and the longest row, whole or the shortest piece of it."""
    if len(costs) == 0:
        return 0.0
    piece = model.fixed + model.split + min(model.full, model.partial)
    return max(lower_bound(costs, workers, splittable=True), min(float(costs.max()), piece))


def _draw(bound: BoundGraph, mod: Callable, name: str, lengths: tuple[int, int], path: Path) -> str:
    """Tile map of a mask, heat map of a score edit on a score of 0; returns what to say of it. Raises UnsupportedError for an
    out mod, or without matplotlib, TargetError where the file cannot be written."""
    q_len, kv_len = lengths
    on_head = ", head 0" if bound.graph.uses(Op.H) else ""
    if bound.graph.kind == "out":
        raise UnsupportedError("--out draws masks and score mods; an out_mod has no picture over queries and keys")
    if bound.graph.kind == "mask":
        size = max(1, max(q_len, kv_len) // 128)
        figure = tile_map(create_block_mask(mod, 1, 1, q_len, kv_len).spans(size, size), name + on_head)
        _save(figure, path)
        return f"{path}, in tiles of {size} x {size}"
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise UnsupportedError("pictures need matplotlib: pip install 'flexfa4[draw]'") from missing
    positions = {Op.B: 0, Op.H: 0, Op.Q: torch.arange(q_len)[:, None], Op.KV: torch.arange(kv_len)}
    env = {**positions, Op.SCORE: torch.zeros(q_len, kv_len)}
    value, bad = evaluate_checked(bound, env)
    if bad is not None and bool(bad.any()):
        raise lookup_error(bound, env)
    value = value.detach().expand(q_len, kv_len)
    reach = value.abs().max().item() or 1.0
    figure = Figure(figsize=(5.6, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(value.numpy(), cmap="RdBu_r", vmin=-reach, vmax=reach, interpolation="nearest", aspect="auto")
    axes.set(title=f"{name} on a score of 0{on_head}", xlabel="key", ylabel="query")
    figure.colorbar(image)
    _save(figure, path)
    return str(path)


def _save(figure, path: Path) -> None:
    with target.writing(path):
        figure.savefig(path)
