"""The Blackwell forward in modelled time: clocks of a KV tile of both query tiles, and how much of the time both softmax
warpgroups are in their exponentials. Run by test_sm100_turns.py and benchmarks/sm100_turns.py in processes of its own: arguments
are the head dims of K and V, "plain" or "causal", columns after which turns are passed (0: none), and names of `SETS`. One work
item of 256 queries on one SM. Prints one JSON list, a row a set of assumptions."""
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

warnings.simplefilter("ignore")
sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
HEAD_DIM, HEAD_DIM_V, MASK, TURNS, *NAMES = sys.argv[1:]
sys.argv = sys.argv[:1]  # the DSL parses the options of the process
import conftest  # noqa: E402, F401
from flexfa4 import emulator  # noqa: E402

emulator.prepare("sm_100a")
import torch  # noqa: E402

from flexfa4 import create_block_mask, mods, reference  # noqa: E402
from flexfa4.emulator.clocks import table  # noqa: E402
from flexfa4.runtime import engine, kernels  # noqa: E402
from flexfa4.runtime.lists import NO_MASK, make_lists  # noqa: E402
from flexfa4.trace import bind  # noqa: E402

torch.set_num_threads(1)
ROWS, KEYS = 256, 2560
USUAL = emulator.BLACKWELL_CLOCKS
SETS = {
    "usual": USUAL,
    "slow": replace(USUAL, wake=60.0, table=table(tensor_latency=60.0, copy_latency=1200.0)),
    "fast": replace(USUAL, wake=15.0, table=table(tensor_latency=15.0, tensor_memory=0.25)),
    "half the queue": replace(USUAL, ahead=64.0),
}


def row(name: str) -> dict:
    dims = int(HEAD_DIM), int(HEAD_DIM_V)
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, d, generator=g).bfloat16() for n, d in ((ROWS, dims[0]), (KEYS, dims[0]), (KEYS, dims[1])))
    mask = mods.causal_bottom_right(ROWS, KEYS) if MASK == "causal" else None
    bounds, scale = [None, None if mask is None else bind(mask, "mask"), None], dims[0] ** -0.5
    plan = engine.choose("sm100", q, k, v, scale, bounds).plan
    plan = replace(plan, tiles=replace(plan.tiles, q_tiles=2, ctas=1, out_of_step=int(TURNS)))
    lists = NO_MASK
    if mask is not None:
        found = create_block_mask(mask, 1, 1, ROWS, KEYS)
        lists = make_lists(found.work_spans(plan.q_tile, plan.tiles.kv_tile, plan.halves), None)
    with emulator.device("sm_100a", sms=1, timing=SETS[name]) as device:
        out, _ = kernels.forward(plan, (q, k, v), scale, bounds, lists, kernels.Crew(1, None, device.tensor))
    want, _ = reference.attention(q, k, v, None, mask, scale)
    together = device.launches[0].timing.together()
    # The second warpgroup begins and ends half a tile after the first.
    tile = together.clocks / (KEYS / plan.tiles.kv_tile - 0.5)
    return dict(dims=dims, mask=MASK, turns=int(TURNS), set=name, tile=tile, share=together.share, busy=together.busy,
                length=together.length, error=(out.double() - want).abs().max().item(), largest=want.abs().max().item())


if __name__ == "__main__":
    print(json.dumps([row(name) for name in NAMES or SETS]))
