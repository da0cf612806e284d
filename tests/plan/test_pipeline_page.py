"""docs/pipeline.md prints the Plan's tables as they are, and the kernel's roles use its barriers as the table says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from flexfa4.ir import DType
from flexfa4.plan import Role, Signal, plan_forward, show_reach, show_table
from flexfa4.plan.build import TURN_COLUMNS, sm100_pair

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "pipeline.md"
ROLES = {Role.LOAD: "load", Role.MMA: "mma", Role.SOFTMAX: "softmax", Role.CORRECTION: "correction", Role.STORE: "store"}


def maps(plan) -> str:
    """Tensor and shared memory, a row a piece."""
    tiles = plan.tiles
    lines = ["| tensor memory | columns | over |", "|---|---|---|"]
    lines += [f"| {r.name} | {r.first}-{r.end - 1} | {r.aliases} |" for r in tiles.tmem]
    lines += ["", "| shared memory | buffers | bytes each |", "|---|--:|--:|"]
    lines += [f"| {b.name} | {b.count} | {b.bytes:,} |" for b in tiles.smem]
    return "\n".join([*lines, f"| together | | {sum(b.total for b in tiles.smem):,} |"])


def dynamic(plan) -> str:
    """What a scheduler that is not static adds."""
    return show_table(b for b in replace(plan.tiles, scheduler="counter").barriers if b.name.startswith("work_"))


def pairs(plan) -> str:
    """Which barriers of a pair of CTAs reach the other one, with a scheduler that is not static."""
    tiles = sm100_pair(plan.tiles.head_dim, plan.tiles.head_dim_v)
    return show_reach(replace(tiles, scheduler="counter").barriers)


def turns(plan) -> str:
    """What softmax warps that take turns have beside the rest."""
    with_turns = replace(plan.tiles, out_of_step=TURN_COLUMNS).barriers
    return show_table(b for b in with_turns if b not in plan.tiles.barriers)


TEXTS = {"barriers": lambda p: show_table(p.tiles.barriers), "maps": maps, "dynamic": dynamic, "pairs": pairs, "turns": turns}


@pytest.mark.parametrize("name, text", TEXTS.items())
def test_the_page_prints_the_plan(name, text):
    printed = re.search(rf"<!-- {name}: begin .*? -->\n(.*?)<!-- {name}: end -->", PAGE.read_text(), re.S)[1].strip()
    wanted = text(plan_forward("sm100", DType.BF16, 128, 128))
    assert printed == wanted, f"put this between the marks of docs/pipeline.md:\n{wanted}"


@pytest.mark.parametrize("dims", [(128, 128), (192, 128), (96, 96)])
def test_roles_use_the_barriers_of_the_table(dims):
    """By their source: who waits is who the table says, and so is who announces."""
    waits, announces = {}, {}
    tiles = plan_forward("sm100", DType.BF16, *dims).tiles
    for role, module in ROLES.items():
        source = (ROOT / "flexfa4" / "kernels" / "sm100" / f"{module}.py").read_text()
        if not tiles.out_over_q:
            # Of store, load and correction: under const_expr(out_over_q).
            source = re.sub(r"barriers\.(q_empty\.arrive\(0\)|q_skipped\.)", "", source)
        else:
            source = source.replace("barriers.q_empty.commit(0)", "")  # of mma: under const_expr(not out_over_q)
        if not tiles.out_of_step:
            source = source.replace("barriers.exp_turn.", "")  # of softmax: under const_expr(out_of_step > 0)
        for name, use in re.findall(r"barriers\.(\w+)\.(\w+)\(", source):
            (waits if use == "wait" else announces).setdefault(name, set()).add(role)
    for barrier in tiles.barriers:
        assert waits.pop(barrier.name) == set(barrier.waited_on_by), barrier.name
        assert announces.pop(barrier.name) == set(barrier.signalled_by), barrier.name
    assert not waits and not announces


def test_every_scheduler_has_its_barriers():
    tiles = plan_forward("sm100", DType.BF16, 128, 128).tiles
    counts = {}
    for kind in ("static", "counter", "clc"):
        counts[kind] = {b.name: b.arrivals for b in replace(tiles, scheduler=kind).barriers}
    assert "work_full" not in counts["static"]
    # Three warps and three warpgroups read; who asks the hardware reads its answer too.
    assert (counts["counter"]["work_empty"], counts["clc"]["work_empty"]) == (15, 16)


def test_what_the_tensor_core_and_tma_announce_is_announced_so():
    """A commit for products, bytes for TMA, arrivals of warps for the rest."""
    verbs = {}
    for path in (ROOT / "flexfa4" / "kernels" / "sm100").glob("*.py"):
        for name, use in re.findall(r"barriers\.(\w+)\.(commit|expect|arrive)\(", path.read_text()):
            verbs.setdefault(name, set()).add(use)
    wanted = {Signal.COMMIT: {"commit"}, Signal.TMA: {"expect"}, Signal.WARPS: {"arrive"}}
    for barrier in plan_forward("sm100", DType.BF16, 128, 128).tiles.barriers:
        if barrier.name not in ("s_full", "q_empty"):  # s_full: committed in the block of its product; q_empty: either
            assert verbs[barrier.name] == wanted[barrier.signal], barrier.name
