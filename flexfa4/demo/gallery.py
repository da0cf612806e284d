"""The gallery in numbers: for each mod its tiles at 16,384 tokens, its errors at a small ragged size, its schedule on 148 SMs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from tqdm import tqdm

from .. import reference
from ..api import flex_attention
from ..mods import GALLERY, Example
from ..schedule import CostModel, Work, lower_bound, make_schedule, makespan, natural_order, section_kv_heads
from ..sparsity import Kind, Spans, create_block_mask
from .checks import Checks
from .table import render
from .tiles import wrong

LONG = dict(seq_len=16384, heads=16, batch=1, kv_heads=4, head_dim=128)
SHORT = dict(seq_len=320, heads=4, batch=2, kv_heads=2, head_dim=16)  # 2.5 tiles of 128
TILE, SHORT_TILE = 128, 32
WORKERS = 148  # SMs of a B200
FLOAT32_BAR = 2e-5  # relative to the largest value of the reference
FLOAT64_BAR = 1e-11
TENSORS = ("out", "dq", "dk", "dv")


def everything(b, h, q, kv):
    """The mask of mods that have none."""
    return q >= 0


def spans_of(example: Example) -> tuple[Spans, float]:
    """Spans at TILE of the example's mask, and the seconds that tracing and building took, the first time."""
    mask_mod = example.make()["mask_mod"] or everything
    began = time.perf_counter()
    mask = create_block_mask(mask_mod, example.batch, example.heads, example.q_len, example.kv_len)
    spans = mask.spans(TILE, TILE)
    return spans, time.perf_counter() - began


def schedule_ratios(example: Example, spans: Spans) -> tuple[float, float]:
    """Makespan over the lower bound (work shared evenly): in the natural order, and as scheduled."""
    work = Work(spans.row_ptr.numpy(), spans.runs.numpy(), example.batch, example.heads, example.kv_heads, spans.Bm, spans.Hm)
    costs = work.costs(CostModel())
    bound = lower_bound(costs, WORKERS, splittable=True)
    section = section_kv_heads(example.kv_len, example.head_dim, example.head_dim, itemsize=2)
    return makespan(costs[natural_order(work)], WORKERS) / bound, make_schedule(work, WORKERS, section).makespan / bound


def inputs(example: Example, dtype: torch.dtype) -> list[torch.Tensor]:
    """q, k, v and the gradient of the output: the same numbers in every dtype, all exact in float32."""
    generator = torch.Generator().manual_seed(0)
    shapes = (example.q_shape, example.kv_shape, example.kv_shape, example.q_shape)
    q, k, v, d_out = (torch.randn(s, generator=generator).to(dtype) for s in shapes)
    return [q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), d_out]


def _results(example: Example, dtype: torch.dtype, attend) -> dict[str, torch.Tensor]:
    q, k, v, d_out = inputs(example, dtype)
    entry = example.make(dtype=dtype)
    out = attend(q, k, v, entry)
    out.backward(d_out)
    return dict(
        out=out.detach(), dq=q.grad, dk=k.grad, dv=v.grad, **{f"d{name}": t.grad for name, t in entry["captures"].items()}
    )


