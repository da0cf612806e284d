"""From what is asked to a Plan: pad head dims, choose stages that fit, pack heads where it saves work."""
from __future__ import annotations

from dataclasses import replace
from math import gcd

from flexfa4.facts.simplify import simplify
from flexfa4.ir import DType, Graph
from flexfa4.ir.text import show

from .budget import BudgetError
from .forward import Sm90Forward, Sm100Forward, TiledForward
from .plan import Plan
from .ranges import WIDE, Assumptions

MOST_STAGES = 4     # K and V of the step in work and of the next: more only hides jitter


def pad(head_dim: int) -> int:
    """Head dims are padded with zeros to the tensor core's step of 16 (TMA fills them in)."""
    return -(-head_dim // 16) * 16


def sm100_tiles(head_dim: int, head_dim_v: int) -> Sm100Forward:
    """As many stages as fit up to four; the output over the queries only where two stages do not fit otherwise. Raises
    BudgetError for head dims that fit in no way, naming the sum."""
    for over_q in (False, True):
        for stages in range(MOST_STAGES, 1, -1):
            try:
                return Sm100Forward(
                    pad(head_dim), pad(head_dim_v), kv_stages=stages, out_over_q=over_q, software_exp=software_exp(head_dim)
                )
            except BudgetError as error:
                last = error
    raise last


def software_exp(head_dim: int) -> int:
    """Of 16 exponentials, those on the FMA units: flash-attn-4 4.0.0b36's shares, which its authors tuned on a B200."""
    return 2 if head_dim <= 128 else 0


# consumers, kv_tile, registers, own_p: three warpgroups of 64 rows where O is narrow enough for 160 registers a thread.
_SM90_CHOICES = ((3, 128, (160, 32), False), (2, 128, (240, 24), True), (2, 80, (240, 24), True), (1, 64, (256, 24), True))


def sm90_tiles(head_dim: int, head_dim_v: int) -> Sm90Forward:
    """The widest choice whose fragments fit in registers and whose stages fit in shared memory, with two query tiles where they
    fit too; BudgetError where none does."""
    for consumers, kv_tile, registers, own_p in _SM90_CHOICES:
        for q_stages in (2, 1):
            try:
                return Sm90Forward(pad(head_dim), pad(head_dim_v), consumers, kv_tile, 2, registers, q_stages, own_p=own_p)
            except BudgetError as error:
                last = error
    raise last


def packed_heads(group: int, q_len: int, rows: int) -> int:
    """Query heads of a KV head to put into one query tile: as many as divide the tile, where one head leaves rows unused."""
    if q_len >= rows or group == 1:
        return 1
    return gcd(group, rows)


def plan_forward(arch: str, dtype: DType, head_dim: int, head_dim_v: int, graphs: tuple[Graph, ...] = (), group: int = 1,
                 lengths: tuple[int, int] = (1 << 20, 1 << 20), literals: tuple = ()) -> Plan:
    """The Plan of a forward call: `graphs` are its hooks (a score, mask or out graph each), `group` the query heads a KV head,
    `lengths` (q, kv) and `literals` the values of a call, which choose between narrow and wide integers and whether heads are
    packed, and are not kept. Raises BudgetError where no kernel fits."""
    tiles = {"sm100": lambda: sm100_tiles(head_dim, head_dim_v), "sm90": lambda: sm90_tiles(head_dim, head_dim_v),
             "tiled": TiledForward}[arch]()
    texts = {g.kind: show(simplify(g)) for g in graphs}
    narrow = Assumptions()
    plan = Plan(arch, dtype, tiles, assume=narrow if narrow.holds(lengths, literals) else WIDE, **texts)
    return replace(plan, pack=packed_heads(group, lengths[0], tiles.rows)) if arch != "tiled" else plan
