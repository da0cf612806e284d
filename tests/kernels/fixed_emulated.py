"""A kernel launched again and again with the same lists, whose spans are rebuilt in place for other labels in between, in the
emulator against dense float64 attention; run by the test beside it, in a process of its own.

Argument: the architecture. Prints one JSON list, a row for each launch as forward_emulated's."""
import json
import sys
from dataclasses import replace
from typing import Callable, NamedTuple

KERNEL = sys.argv[1]
import forward_emulated as emulated  # noqa: E402
import torch  # noqa: E402
from forward_emulated import Case  # noqa: E402

from flexfa4 import create_block_mask, emulator, mods, reference  # noqa: E402
from flexfa4.errors import ShapeError  # noqa: E402
from flexfa4.runtime import engine, kernels  # noqa: E402
from flexfa4.runtime.lists import fixed_lists  # noqa: E402


class Rebuilt(NamedTuple):
    """make: from labels to the mask. contents: what the labels are, launch by launch. crowded: with room for one run a row of
    tiles, which some contents overflow. pack: places for heads that the plan is to have, None for any."""

    case: Case
    make: Callable
    contents: list[torch.Tensor]
    crowded: bool = False
    pack: int | None = None


def cut(length: int, *ends: int) -> torch.Tensor:
    """Labels of documents that end at `ends` and at the length, in falling order."""
    return torch.bucketize(torch.arange(length), torch.tensor(ends), right=True).neg()


def again(labels: torch.Tensor) -> torch.Tensor:
    """The same documents, of which every third has the label of another."""
    return labels % 3


def by_head(labels: torch.Tensor) -> Callable:
    return lambda b, h, q, kv: (labels[b, q] == labels[b, kv]) & (q >= kv + h)


def window(limit: torch.Tensor) -> Callable:
    return lambda b, h, q, kv: (q + 250 >= kv) & (q + 250 - kv < limit)


LONG = [cut(700, 300, 301, 450), cut(700), again(cut(700, 60, 128, 131, 300, 640)), torch.arange(700) // 40]
CASES = [
    Rebuilt(Case("documents", (700, 700), (2, 1), (64, 64), workers=3), mods.document_causal, LONG),
    Rebuilt(Case("documents, one run a row", (700, 700), (2, 2), workers=2), mods.document_mask, LONG, True),
    Rebuilt(Case("of each batch and head", (300, 300), (4, 2), (64, 64), 2, workers=5), by_head,
            [torch.stack([cut(300, 100, 222), cut(300)]), torch.stack([cut(300, 7), cut(300, 256)])]),
    Rebuilt(Case("D=256", (700, 700), (1, 1), (256, 256), workers=2), mods.document_causal, LONG[:2]),
    Rebuilt(Case("packed heads", (20, 300), (8, 1), (64, 64), workers=2), window,
            [torch.tensor(300), torch.tensor(1), torch.tensor(0), torch.tensor(-5)], pack=8),
]


def run(entry: Rebuilt) -> list[dict]:
    case = entry.case
    labels = torch.empty_like(entry.contents[0])
    mask = create_block_mask(entry.make(labels.copy_(entry.contents[-1])), case.batch, case.heads[0], *case.lengths)
    q, k, v = emulated.inputs(case)
    scale, bounds = case.dims[0] ** -0.5, (None, mask.bound, None)
    plan = engine.choose(KERNEL, q, k, v, scale, bounds).plan
    assert entry.pack in (None, plan.pack), f"{case.name}: {plan.pack} places for heads"
    if KERNEL == "sm100":
        plan = replace(plan, tiles=replace(plan.tiles, scheduler="counter"))
    rows_of_tiles = mask.mask_shape[0] * mask.mask_shape[1] * -(-case.lengths[0] // plan.q_tile)
    fixed = mask.reserve(rows_of_tiles if entry.crowded else None)
    fixed.check_fresh()                # as `kept_spans` asks for
    spans = fixed.kept_spans(plan.q_tile, plan.tiles.kv_tile, plan.halves)
    lists, counter = fixed_lists(spans, plan, q, k), torch.zeros(1, dtype=torch.int32)
    rows, overflows = [], 0
    for i, content in enumerate(entry.contents):
        labels.copy_(content)
        fixed.check_fresh()
        try:
            fixed.check()
        except ShapeError:
            overflows += 1
        assert fixed_lists(fixed.kept_spans(plan.q_tile, plan.tiles.kv_tile, plan.halves), plan, q, k) is lists
        completion = emulated.COMPLETIONS[i % 3]
        with emulator.device(emulated.ARCH, seed=i, completion=completion, races=True) as dev:
            out, lse = kernels.forward(plan, (q, k, v), scale, bounds, lists, kernels.Crew(case.workers, counter, dev.tensor))
        out64, lse64 = reference.attention(q, k, v, None, mask.mask_mod, scale)
        rows.append(dict(case=case.name, findings=dev.findings, launches=len(dev.launches), half="bfloat16",
                         largest=reference.attention(q, k, v.abs(), None, mask.mask_mod, scale)[0].max().item(),
                         out=emulated.error(out, out64), lse=emulated.error(lse, lse64)))
    assert (overflows > 0) == entry.crowded, f"{case.name}: {overflows} overflows"
    assert kernels.compile_count() - COMPILED == CASES.index(entry) + 1, f"{case.name}: {kernels.compile_count()} kernels"
    return rows


if __name__ == "__main__":
    COMPILED = kernels.compile_count()
    print(json.dumps([row for entry in CASES for row in run(entry)]))
