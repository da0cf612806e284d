"""Deletes synchronisation statements of the Hopper forward one at a time and looks whether the emulator sees it; run by
test_sm90_sensitivity.py in a process of its own. Arguments: the head dim, then "wide" for three warpgroups. Prints one JSON list,
a row a statement."""
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

warnings.simplefilter("ignore")
sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
DIM, WIDE = int(sys.argv[1]), "wide" in sys.argv
sys.argv = sys.argv[:1]  # the DSL parses the options of the process
import conftest  # noqa: E402, F401
from flexfa4 import emulator  # noqa: E402

emulator.prepare("sm_90a")
import torch  # noqa: E402

from flexfa4 import create_block_mask, mods  # noqa: E402
from flexfa4.emulator import sensitivity  # noqa: E402
from flexfa4.plan.build import sm90_tiles  # noqa: E402
from flexfa4.runtime import engine, kernels  # noqa: E402
from flexfa4.runtime.lists import make_lists  # noqa: E402
from flexfa4.trace import bind  # noqa: E402

torch.set_num_threads(1)
SCHEDULES = [(0, "late"), (1, "random"), (2, "late"), (5, "late"), (3, "late"), (8, "random")]
# (query length, key length, heads, scores that grow towards the first key, so that O is rescaled)
LAUNCHES = [(500, 510, 2, False), (500, 510, 2, True), (900, 300, 2, False)]


def record(q_len: int, kv_len: int, heads: int, grows: bool):
    """One causal launch on two CTAs, so that each walks several work items."""
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, heads, n, DIM, generator=g).bfloat16() for n in (q_len, kv_len, kv_len))
    if grows:
        k = (k.float() * torch.linspace(4, 0.25, kv_len)[:, None]).bfloat16()
    mask = mods.causal_bottom_right(q_len, kv_len)
    bounds, scale = [None, bind(mask, "mask"), None], DIM**-0.5
    plan = engine.choose("sm90", q, k, v, scale, bounds).plan
    if WIDE:
        plan = replace(plan, tiles=sm90_tiles(DIM, DIM, wide=True))
    spans = create_block_mask(mask, 1, heads, q_len, kv_len).work_spans(plan.q_tile, plan.tiles.kv_tile, plan.halves)
    with emulator.device("sm_90a", sms=2, completion="immediate") as dev:
        dev.recorded = []
        counter = torch.zeros(1, dtype=torch.int32)
        kernels.forward(plan, (q, k, v), scale, bounds, make_lists(spans, None), kernels.Crew(2, counter, dev.tensor))
    return dev.recorded[0]


if __name__ == "__main__":
    recorded = [record(*launch) for launch in LAUNCHES]
    assert len({launch.ptx for launch in recorded}) == 1, "launches of more than one kernel"
    ptx, judge, rows = recorded[0].ptx, sensitivity.Judge(recorded, SCHEDULES), []
    for site in sensitivity.sites(ptx):
        # Left out: setmaxnreg protects what PTX does not show.
        if site.kind == "setmaxnreg":
            continue
        verdict = judge(sensitivity.without(ptx, site), site)
        rows.append(dict(line=site.line, kind=site.kind, text=site.text[:100], how=verdict.how, executed=verdict.executed,
                         why=verdict.why))
    print(json.dumps(rows))
