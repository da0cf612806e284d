"""Bytes that kernels of the Blackwell forward spill, as a JSON list; run by test_sm100_spills.py in a process of its own.
Arguments: HEAD_DIM:DTYPE:GRAPHS, the graphs names of the gallery, "gated" for an output graph, or roles of captured.py, with
spaces between."""
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

warnings.simplefilter("ignore")
sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
KERNELS, sys.argv = sys.argv[1:], sys.argv[:1]  # the DSL parses the options of the process
import captured  # noqa: E402
import conftest  # noqa: E402, F401
import torch  # noqa: E402

from flexfa4 import mods  # noqa: E402
from flexfa4.cli.machine_code import gallery_graphs  # noqa: E402
from flexfa4.emit.cubin import kernel_facts  # noqa: E402
from flexfa4.ir import DType  # noqa: E402
from flexfa4.plan import Signature, plan_forward  # noqa: E402
from flexfa4.runtime import compiler  # noqa: E402
from flexfa4.trace import bind  # noqa: E402

COLUMNS = torch.linspace(0.5, 1.0, 256)


def gated(out, lse, b, h, q, d):
    return out * COLUMNS[d] + 0.01 * lse * h


def graphs_of(names: list[str]) -> tuple:
    """A graph of each kind: of "causal alibi" the mask of the one and the edit of the other."""
    entries = [e for name in names for e in mods.GALLERY if e.name == name]
    found = {g.kind: g for e in entries for g in gallery_graphs(e)}
    for role in (r for r in captured.ROLES if r.__name__ in names):
        found |= {name[:-4]: bind(mod, name[:-4]).graph for name, mod in role(captured.numbers(torch.int32)).items()}
    if "gated" in names:
        found["out"] = bind(gated, "out").graph
    return tuple(found.values())


def spilled(dim: str, dtype: str, names: str) -> int:
    graphs = graphs_of(names.split())
    plan = plan_forward("sm100", DType(dtype), int(dim), int(dim), graphs)
    plan, masked = replace(plan, tiles=replace(plan.tiles, scheduler="counter")), bool(plan.mask)  # as on a GPU
    dense = (True,) * sum(len(g.captures) for g in graphs)
    (facts,) = kernel_facts(compiler.cubin(Signature(plan, masked, masked, True, dense, halved=masked and plan.halves)))
    return facts.frame_bytes


if __name__ == "__main__":
    print(json.dumps([spilled(*kernel.split(":")) for kernel in KERNELS]))
