"""Deletes synchronisation statements of the Blackwell forward one at a time and looks whether the emulator sees it; run by
test_sm100_sensitivity.py in a process of its own. Arguments, a kernel each: the words of `Kernel` with spaces between them.
Prints one JSON object: the rows of each kernel, one a statement."""
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

warnings.simplefilter("ignore")
sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
WANTED = sys.argv[1:]
sys.argv = sys.argv[:1]  # the DSL parses the options of the process
import conftest  # noqa: E402, F401
from flexfa4 import emulator  # noqa: E402

emulator.prepare("sm_100a")
import torch  # noqa: E402

from flexfa4 import create_block_mask, mods  # noqa: E402
from flexfa4.emulator import sensitivity  # noqa: E402
from flexfa4.plan.build import sm100_pair  # noqa: E402
from flexfa4.runtime import engine, kernels  # noqa: E402
from flexfa4.runtime.lists import make_lists  # noqa: E402
from flexfa4.trace import bind  # noqa: E402

torch.set_num_threads(1)
SCHEDULES = [(0, "late"), (1, "random"), (2, "late"), (5, "late"), (3, "late"), (8, "random")]


class Kernel(NamedTuple):
    """dims: of K and V. ctas: how many work together. more: "halves" for spans that tell the two query tiles apart, "bias" for a
    bias of the distance, which is read from a table, "turns" for softmax warps that take turns, "rest" for the statements that
    the test leaves out."""

    scheduler: str
    dims: tuple[int, int]
    ctas: int
    more: tuple[str, ...]

    @classmethod
    def of(cls, words: str):
        scheduler, dim, dim_v, ctas, *more = words.split()
        return cls(scheduler, (int(dim), int(dim_v)), int(ctas), tuple(more))


def launches(kernel: Kernel) -> list[tuple]:
    """(query length, key length, heads, scores that grow from key to key, so that O is rescaled)"""
    q_len = 512 * kernel.ctas
    found = [(q_len, 500, 3, False), (q_len, 500, 3, True), (q_len, 300, 3, False)]
    # With the output over the queries: work items without tiles, also one after the other.
    return found + [(1100 * kernel.ctas, 300, 2, False)] * (kernel.dims == (192, 128))


def record(kernel: Kernel, q_len: int, kv_len: int, heads: int, grows: bool):
    """One causal launch on two CTAs, or pairs, so that each walks several work items."""
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, heads, n, d, generator=g).bfloat16()
               for n, d in ((q_len, kernel.dims[0]), (kv_len, kernel.dims[0]), (kv_len, kernel.dims[1])))
    if grows:
        k = (k.float() * torch.linspace(0.25, 4, kv_len)[:, None]).bfloat16()
    mask = mods.causal_bottom_right(q_len, kv_len)
    bias = mods.learned_relative_bias(torch.randn(heads, 2 * 200 + 1, generator=g))
    bounds = [bind(bias, "score") if "bias" in kernel.more else None, bind(mask, "mask"), None]
    scale = kernel.dims[0] ** -0.5
    plan = engine.choose("sm100", q, k, v, scale, bounds).plan
    tiles = plan.tiles if kernel.ctas == 1 else sm100_pair(*kernel.dims)
    out_of_step = 120 if "turns" in kernel.more else 0
    plan = replace(plan, tiles=replace(tiles, scheduler=kernel.scheduler, out_of_step=out_of_step))
    blocks = create_block_mask(mask, 1, heads, q_len, kv_len)
    spans = blocks.work_spans(plan.q_tile, plan.tiles.kv_tile, "halves" in kernel.more)
    with emulator.device("sm_100a", sms=2 * kernel.ctas, completion="immediate") as dev:
        dev.recorded = []
        lists = make_lists(spans, None)
        counter = torch.zeros(1, dtype=torch.int32) if kernel.scheduler == "counter" else None
        workers = kernels.work_items(plan, q, k, lists) if kernel.scheduler == "clc" else 2
        kernels.forward(plan, (q, k, v), scale, bounds, lists, kernels.Crew(workers, counter, dev.tensor))
    return dev.recorded[0]


def verdicts(kernel: Kernel) -> list[dict]:
    recorded = [record(kernel, *launch) for launch in launches(kernel)]
    assert len({launch.ptx for launch in recorded}) == 1, "launches of more than one kernel"
    ptx, judge, rows = recorded[0].ptx, sensitivity.Judge(recorded, SCHEDULES), []
    for site in sensitivity.sites(ptx):
        # docs/pipeline.md says how many of those that are left out are seen, and why the others are not.
        left = site.kind in ("setmaxnreg", "tcgen05.wait::ld") or "tcgen05.fence" in site.text or "bar.warp" in site.text
        if left is not ("rest" in kernel.more):
            continue
        verdict = judge(sensitivity.without(ptx, site), site)
        rows.append(dict(line=site.line, kind=site.kind, text=site.text[:100], how=verdict.how, executed=verdict.executed,
                         strict=verdict.strict, why=verdict.why))
    return rows


if __name__ == "__main__":
    print(json.dumps({words: verdicts(Kernel.of(words)) for words in WANTED}))
