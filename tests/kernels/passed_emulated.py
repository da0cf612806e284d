"""How many products of a tile and a warpgroup the Hopper forward does at D=256 under masks of which the halves of its query tile
see different tiles, in the emulator; run by test_sm90.py. Prints a JSON object for each case."""
import json
import sys

sys.argv = [sys.argv[0], "sm90"]
import forward_emulated as emulated  # noqa: E402
import torch  # noqa: E402
from forward_emulated import Case  # noqa: E402

from flexfa4 import mods  # noqa: E402
from flexfa4.trace import bind  # noqa: E402

DIM, WARPS = 256, 4


def run(case: Case) -> dict:
    q, k, v = emulated.inputs(case)
    bounds = [None, bind(case.mask_mod, "mask"), None]
    plan = emulated.engine.choose("sm90", q, k, v, DIM**-0.5, bounds, False).plan
    lists, counter = emulated.lists_of(case, plan, q, k), torch.zeros(1, dtype=torch.int32)
    with emulated.places.emulator.device(emulated.ARCH, seed=1, completion="late", races=True) as dev:
        emulated.kernels.forward(plan, (q, k, v), DIM**-0.5, bounds, lists, emulated.kernels.Crew(2, counter, dev.tensor))
    products = sum(n for name, n in dev.launches[0].by_opcode().items() if name.startswith("wgmma.mma_async"))
    steps = WARPS * (DIM + plan.tiles.kv_tile) // 16
    return dict(case=case.name, tile=plan.tiles.kv_tile, tiles=products / steps, findings=dev.findings)


if __name__ == "__main__":
    lengths = dict(lengths=(640, 640), heads=(1, 1), dims=(DIM, DIM), ordered=True)
    labels = torch.zeros(640, dtype=torch.int64)
    masks = {"causal": mods.causal_mask, "document": mods.document_causal(labels)}
    print("\n" + json.dumps([run(Case(name, mask_mod=mask, **lengths)) for name, mask in masks.items()]))
