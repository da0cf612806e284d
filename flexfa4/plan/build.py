"""From what is asked to a Plan: pad head dims, choose stages that fit, pack heads where it saves work."""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd

from flexfa4.facts.axes import axes
from flexfa4.facts.simplify import simplify
from flexfa4.ir import DType, Graph, Op
from flexfa4.ir.text import show

from .budget import BudgetError
from .forward import Sm90Forward, Sm100Forward, TiledForward
from .hoist import Level, level
from .plan import PACKS, Plan, heads_a_thread
from .ranges import WIDE, Assumptions
from .roofline import held_by_shared_memory

# K and V of the step in work and of the next: more only hides jitter. Of few rows there is little work to hide the loads behind.
MOST_STAGES = {False: 4, True: 6}
# A pair holds half a tile in a stage.
PAIR_STAGES = (6, 4)
# Of a thread of (softmax, correction, the other warps), by query tiles of a CTA: one has a warpgroup less to share them with.
SM100_REGISTERS = {2: (192, 80, 48), 1: (240, 152, 112)}
# Of two query tiles whose softmax has graphs to run: up to this head dim correction does with fewer, and nothing is spilled.
GRAPH_REGISTERS, GRAPH_REGISTERS_UP_TO = (200, 64, 48), 96


def pad(head_dim: int) -> int:
    """Head dims are padded with zeros to the tensor core's step of 16 (TMA fills them in)."""
    return -(-head_dim // 16) * 16


def sm100_tiles(head_dim: int, head_dim_v: int, short: bool = False) -> Sm100Forward:
    """As many stages as fit; the output over the queries only where two stages do not fit otherwise. One query tile for few
    rows (short), with more stages instead of the other one, and where two do not fit in tensor memory. Raises BudgetError for
    head dims that fit in no way, naming the sum."""
    for q_tiles in (1,) if short else (2, 1):
        for over_q in (False, True):
            for stages in range(MOST_STAGES[short], 1, -1):
                try:
                    return Sm100Forward(pad(head_dim), pad(head_dim_v), q_tiles=q_tiles, kv_stages=stages, out_over_q=over_q,
                                        software_exp=software_exp(head_dim), registers=SM100_REGISTERS[q_tiles])
                except BudgetError as error:
                    last = error
    raise last


def sm100_pair(head_dim: int, head_dim_v: int) -> Sm100Forward:
    """The tiles of a pair of CTAs, each as `sm100_tiles` has one alone. Raises BudgetError where no pair fits."""
    alone, (most, least) = sm100_tiles(head_dim, head_dim_v), PAIR_STAGES
    for over_q in (False, True):
        for stages in range(most, least - 1, -1):
            try:
                return replace(alone, ctas=2, kv_stages=stages, out_over_q=over_q)
            except BudgetError as error:
                last = error
    raise last


@lru_cache(maxsize=256)
def pair_pays(head_dim: int, head_dim_v: int) -> bool:
    """Whether calls of many rows take pairs of CTAs."""
    try:
        sm100_pair(head_dim, head_dim_v)
    except BudgetError:
        return False
    return held_by_shared_memory(sm100_tiles(head_dim, head_dim_v))


def software_exp(head_dim: int) -> int:
    """Of 16 exponentials, those on the FMA units: flash-attn-4 4.0.0b36's shares, which its authors tuned on a B200."""
    return 2 if head_dim <= 128 else 0


# Of 128 columns: the last exponentials fill the time until the other warp has seen that it is its turn.
TURN_COLUMNS = 120


def in_turns(head_dim: int, head_dim_v: int) -> bool:
    """Whether the two softmax warpgroups take turns at their exponentials. In modelled time (`benchmarks/sm100_turns.py`) a tile
    is then 5 to 10% faster at head dim 96; above, the order of products keeps them apart, and below it is not always faster."""
    return pad(head_dim) == pad(head_dim_v) == 96


# (stages of K and V, query tiles): with two or three query tiles where they fit.
_SM90_STAGES = ((2, 3), (2, 2), (2, 1))
# consumers, kv_tile, registers, own_p: three warpgroups of 64 rows where O is narrow enough for 160 registers a thread.
_SM90_CHOICES = ((3, 128, (160, 32), False), (2, 128, (240, 24), True), (2, 80, (240, 24), True), (1, 64, (256, 24), True))
# Up to D = 128, where a score takes special functions beside its exponential: a third warpgroup keeps their unit busy while the
# others wait for products, with as many keys a tile as its registers hold the scores of.
_SM90_SPECIAL = (3, 80, (160, 32), False)
# For long rows of other scores: the same for the tensor cores. Of short rows 192 together walk many keys that few of them see.
_SM90_WIDE = ((3, 96, (160, 32), False), (3, 80, (160, 32), False))
# For few rows: one warpgroup, so that the rows that no query has cost little, and stages to keep the memory busy.
_SM90_SHORT_CHOICES = ((1, 128, (256, 24), True), (1, 80, (256, 24), True), (1, 64, (256, 24), True))
_SM90_SHORT_STAGES = ((4, 1), (3, 1), (2, 1))


def sm90_tiles(head_dim: int, head_dim_v: int, short: bool = False, special: bool = False, wide: bool = False) -> Sm90Forward:
    """The widest choice whose fragments fit in registers and whose stages fit in shared memory, with as many of those as fit;
    BudgetError where none does. short: for few rows; special: `special_functions`; wide: `RowLayout.wide`."""
    dims, last = (pad(head_dim), pad(head_dim_v)), None
    for choice, stages in _sm90_choices(short, special, wide):
        consumers, kv_tile, registers, own_p = choice
        for kv_stages, q_stages in stages:
            try:
                return Sm90Forward(*dims, consumers, kv_tile, kv_stages, registers, q_stages, own_p=own_p)
            except BudgetError as error:
                last = error
    raise last


def _sm90_choices(short: bool, special: bool, wide: bool) -> list[tuple]:
    """(a choice, its stages), the best first."""
    if short:
        return [(choice, _SM90_SHORT_STAGES) for choice in _SM90_SHORT_CHOICES]
    widest, *others = ((choice, _SM90_STAGES) for choice in _SM90_CHOICES)
    if special:
        return [widest, (_SM90_SPECIAL, ((3, 2), *_SM90_STAGES)), *others]
    return [widest, *((choice, _SM90_STAGES) for choice in _SM90_WIDE if wide), *others]


def special_functions(graphs: tuple[Graph, ...]) -> bool:
    """Whether a score graph needs the unit of the special functions for every score, beside the exponential of the softmax."""
    scores = (axes(g.root) for g in graphs if g.kind == "score")
    return any(n.op in _SPECIAL and level(on) is Level.ELEMENT for found in scores for n, on in found.items())


_SPECIAL = frozenset({Op.DIV, Op.RECIPROCAL, Op.POW, Op.EXP, Op.EXP2, Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG10, Op.LOG1P, Op.SQRT,
                      Op.RSQRT, Op.TANH, Op.SIGMOID, Op.ERF, Op.SIN, Op.COS, Op.TAN})


def _tiles(arch: str, dims: tuple[int, int], short: bool, special: bool, wide: bool = False) -> Sm90Forward | Sm100Forward:
    return sm90_tiles(*dims, short, special, wide) if arch == "sm90" else sm100_tiles(*dims, short)


# Rows up to which the short tiles take a call: one work tile of each.
_SHORT_ROWS = {"sm100": 128, "sm90": 64}
# Work tiles of one CTA from which on an odd number of them is paired too: a CTA in 33 at most has no rows.
LONG_ROWS = 32
# What a work item costs beside its rows, in rows: its keys and values come from memory.
_ITEM_ROWS = 64


@dataclass(frozen=True)
class RowLayout:
    """How query rows are laid out in work tiles. pack: `Plan.pack`; short: one small work tile holds the rows of a head; pair:
    two CTAs work on a tile; wide: three warpgroups of a CTA do, on sm90, where two have the wider KV tile."""

    pack: int = 1
    short: bool = False
    pair: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Heads:
    """What of a call decides its RowLayout beside its length. group: query heads a KV head; masked, scored: it has such a graph;
    told_apart: the kinds of its graphs that depend on the head; special: `special_functions`."""

    group: int = 1
    masked: bool = False
    scored: bool = False
    told_apart: tuple[str, ...] = ()
    special: bool = False

    @staticmethod
    def of(group: int, graphs: tuple[Graph, ...]) -> "Heads":
        kinds = [g.kind for g in graphs]
        by_head = tuple(g.kind for g in graphs if g.uses(Op.H))
        return Heads(group, "mask" in kinds, "score" in kinds, by_head, special_functions(graphs))


@lru_cache(maxsize=4096)
def row_layout(arch: str, head_dim: int, head_dim_v: int, heads: Heads, q_len: int) -> RowLayout:
    """Heads share query tiles where that makes fewer rows: short queries fill a tile together. Under a mask also where it makes
    as many, because a tile then spans fewer queries, and fewer keys; not with a score graph, which costs more where the rows of a
    thread are neighbours (a bias of the distance reads half as much again on sm90). Pairs of CTAs: see `_unpaired`. BudgetError
    as `plan_forward`."""
    short_rows = _SHORT_ROWS[arch]

    def cost(places: int, tiles_of_rows: int) -> tuple[int, bool]:
        short = q_len * places <= short_rows
        rows = short_rows if short else _tiles(arch, (head_dim, head_dim_v), False, heads.special).rows
        return tiles_of_rows * -(-q_len * places // rows) * (rows + _ITEM_ROWS), short

    plain, short = cost(1, heads.group)
    pack = _places(arch, heads)
    if pack > 1:
        packed, packed_short = cost(pack, -(-heads.group // pack))
        # Less than an eighth of the rows is not worth another kernel.
        if packed <= plain and heads.masked and not heads.scored or 8 * packed <= 7 * plain:
            return RowLayout(pack, packed_short, not _unpaired(arch, (head_dim, head_dim_v), heads, q_len * pack))
    return RowLayout(1, short, not _unpaired(arch, (head_dim, head_dim_v), heads, q_len))


# What a row of a wide tile costs of one of the others where rows are long and fill their tiles: measured 0.93 to 0.95, with a
# score graph 0.95 to 0.99.
_WIDE_COST = {False: 0.95, True: 0.99}
# Head dims above this have one query tile in shared memory, and are slower with wide tiles.
_WIDE_UP_TO = 128
# Work tiles that run at once: SMs of an H100 SXM and of an H200.
_SM90_CTAS = 132


@lru_cache(maxsize=4096)
def wide_layout(layout: RowLayout, arch: str, dims: tuple[int, int], heads: Heads, q_len: int,
                batch_heads: int = 0) -> RowLayout:
    """The same with wide tiles, or as it is where they do not pay. batch_heads: heads of all batches, for calls without a mask,
    whose work tiles are all alike, so that a last round of few of them counts; 0 for those with one, which pay where rows are
    long too (`WIDE_KEYS`)."""
    if arch != "sm90" or layout.short or heads.special or max(map(pad, dims)) > _WIDE_UP_TO:
        return layout
    usual, wide = sm90_tiles(*dims), sm90_tiles(*dims, wide=True)
    tiles = {t.rows: -(-q_len * layout.pack // t.rows) for t in (usual, wide)}
    work = {rows: n * (batch_heads // min(heads.group, layout.pack)) for rows, n in tiles.items()}
    if not batch_heads:
        cost = {rows: n * rows for rows, n in tiles.items()}
    else:
        cost = {rows: -(-n // _SM90_CTAS) * rows for rows, n in work.items()}
        if work[usual.rows] < 2 * _SM90_CTAS:  # they are split where that fills the last round
            cost[usual.rows] = min(cost[usual.rows], work[usual.rows] / _SM90_CTAS * usual.rows)
    pays = wide.rows > usual.rows and _WIDE_COST[heads.scored] * cost[wide.rows] <= cost[usual.rows]
    return replace(layout, wide=True) if pays else layout


# Keys that a row sees on the average from which on masks take wide tiles: causal ones of 4,096 tokens, 2,100 keys, are 2% slower
# with them, those of 8,192 3% faster.
WIDE_KEYS = 3072


def _unpaired(arch: str, dims: tuple[int, int], heads: Heads, rows: int) -> str:
    """Why no pair of CTAs works on a tile of `rows`; empty where one does: where shared memory would hold a CTA up by itself, and
    nothing is wasted."""
    if arch != "sm100":
        return f"{arch} has no products of two CTAs"
    if not pair_pays(*dims):
        return f"at head dims {dims} K and V in shared memory are not what a CTA waits for"
    if heads.masked:
        return "under a mask each of two CTAs would walk what either sees"
    if heads.scored:
        return "with a score graph the softmax takes longest"
    singles = -(-rows // sm100_tiles(*dims).rows)
    if singles % 2 and singles < LONG_ROWS:
        return f"{singles} tiles of rows would leave half a pair without any"
    return ""


def unpaired(arch: str, head_dim: int, head_dim_v: int, heads: Heads, q_len: int) -> str:
    """Why `row_layout` gives each CTA its own work tile, in words; empty where two work on one."""
    layout = row_layout(arch, head_dim, head_dim_v, heads, q_len)
    return _unpaired(arch, (head_dim, head_dim_v), heads, q_len * layout.pack)


def _places(arch: str, heads: Heads) -> int:
    """The places a query tile has for the heads of a group: a power of two that holds them all, else one that divides them."""
    if heads.group == 1 or "mask" in heads.told_apart:
        return 1
    most = heads_a_thread(arch) if heads.told_apart else PACKS[-1]
    if heads.group <= most:
        return 1 << (heads.group - 1).bit_length()
    return gcd(heads.group, most)


def plan_forward(arch: str, dtype: DType, head_dim: int, head_dim_v: int, graphs: tuple[Graph, ...] = (),
                 layout: RowLayout = RowLayout(), lengths: tuple[int, int] = (1 << 20, 1 << 20), literals: tuple = (),
                 precise: bool = False) -> Plan:
    """The Plan of a forward call: `graphs` are its hooks (a score, mask or out graph each), `layout` that of its rows, `lengths`
    (q, kv) and `literals` the values of a call, which choose between narrow and wide integers, and are not kept. precise:
    `Plan.precise`. Raises BudgetError where no kernel fits."""
    if arch == "tiled":
        tiles = TiledForward()
    elif layout.pair:
        tiles = sm100_pair(head_dim, head_dim_v)
    else:
        tiles = _tiles(arch, (head_dim, head_dim_v), layout.short, special_functions(graphs), layout.wide)
    if precise and isinstance(tiles, Sm100Forward):
        tiles = replace(tiles, software_exp=0)
    if graphs and isinstance(tiles, Sm100Forward) and tiles.q_tiles == 2 and max(head_dim, head_dim_v) <= GRAPH_REGISTERS_UP_TO:
        tiles = replace(tiles, registers=GRAPH_REGISTERS)
    texts = {g.kind: show(simplify(g)) for g in graphs}
    # With a score graph the time between exponentials is another, and has not been looked at.
    if arch == "sm100" and tiles.q_tiles == 2 and "score" not in texts and in_turns(head_dim, head_dim_v):
        tiles = replace(tiles, out_of_step=TURN_COLUMNS)
    narrow = Assumptions()
    assume = narrow if narrow.holds(lengths, literals) else WIDE
    return Plan(arch, dtype, tiles, pack=layout.pack, precise=precise, assume=assume, **texts)