def _ours(q, k, v, entry):
    mask_mod = entry["mask_mod"]
    mask = None if mask_mod is None else create_block_mask(mask_mod, q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return flex_attention(q, k, v, entry["score_mod"], mask, enable_gqa=True, out_mod=entry["out_mod"])


def _reference(q, k, v, entry):
    return reference.attention(q, k, v, entry["score_mod"], entry["mask_mod"], out_mod=entry["out_mod"])[0]


def errors(example: Example) -> tuple[dict[str, float], dict[str, float]]:
    """max |ours - reference| / max |reference| of the output and of each gradient, ours computed in float32 and in float64."""
    expected = _results(example, torch.float64, _reference)
    single, double = (_results(example, dtype, _ours) for dtype in (torch.float32, torch.float64))

    def relative(got: dict[str, torch.Tensor]) -> dict[str, float]:
        return {name: ((got[name].double() - e).abs().max() / e.abs().max()).item() for name, e in expected.items()}

    return relative(single), relative(double)


@dataclass(frozen=True)
class Row:
    """What the table says of one mod. `single` and `double` are the errors of the float32 and the float64 engine; `wrong_tiles`
    counts tiles of a wrong kind; `natural` and `scheduled` are makespans over the work shared evenly."""

    name: str
    spans: Spans
    build_seconds: float
    single: dict[str, float]
    double: dict[str, float]
    wrong_tiles: int
    natural: float
    scheduled: float

    def cells(self) -> tuple[str, ...]:
        counts = self.spans.counts()
        captured = [f"{name} {e:.0e}" for name, e in self.single.items() if name not in TENSORS]
        return (
            self.name,
            *(f"{counts[k]:,}" for k in (Kind.FULL, Kind.PARTIAL, Kind.EMPTY)),
            f"{len(self.spans.runs):,}",
            f"{self.build_seconds * 1e3:.1f}",
            *(f"{self.single[t]:.0e}" for t in TENSORS),
            ", ".join(captured) or "-",
            f"{self.natural:.2f}",
            f"{self.scheduled:.2f}",
        )


HEADERS = ("mod", "full", "partial", "empty", "spans", "build ms", *TENSORS, "captured", "natural", "LPT")


def examine(example: Example) -> Row:
    """Everything the table says of one mod."""
    short, long = example(**SHORT), example(**LONG)
    spans, seconds = spans_of(long)
    natural, scheduled = schedule_ratios(long, spans)
    single, double = errors(short)
    return Row(example.name, spans, seconds, single, double, wrong_tiles(short), natural, scheduled)


def wrong_tiles(example: Example) -> int:
    """Tiles of SHORT_TILE whose kind is not that of the mask evaluated element by element; 0 for a mod without a mask."""
    mask_mod = example.make()["mask_mod"]
    if mask_mod is None:
        return 0
    spans = create_block_mask(mask_mod, example.batch, example.heads, example.q_len, example.kv_len).spans(SHORT_TILE, SHORT_TILE)
    return wrong(spans, reference.dense_mask(mask_mod, (spans.Bm, spans.Hm, example.q_len, example.kv_len)))


def judge(rows: list[Row], checks: Checks) -> None:
    """One check a kind of number, on the worst mod, which it names."""
    for name, bar, value in (
        ("float32 errors", FLOAT32_BAR, lambda row: list(row.single.values())),
        ("float64 errors", FLOAT64_BAR, lambda row: list(row.double.values())),
        ("wrong tiles", 0, lambda row: [row.wrong_tiles]),
        ("schedule over natural order", 1, lambda row: [row.scheduled / row.natural]),
    ):
        # torch's max, unlike Python's, keeps a NaN.
        worst = torch.stack([torch.tensor(value(row), dtype=torch.float64).max() for row in rows])
        checks.at_most(f"gallery: {name}, worst of {len(rows)} ({rows[int(worst.argmax())].name})", worst.max().item(), bar)


def run(checks: Checks) -> str:
    """The whole section; returns its text."""
    rows = []
    with tqdm(GALLERY, desc="gallery", unit="mod", disable=None) as bar:
        for example in bar:
            bar.set_postfix_str(example.name)
            rows.append(examine(example))
    judge(rows, checks)
    return (
        f"Tiles of {TILE} x {TILE} at {LONG['seq_len']:,} tokens ({LONG['heads']} heads; per batch and head only where the mask "
        f"depends on them), time of tracing and building;\nerrors of output and gradients at {SHORT['seq_len']} tokens, float32 "
        f"against the dense float64 reference, relative to its largest value;\nwhen the last of {WORKERS} SMs is done "
        f"(the makespan), over the time if all work were shared evenly, which no schedule beats: in the natural order, head by "
        f"head, and longest first with long rows split over their keys.\n\n" + render(HEADERS, [row.cells() for row in rows])
    )
