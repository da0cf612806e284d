"""The barriers of each pipeline as data: named by what has become true, who says so, who waits, and how many arrivals complete
a phase. Kernels create their mbarriers from these tables, documents print them, and a deadlock is reported in these words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Iterable

from .budget import WARPS_PER_GROUP, require


class Role(Enum):
    """The warp roles. SOFTMAX is one warpgroup a query tile; PRODUCER and CONSUMER are the roles of sm90."""

    LOAD = "load"
    MMA = "mma"
    SOFTMAX = "softmax"
    CORRECTION = "correction"
    STORE = "store"
    SCHEDULER = "scheduler"
    PRODUCER = "producer"
    CONSUMER = "consumer"


class Signal(Enum):
    """How an arrival is made: by the byte count of TMA (or of an answer of cluster launch control), by a commit of the tensor
    core, or by threads (one for each warp)."""

    TMA = "tma"
    COMMIT = "commit"
    WARPS = "warps"


class Reach(Enum):
    """Of a pair of CTAs, whose mbarrier an announcement arrives at: that of the CTA that announces, the first CTA's, or both. A
    CTA waits on its own."""

    OWN = "own"
    FIRST = "first"
    BOTH = "both"


@dataclass(frozen=True)
class Barrier:
    """`count` mbarriers (stages of a ring, or one a query tile) that complete after `arrivals`; `reach`: of a pair of CTAs."""

    name: str
    signalled_by: tuple[Role, ...]
    waited_on_by: tuple[Role, ...]
    signal: Signal
    arrivals: int
    count: int
    meaning: str
    reach: Reach = Reach.OWN

    def __post_init__(self):
        require(
            self.arrivals >= 1 and self.count >= 1, f"barrier {self.name}: {self.arrivals=} and {self.count=} must be positive"
        )
        require(
            self.signal is Signal.WARPS or self.arrivals == 1,
            f"barrier {self.name}: {self.signal.value} arrives once, not {self.arrivals} times",
        )


def check_table(barriers: Iterable[Barrier], roles: Iterable[Role]) -> int:
    """Number of mbarriers. Names are unique, every role of the kernel that is named exists, and what fills also empties."""
    barriers, roles = tuple(barriers), frozenset(roles)
    names = [b.name for b in barriers]
    require(len(set(names)) == len(names), f"two barriers of one name in {names}")
    for b in barriers:
        strangers = {*b.signalled_by, *b.waited_on_by} - roles
        require(not strangers, f"barrier {b.name} names {sorted(r.value for r in strangers)}, which the kernel does not have")
        if b.name.endswith("_empty"):
            require(b.name[:-5] + "full" in names, f"barrier {b.name} has no {b.name[:-5]}full")
    return sum(b.count for b in barriers)


def show_table(barriers: Iterable[Barrier]) -> str:
    """The table in Markdown."""
    lines = ["| barrier | count | signalled by | arrivals | waited on by | what is true then |", "|---|--:|---|---|---|---|"]
    for b in barriers:
        by, to = (", ".join(r.value for r in side) for side in (b.signalled_by, b.waited_on_by))
        lines.append(f"| `{b.name}` | {b.count} | {by} | {b.arrivals} ({b.signal.value}) | {to} | {b.meaning} |")
    return "\n".join(lines)


def show_reach(barriers: Iterable[Barrier]) -> str:
    """In Markdown: which of them reach the other CTA of a pair, and the arrivals that make them."""
    lines = ["| barrier | of the CTA | arrivals |", "|---|---|---|"]
    reaching = (b for b in barriers if b.reach is not Reach.OWN)
    return "\n".join([*lines, *(f"| `{b.name}` | {b.reach.value} | {b.arrivals} ({b.signal.value}) |" for b in reaching)])


def sm100_forward_barriers(
    q_tiles: int, kv_stages: int, early_p: bool, out_over_q: bool, scheduler: str, ctas: int = 1, out_of_step: bool = False
) -> tuple[Barrier, ...]:
    """FlashAttention-4's forward pipeline. P takes the place of S in tensor memory; that S may be overwritten by the next
    product follows from p_ready: the same thread issues both products, and they complete in order. ctas: 2 for a pair, whose
    products are issued by the first CTA."""
    load, mma, softmax, correction, store = Role.LOAD, Role.MMA, Role.SOFTMAX, Role.CORRECTION, Role.STORE
    group = WARPS_PER_GROUP
    if out_over_q:
        q_empty = Barrier(
            "q_empty", (store,), (load,), Signal.WARPS, q_tiles, 1, "the output in the query tiles' place has been read by TMA"
        )
    else:
        q_empty = Barrier("q_empty", (mma,), (load,), Signal.COMMIT, 1, 1, "no product reads the query tiles any more")
    table = [
        Barrier("q_full", (load,), (mma,), Signal.TMA, 1, q_tiles, "the query tile is in shared memory"),
        q_empty,
        Barrier("kv_full", (load,), (mma,), Signal.TMA, 1, kv_stages, "a K or V tile is in its stage of the ring"),
        Barrier("kv_empty", (mma,), (load,), Signal.COMMIT, 1, kv_stages, "the product that read the stage is done"),
        Barrier("s_full", (mma,), (softmax,), Signal.COMMIT, 1, q_tiles, "S = Q K^T is in tensor memory"),
        Barrier(
            "p_ready",
            (softmax, correction),
            (mma,),
            Signal.WARPS,
            2 * group,
            q_tiles,
            "the first part of P is in tensor memory and O is rescaled",
        ),
        Barrier(
            "scale_full",
            (softmax,),
            (correction,),
            Signal.WARPS,
            group,
            q_tiles,
            "the factor for O (at the end: row sum and maximum) is in shared memory",
        ),
        Barrier("scale_empty", (correction,), (softmax,), Signal.WARPS, group, q_tiles, "the factor has been read"),
        Barrier("o_full", (mma,), (correction,), Signal.COMMIT, 1, q_tiles, "O holds the sum over all keys so far"),
        Barrier(
            "out_full", (correction,), (store,), Signal.WARPS, group, q_tiles, "the normalised output tile is in shared memory"
        ),
        Barrier("out_empty", (store,), (correction,), Signal.WARPS, 1, q_tiles, "the output tile has been read by TMA"),
        Barrier(
            "tmem_free",
            (correction, softmax),
            (mma,),
            Signal.WARPS,
            group * (1 + q_tiles),
            1,
            "nobody reads tensor memory any more",
        ),
    ]
    if out_over_q:
        skipped = "the load warp knows that the query tiles' place holds no queries of a work item, which has no tiles"
        table.insert(2, Barrier("q_skipped", (load,), (correction,), Signal.WARPS, 1, 1, skipped))
    if early_p:
        table.insert(6, Barrier("p_full", (softmax,), (mma,), Signal.WARPS, group, q_tiles, "the rest of P is in tensor memory"))
    if out_of_step:
        ended = "the exponentials of the other query tile's warp on the same quarter of the SM have ended"
        table.insert(5, Barrier("exp_turn", (softmax,), (softmax,), Signal.WARPS, 1, group * q_tiles, ended))
    if scheduler != "static":
        asked = scheduler == "clc"
        # Who asks the hardware reads its answer too.
        readers = (load, mma, softmax, correction, store, *((Role.SCHEDULER,) if asked else ()))
        warps = 3 + group * (1 + q_tiles) + asked
        table += [
            Barrier("work_full", (Role.SCHEDULER,), readers, Signal.TMA if asked else Signal.WARPS, 1, 1,
                    "the index of the next work item is in shared memory"),
            Barrier("work_empty", readers, (Role.SCHEDULER,), Signal.WARPS, warps, 1, "every role has read the index"),
        ]
    return tuple(table) if ctas == 1 else tuple(_of_pair(b) for b in table)


def _of_pair(barrier: Barrier) -> Barrier:
    """A row of the table for two CTAs whose products are one. What the products wait for, and who draws work, lies in the first
    CTA and comes from both; what products announce, and that nobody needs tensor memory, goes to both."""
    to_first, to_both = ("p_ready", "p_full", "work_empty"), ("tmem_free",)
    if barrier.name in to_first + to_both:
        reach = Reach.FIRST if barrier.name in to_first else Reach.BOTH
        # The mma warp of the second CTA takes no work.
        return replace(barrier, arrivals=2 * barrier.arrivals - (barrier.name == "work_empty"), reach=reach)
    if barrier.name in ("q_full", "kv_full"):
        return replace(barrier, reach=Reach.FIRST)
    if barrier.name == "work_full":
        return replace(barrier, signal=Signal.TMA, reach=Reach.BOTH)
    return replace(barrier, reach=Reach.BOTH) if barrier.signal is Signal.COMMIT else barrier


def sm90_forward_barriers(consumers: int, kv_stages: int, q_stages: int = 1) -> tuple[Barrier, ...]:
    """One scheduler warp, one producer warp and `consumers` warpgroups, each with 64 rows of the query tile."""
    scheduler, producer, consumer = (Role.SCHEDULER,), (Role.PRODUCER,), (Role.CONSUMER,)
    warps = consumers * WARPS_PER_GROUP
    return (
        Barrier("work_full", scheduler, producer, Signal.WARPS, 1, 1, "the next work item is in shared memory"),
        Barrier("work_empty", producer, scheduler, Signal.WARPS, 1, 1, "the producer has taken it"),
        Barrier("q_full", producer, consumer, Signal.TMA, 1, q_stages, "the query tile is in shared memory, and what work it is"),
        Barrier(
            "q_empty",
            consumer,
            producer,
            Signal.WARPS,
            warps,
            q_stages,
            "no product reads the query tile, and its place holds no output"
            if q_stages > 1
            else "every warp has begun the work item: with its last K stage given back, no product reads the query tile",
        ),
        Barrier("k_full", producer, consumer, Signal.TMA, 1, kv_stages, "a K tile is in its stage"),
        Barrier(
            "k_empty", consumer, producer, Signal.WARPS, warps, kv_stages, "every warpgroup's product with the stage is done"
        ),
        Barrier("v_full", producer, consumer, Signal.TMA, 1, kv_stages, "a V tile is in its stage"),
        Barrier(
            "v_empty", consumer, producer, Signal.WARPS, warps, kv_stages, "every warpgroup's product with the stage is done"
        ),
    )
