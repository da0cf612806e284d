"""`flexfa4 emulate`: the true kernel of a mod on the CPU, against float64, with its tiles and a timeline."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Callable, NamedTuple

import torch

from .. import emulator, reference
from ..api import flex_attention
from ..errors import ShapeError, UnsupportedError
from ..schedule import make_schedule
from ..sparsity import create_block_mask
from ..sparsity.work_spans import WorkSpans
from ..trace import bind
from . import info, target
from .inspect import TILE, tiles
from .target import refuse_picture, writing

ARCHS = {"sm90": "sm_90a", "sm100": "sm_100a"}
CLOCKS = {"sm90": emulator.HOPPER_CLOCKS, "sm100": emulator.BLACKWELL_CLOCKS}
HEADS, KV_HEADS, HEAD_DIM = 2, 1, 64
# 512 MiB in float64.
MOST_SCORES = 2**26


class Call(NamedTuple):
    """Mods by kind, their name, and the lengths they are run at."""

    name: str
    mods: dict[str, Callable]
    q_len: int
    kv_len: int


def report(options: Namespace) -> str:
    """The text of `flexfa4 emulate`. Raises TargetError for a name that the gallery does not have, a file without such a mod, or
    a picture that cannot be written, ShapeError for lengths beyond the reference, UnsupportedError where the compiler is missing
    or no kernel takes the mod, what tracing raises, and what a launch raises."""
    found = target.find(options.name, options.kind, seq_len=options.seq_len, heads=HEADS, kv_heads=KV_HEADS, batch=1)
    q_len = options.seq_len if found.example is None else found.example.q_len
    call = Call(found.name, found.mods, q_len, options.seq_len)
    if HEADS * q_len * options.seq_len > MOST_SCORES:
        raise ShapeError(f"--seq-len {options.seq_len}: {HEADS} heads of {q_len} queries and {options.seq_len} keys have more "
                         f"scores than the dense float64 reference takes, {MOST_SCORES:,}")
    if options.out is not None:
        refuse_picture(options.out)
    if missing := info.missing_of_compiler():
        raise UnsupportedError(f"kernels are compiled with {missing}, which is not installed: pip install 'flexfa4[cuda]'")
    arguments, sys.argv = sys.argv, sys.argv[:1]  # the compiler parses the options of the process
    try:
        return _run(options, call)
    finally:
        sys.argv = arguments


def _run(options: Namespace, call: Call) -> str:
    arch = ARCHS[options.arch]
    emulator.prepare(arch)  # before the compiler is imported
    from ..runtime import engine, kernels
    from ..runtime.lists import NO_MASK, heads_of, make_lists, work_of

    generator, made = torch.Generator().manual_seed(0), call.mods
    query, key, value = (torch.randn(1, heads, length, HEAD_DIM, generator=generator).bfloat16() for heads, length in (
        (HEADS, call.q_len), (KV_HEADS, call.kv_len), (KV_HEADS, call.kv_len)))
    scale = HEAD_DIM**-0.5
    bounds = [None if made.get(kind) is None else bind(made[kind], kind) for kind in ("score", "mask", "out")]
    choice = engine.choose(options.arch, query, key, value, scale, bounds)
    if choice.plan is None:
        raise UnsupportedError(f"no kernel for {call.name} on {options.arch}: {choice.reason}")
    lists, count = NO_MASK, -(-call.q_len // TILE) * -(-call.kv_len // TILE)
    parts = [f"{call.q_len:,} queries x {call.kv_len:,} keys in tiles of {TILE} x {TILE}: no mask, all {count:,} are computed"]
    if "mask" in made:
        mask = create_block_mask(made["mask"], 1, HEADS, call.q_len, call.kv_len)
        at = choice.plan.q_tile, choice.plan.tiles.kv_tile
        spans, schedule = mask.work_spans(*at, choice.plan.halves) if choice.plan.places_work else mask.spans(*at), None
        if isinstance(spans, WorkSpans):
            schedule = make_schedule(work_of(spans, heads_of(choice.plan, query, key)), workers=1, split=False)
        lists = make_lists(spans, schedule)
        parts = [tiles(mask)]
    want, want_lse = _exact((query, key, value), made)
    order = dict(timing=CLOCKS[options.arch]) if options.timeline else dict(seed=options.seed, completion=options.completion)
    with emulator.device(arch, races=True, trace=True, **order) as device:
        crew = kernels.Crew(kernels.work_items(choice.plan, query, key, lists), None, device.tensor)
        out, lse = kernels.forward(choice.plan, (query, key, value), scale, bounds, lists, crew)
    launch = device.launches[0]
    parts = [
        f"{call.name} on {arch}: {launch.grid[0] * launch.grid[1] * launch.grid[2]} CTAs of {launch.block[0]} threads, "
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


def _exact(tensors: tuple[torch.Tensor, ...], made: dict[str, Callable]) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) in float64. Raises LookupOutOfRange."""
    try:
        return reference.attention(*tensors, *(made.get(kind) for kind in ("score", "mask")), out_mod=made.get("out"))
    except IndexError:
        # A look-up past the end of a table, which plain Python makes at positions that the result does not depend on too.
        named = {f"{kind}_mod": mod for kind, mod in made.items()}
        return flex_attention(*[t.double() for t in tensors], **named, enable_gqa=True, return_lse=True)


def timeline(line: emulator.Timeline) -> str:
    """In clocks, and how far apart two warpgroups keep their exponentials."""
    together = line.together()
    return line.text() if together is None else f"{line.text()}\n\nexponentials (E): {together}"


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest absolute error; NaN or a differing infinity gives infinity."""
    got, want = got.double(), want.double()
    difference = (got - want).abs().masked_fill(got == want, 0.0)
    return float("inf") if difference.isnan().any() else difference.max().item()
