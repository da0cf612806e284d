"""Pictures of the gallery: tile maps of the masks, heat maps of the score edits, a Gantt chart of one schedule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Callable

import matplotlib
import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from tqdm import tqdm

from .. import reference
from ..mods import GALLERY, Example, document_causal
from ..schedule import CostModel, Timeline, Work, make_schedule, natural_order, section_kv_heads, simulate
from ..schedule.work import UNSPLIT
from ..sparsity import create_block_mask
from .gallery import WORKERS
from .tiles import saved

COLOURS = ("#f4f4f4", "#e69f00", "#0072b2")  # empty, partial, full: Okabe and Ito 2008, safe for colour-blind readers
MASK_TOKENS, MASK_TILE = 2048, 64
SCORE_TOKENS = 256
LONG_DOCUMENT, SHORT_DOCUMENT, TOKENS = 20480, 1024, 65536
HEADS, KV_HEADS = 2, 1
SPLIT = "#d55e00"  # of the same palette; viridis has no such colour


def _grid(panels: int, columns: int, title: str):
    """A figure, `panels` axes, and the axes left over, which are blank."""
    rows = -(-panels // columns)
    figure = Figure(figsize=(3.1 * columns, 3.1 * rows + 0.5), dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=13)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for blank in axes[panels:]:
        blank.set_axis_off()
    return figure, axes[:panels], axes[panels:]


def masks(path: Path) -> None:
    """The tile map of every mask of the gallery, batch 0 and head 0."""
    examples = [e(seq_len=MASK_TOKENS, heads=4, batch=2) for e in GALLERY if e.kind == "mask"]
    figure, panels, _ = _grid(
        len(examples) + 1, 5, f"Tiles of {MASK_TILE} x {MASK_TILE} at {MASK_TOKENS:,} tokens: queries down, keys across"
    )
    *panels, key = panels
    key.set_axis_off()
    for example, axes in zip(examples, panels):
        mask = create_block_mask(example.make()["mask_mod"], example.batch, example.heads, example.q_len, example.kv_len)
        spans = mask.spans(MASK_TILE, MASK_TILE)
        extent = (0, example.kv_len, example.q_len, 0)
        axes.imshow(
            spans.states()[0, 0].numpy(), cmap=ListedColormap(COLOURS), vmin=0, vmax=2, interpolation="nearest", extent=extent
        )
        axes.set_title(f"{example.name}\n{saved(spans):.0%} of the tiles skipped", fontsize=10)
        axes.set_xticks((0, example.kv_len // 2, example.kv_len))
        axes.set_yticks((0, example.q_len // 2, example.q_len))
        axes.tick_params(labelsize=7)
    labels = [
        Patch(facecolor=c, edgecolor="#888888", label=name)
        for c, name in zip(COLOURS, ("empty: skipped", "partial: masked", "full"))
    ]
    key.legend(handles=labels, loc="center", fontsize=12)
    figure.savefig(path)


def _score_panel(example: Example) -> tuple[torch.Tensor, str, str]:
    """What a score edit does on head 0: image [rows, columns], and what the axes are."""
    entry = example.make()
    n = example.seq_len
    one = torch.zeros(1, dtype=torch.int64)
    if example.kind == "out":
        lse, heads = torch.linspace(-4, 4, n)[:, None], torch.arange(example.heads)
        factor = entry["out_mod"](torch.ones(n, example.heads), lse, 0, heads, 0)
        return factor.detach().repeat_interleave(n // example.heads, 1), "head", "row LSE, -4 to 4"
    positions = torch.arange(n)
    ramp = example.name in ("softcap", "head_temperature")
    score = (torch.linspace(-6, 6, n).expand(1, 1, n, n) if ramp else torch.zeros(1, 1, n, n)).contiguous()
    image = reference.call_mod(entry["score_mod"], (score,), (one, one, positions, positions))[0, 0].detach()
    if entry["mask_mod"] is not None:
        image = image.masked_fill(~reference.call_mod(entry["mask_mod"], (), (one, one, positions, positions))[0, 0], math.nan)
    return image, "score before, -6 to 6" if ramp else "key", "query"


def scores(path: Path) -> None:
    """What every score edit and output hook of the gallery adds or scales, head 0; masked positions are grey."""
    examples = [e(seq_len=SCORE_TOKENS, heads=4, batch=1) for e in GALLERY if e.kind != "mask"]
    figure, panels, _ = _grid(
        len(examples), 4, "Score edits on a score of 0 (or along a ramp of scores), and the factor of the output hook"
    )
    for example, axes in zip(examples, panels):
        image, across, down = _score_panel(example)
        values = image[~image.isnan()]
        both_signs = bool(values.min() < 0 < values.max())
        reach = values.abs().max().item()
        limits = dict(vmin=-reach, vmax=reach, cmap="RdBu_r") if both_signs else dict(cmap="viridis")
        axes.set_facecolor("#dddddd")
        drawn = axes.imshow(image.numpy(), interpolation="nearest", aspect="auto", **limits)
        axes.set_title(example.name, fontsize=10)
        axes.set_xlabel(across, fontsize=8)
        axes.set_ylabel(down, fontsize=8)
        axes.set_box_aspect(1)
        axes.set_xticks(())
        axes.set_yticks(())
        figure.colorbar(drawn, ax=axes, shrink=0.85).ax.tick_params(labelsize=7)
    figure.savefig(path)


def _bars(axes, timeline: Timeline, split: np.ndarray, title: str, longest: float, end: float) -> None:
    """One bar a work tile, one line an SM; the colour is its cost, and SPLIT that of a piece of a split row."""
    cost = timeline.end - timeline.start
    colours = matplotlib.colormaps["viridis"](cost / longest)
    colours[split] = to_rgba(SPLIT)
    axes.barh(timeline.worker, cost, left=timeline.start, height=1.0, color=colours)
    axes.axvline(timeline.makespan, color="black", linewidth=1)
    axes.set(
        title=f"{title}: done after {timeline.makespan:.0f} tiles",
        xlabel="time, in full tiles",
        ylabel="SM",
        xlim=(0, end),
        ylim=(-0.5, timeline.workers - 0.5),
    )


def schedule(path: Path) -> None:
    """How a long document behind short ones in one row fills the SMs of a B200: in the natural order, and as scheduled."""
    labels = torch.arange(TOKENS).clamp(max=TOKENS - LONG_DOCUMENT) // SHORT_DOCUMENT
    spans = create_block_mask(document_causal(labels), 1, HEADS, TOKENS, TOKENS).spans(128, 128)
    work = Work(spans.row_ptr.numpy(), spans.runs.numpy(), 1, HEADS, KV_HEADS, spans.Bm, spans.Hm)
    costs = work.costs(CostModel())
    natural = simulate(costs[natural_order(work)], WORKERS)
    made = make_schedule(work, WORKERS, section_kv_heads(TOKENS, 128, 128, itemsize=2))
    figure = Figure(figsize=(13, 5.2), dpi=110, layout="constrained")
    figure.suptitle(
        f"A document of {LONG_DOCUMENT:,} tokens behind documents of {SHORT_DOCUMENT:,}, {HEADS} heads, on {WORKERS} SMs; "
        f"the work shared evenly is {made.bound:.0f} tiles"
    )
    left, right = figure.subplots(1, 2, sharey=True)
    end = 1.02 * max(natural.makespan, made.makespan)
    _bars(left, natural, np.zeros(len(costs), bool), "natural order", costs.max(), end)
    _bars(right, made.timeline, made.tiles[:, 5] != UNSPLIT, made.strategy, costs.max(), end)
    shades = ScalarMappable(Normalize(0, costs.max()), "viridis")
    figure.colorbar(shades, ax=(left, right), label="cost of a work tile, in full tiles", shrink=0.9)
    if (made.tiles[:, 5] != UNSPLIT).any():
        right.legend(handles=[Patch(facecolor=SPLIT, label="a piece of a row that was split over its keys")], loc="lower left")
    figure.savefig(path)


PICTURES: tuple[tuple[str, Callable[[Path], None]], ...] = (
    ("masks.png", masks),
    ("scores.png", scores),
    ("schedule.png", schedule),
)


def run(folder: Path) -> str:
    """Draws all of them into `folder`; returns the section's text."""
    folder.mkdir(parents=True, exist_ok=True)
    with tqdm(PICTURES, desc="pictures", unit="picture", disable=None) as bar:
        for name, draw in bar:
            bar.set_postfix_str(name)
            draw(folder / name)
    return "\n".join(f"{folder / name}" for name, _ in PICTURES)
