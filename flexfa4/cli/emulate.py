"""`flexfa4 emulate`: the true kernel of a gallery mod on the CPU, against float64, with its tiles and a timeline."""

from __future__ import annotations

import sys
from argparse import Namespace
from importlib.util import find_spec

import torch

from .. import emulator, mods, reference
from ..errors import UnsupportedError
from ..schedule import make_schedule
from ..sparsity import create_block_mask
from ..sparsity.work_spans import WorkSpans
from ..trace import bind
from .inspect import tiles
from .target import TargetError, refuse_picture, writing

ARCHS = {"sm90": "sm_90a", "sm100": "sm_100a"}
CLOCKS = {"sm90": emulator.HOPPER_CLOCKS, "sm100": emulator.BLACKWELL_CLOCKS}
HEADS, KV_HEADS, HEAD_DIM = 2, 1, 64


def report(options: Namespace) -> str:
    """The text of `flexfa4 emulate`. Raises TargetError for a name that the gallery does not have or a picture that cannot be
    written, UnsupportedError where the compiler is missing or no kernel takes the mod, and what a launch raises."""
    entry = next((e for e in mods.GALLERY if e.name == options.name), None)
    if entry is None:
        raise TargetError(f"{options.name!r} is not in the gallery: {', '.join(sorted(e.name for e in mods.GALLERY))}")
    if options.out is not None:
        refuse_picture(options.out)
    if find_spec("cutlass") is None:
        raise UnsupportedError("kernels are compiled by nvidia-cutlass-dsl, which is not installed: pip install 'flexfa4[cuda]'")
    example = entry(seq_len=options.seq_len, heads=HEADS, kv_heads=KV_HEADS, batch=1)
    made = {name.removesuffix("_mod"): mod for name, mod in example.make().items() if name.endswith("_mod")}
    arguments, sys.argv = sys.argv, sys.argv[:1]  # the compiler parses the options of the process
    try:
        return _run(options, example, made)
    finally:
        sys.argv = arguments


def _run(options: Namespace, example, made: dict) -> str:
    arch = ARCHS[options.arch]
    emulator.prepare(arch)  # before the compiler is imported
    from ..runtime import engine, kernels
    from ..runtime.lists import NO_MASK, heads_of, make_lists, work_of

    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, length, HEAD_DIM, generator=generator).bfloat16() for heads, length in (
        (HEADS, example.q_len), (KV_HEADS, example.kv_len), (KV_HEADS, example.kv_len)))
    scale = HEAD_DIM**-0.5
    bounds = [None if made.get(kind) is None else bind(made[kind], kind) for kind in ("score", "mask", "out")]
    choice = engine.choose(options.arch, query, key, value, scale, bounds)
    if choice.plan is None:
        raise UnsupportedError(f"no kernel for {options.name} on {options.arch}: {choice.reason}")
    lists, parts = NO_MASK, []
    if made.get("mask") is not None:
        mask = create_block_mask(made["mask"], 1, HEADS, example.q_len, example.kv_len)
        at = choice.plan.q_tile, choice.plan.tiles.kv_tile
        spans, schedule = mask.work_spans(*at, choice.plan.halves) if choice.plan.places_work else mask.spans(*at), None
        if isinstance(spans, WorkSpans):
            schedule = make_schedule(work_of(spans, heads_of(choice.plan, query, key)), workers=1, split=False)
        lists = make_lists(spans, schedule)
        parts.append(tiles(mask))
    want, want_lse = reference.attention(query, key, value, made.get("score"), made.get("mask"), scale, made.get("out"))
    order = dict(timing=CLOCKS[options.arch]) if options.timeline else dict(seed=options.seed, completion=options.completion)
    with emulator.device(arch, races=True, trace=True, **order) as device:
        crew = kernels.Crew(kernels.work_items(choice.plan, query, key, lists), None, device.tensor)
        out, lse = kernels.forward(choice.plan, (query, key, value), scale, bounds, lists, crew)
    launch = device.launches[0]
    parts = [
        f"{options.name} on {arch}: {launch.grid[0] * launch.grid[1] * launch.grid[2]} CTAs of {launch.block[0]} threads, "
        f"{launch.warp_instructions} warp-instructions, "
        + (f"in modelled time of {launch.timing.clocks} clocks" if options.timeline
           else f"seed {options.seed}, completion {options.completion}"),
        f"largest error against float64: out {_error(out, want):.1e} (largest value {want.abs().max():.2f}), "
        f"logarithm {_error(lse, want_lse):.1e}",
        "reports: " + ("; ".join(f"{kind}: {text}" for kind, text in device.findings) or "none"),
        *parts,
        timeline(launch.timing) if options.timeline else launch.trace.text(0),
    ]
    if options.out is not None:
        with writing(options.out):
            (launch.timing if options.timeline else launch.trace).draw(options.out)
        parts.append(f"Drawn: {options.out}")
    return "\n\n".join(parts)


def timeline(line: emulator.Timeline) -> str:
    """In clocks, and how far apart two warpgroups keep their exponentials."""
    together = line.together()
    return line.text() if together is None else f"{line.text()}\n\nexponentials (E): {together}"


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest absolute error; NaN or a differing infinity gives infinity."""
    got, want = got.double(), want.double()
    difference = (got - want).abs().masked_fill(got == want, 0.0)
    return float("inf") if difference.isnan().any() else difference.max().item()
