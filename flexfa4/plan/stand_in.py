"""Which kernels compute what another one does: the same graphs, types and head dims in other tiles, with heads packed otherwise,
or with rows split over keys or not. Lengths, batches and numbers of heads choose among them for speed alone.

What never stands in: integers of 32 bits where a call needs 64 (the other way round is right and slower), places for heads that a
group does not fill evenly, and whatever another graph, type, head dim or `precise` compiles.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from flexfa4.ir import DType, Graph

from .budget import BudgetError
from .build import RowLayout, plan_forward
from .plan import PACKS, Plan
from .ranges import WIDE


@dataclass(frozen=True)
class Asked:
    """What a Plan was made for, but for the layout of its rows and its integers: arguments of `plan_forward`."""

    arch: str
    dtype: DType
    dims: tuple[int, int]
    graphs: tuple[Graph, ...]
    precise: bool


@lru_cache(maxsize=256)
def stand_ins(plan: Plan, asked: Asked, group: int) -> tuple[Plan, ...]:
    """Plans other than `plan` whose kernels compute its calls of `group` query heads a KV head, the nearest first. Those with
    `split` take whole rows too."""
    found = dict.fromkeys(replace(one, split=split, assume=assume)
                          for one in _layouts(asked, group)
                          for assume in dict.fromkeys((plan.assume, WIDE)) for split in (False, True))
    found.pop(plan, None)
    return tuple(sorted(found, key=lambda other: _distance(plan, other)))


def _layouts(asked: Asked, group: int) -> list[Plan]:
    found = []
    packs = [pack for pack in PACKS if group <= pack or group % pack == 0]
    pair, wide = asked.arch == "sm100", asked.arch == "sm90"
    for layout in (RowLayout(), RowLayout(short=True), RowLayout(pair=pair, wide=wide)):
        try:
            one = plan_forward(asked.arch, asked.dtype, *asked.dims, asked.graphs, layout, precise=asked.precise)
            for pack in packs:
                found.append(replace(one, pack=pack))
        except BudgetError:                # no such kernel exists, nor one of more places
            continue
    return found


def _distance(plan: Plan, other: Plan) -> tuple:
    """Rows that should be split gain most by it; then the tiles count, and the places for heads."""
    return (plan.split and not other.split, abs(plan.tiles.rows - other.tiles.rows), plan.tiles != other.tiles,
            abs(plan.pack.bit_length() - other.pack.bit_length()), plan.assume != other.assume, plan.split != other.split)
