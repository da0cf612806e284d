"""Tiles, stages and maps of the forward kernels: one frozen value an architecture, each refusing what does not fit."""

from __future__ import annotations

from dataclasses import dataclass

from flexfa4.threads import cached_property

from .barriers import Barrier, Role, check_table, sm90_forward_barriers, sm100_forward_barriers
from .budget import MBARRIER_BYTES, WARPS_PER_GROUP, Buffer, Columns, check_registers, check_smem, check_tmem, require

HALF_BYTES = 2  # f16 and bf16
FLOAT_BYTES = 4
WORK_TILE_BYTES = 128  # a work tile and where its walk begins, a word a lane, from role to role
# Registers a thread needs beside its fragments of S, P and O: addresses, statistics, the values a mod hoists.
SPARE_REGISTERS = 40
# On sm90 masks' and mods' values come and go between the products: less is enough (spills: benchmarks/results/sm90_sass.md).
SM90_SPARE_REGISTERS = 32


def _common_checks(q_tile: int, kv_tile: int, head_dim: int, head_dim_v: int, kv_stages: int) -> None:
    for name, value, step, most in (
        ("kv_tile", kv_tile, 16, 256),
        ("head_dim", head_dim, 16, 256),
        ("head_dim_v", head_dim_v, 16, 256),
    ):
        require(
            0 < value <= most and value % step == 0, f"{name}={value}: the tensor core takes multiples of {step} up to {most}"
        )
    require(kv_stages >= 2, f"kv_stages={kv_stages}: K and V of one step need two stages at least")
    require(q_tile > 0 and q_tile % 64 == 0, f"q_tile={q_tile}: a warpgroup's product has 64 or 128 rows")


@dataclass(frozen=True)
class Sm100Forward:
    """FlashAttention-4's forward: two query tiles of 128 rows ping-pong, S and O in tensor memory, P over S.

    kv_stages: stages of the ring that K and V tiles share. early_p: columns of P after which the product with V starts (0: all).
    ctas: 2 for a pair of CTAs, each with its query tiles and half of K and V, whose products are one.
    software_exp: of 16 exponentials, how many go to the polynomial of `exp_degree` on the FMA units. out_of_step: of a tile that
    both query tiles see, after how many columns of exponentials a softmax warp lets that of the other query tile, which shares
    its special function unit, begin its own (0: they take no turns). rescale_tau: how far the row maximum may move (in log2)
    before O is rescaled. scheduler: "static" (each CTA walks its own list), "counter" (CTAs draw from one in memory), or "clc"
    (cluster launch control: launched with a CTA a work item). registers: (softmax, correction, the other warps).
    """

    head_dim: int
    head_dim_v: int
    q_tile: int = 128
    q_tiles: int = 2
    kv_tile: int = 128
    kv_stages: int = 3
    ctas: int = 1
    early_p: int = 96
    software_exp: int = 2
    exp_degree: int = 3
    out_of_step: int = 0
    rescale_tau: float = 8.0
    out_over_q: bool = False
    scheduler: str = "static"
    registers: tuple[int, int, int] = (192, 80, 48)

    def __post_init__(self):
        _common_checks(self.q_tile, self.kv_tile, self.head_dim, self.head_dim_v, self.kv_stages)
        require(self.q_tile == 128, f"q_tile={self.q_tile}: a tensor memory tile has 128 lanes, a row each")
        require(self.q_tiles in (1, 2), f"q_tiles={self.q_tiles}: one or two query tiles a CTA")
        require(self.ctas in (1, 2), f"ctas={self.ctas}: a product spans one CTA or a pair")
        require(
            0 <= self.early_p < self.kv_tile and self.early_p % 32 == 0,
            f"early_p={self.early_p}: a multiple of 32 columns below {self.kv_tile} (tcgen05.st writes 32 columns)",
        )
        require(0 <= self.software_exp <= 16, f"software_exp={self.software_exp}: a count out of 16")
        require(3 <= self.exp_degree <= 5, f"exp_degree={self.exp_degree}: 3 to 5")
        require(
            0 <= self.out_of_step <= self.kv_tile and self.out_of_step % 8 == 0,
            f"out_of_step={self.out_of_step}: a multiple of 8 columns up to {self.kv_tile}, or 0",
        )
        require(not self.out_of_step or self.q_tiles == 2, f"out_of_step={self.out_of_step}: one query tile has no other")
        require(self.rescale_tau >= 0, f"rescale_tau={self.rescale_tau}: not negative")
        require(self.scheduler in ("static", "counter", "clc"), f"scheduler={self.scheduler!r}: static, counter or clc")
        require(self.ctas == 1 or self.scheduler != "clc", "scheduler='clc': the hardware hands over single CTAs, not pairs")
        require(
            self.ctas == 1 or self.head_dim_v % 32 == 0 and self.kv_tile % 32 == 0,
            f"head_dim_v={self.head_dim_v}, kv_tile={self.kv_tile}: a product of a pair has columns in steps of 32",
        )
        require(
            self.kv_tile + SPARE_REGISTERS <= self.registers[0],
            f"a softmax thread holds a row of {self.kv_tile} scores and needs {SPARE_REGISTERS} registers more: "
            f"{self.registers[0]} are too few",
        )
        check_table(self.barriers, self.roles)
        check_tmem(self.tmem)
        check_smem(self.smem)
        check_registers(self.register_table)

    @property
    def roles(self) -> tuple[Role, ...]:
        return Role.LOAD, Role.MMA, Role.SOFTMAX, Role.CORRECTION, Role.STORE, Role.SCHEDULER

    @property
    def rows(self) -> int:
        """Query rows of one work tile."""
        return self.q_tile * self.q_tiles * self.ctas

    @property
    def threads(self) -> int:
        return 32 * WARPS_PER_GROUP * (self.q_tiles + 2)

    @property
    def register_table(self) -> tuple[tuple[str, int, int], ...]:
        softmax, correction, other = self.registers
        return (
            ("softmax", WARPS_PER_GROUP * self.q_tiles, softmax),
            ("correction", WARPS_PER_GROUP, correction),
            ("load, mma, store, scheduler", WARPS_PER_GROUP, other),
        )

    @cached_property
    def barriers(self) -> tuple[Barrier, ...]:
        return sm100_forward_barriers(
            self.q_tiles, self.kv_stages, self.early_p > 0, self.out_over_q, self.scheduler, self.ctas, self.out_of_step > 0
        )

    @property
    def tmem(self) -> tuple[Columns, ...]:
        """S of every query tile, then O. P (two bytes an element) takes the upper half of its S."""
        s = [Columns(f"s{i}", i * self.kv_tile, self.kv_tile) for i in range(self.q_tiles)]
        o_first = self.q_tiles * self.kv_tile
        o = [Columns(f"o{i}", o_first + i * self.head_dim_v, self.head_dim_v) for i in range(self.q_tiles)]
        p = [Columns(f"p{i}", r.first + self.kv_tile // 2, self.kv_tile // 2, aliases=r.name) for i, r in enumerate(s)]
        return (*s, *o, *p)

    @property
    def smem(self) -> tuple[Buffer, ...]:
        """With a pair of CTAs each holds half of the K and V rows of a stage."""
        stage = self.kv_tile // self.ctas * max(self.head_dim, self.head_dim_v) * HALF_BYTES
        mbarriers = sum(b.count for b in self.barriers)
        return (
            Buffer("q", self.q_tile * self.head_dim * HALF_BYTES, self.q_tiles),
            Buffer("kv", stage, self.kv_stages),
            Buffer("out", self.q_tile * self.head_dim_v * HALF_BYTES, self.q_tiles, aliases="q" if self.out_over_q else ""),
            Buffer("scale", self.q_tile * FLOAT_BYTES, 2 * self.q_tiles),
            Buffer("barriers", MBARRIER_BYTES, mbarriers),
            Buffer("tmem address, next work tile", 16, 2),
        )


@dataclass(frozen=True)
class Sm90Forward:
    """The Hopper forward: a scheduler warp, a producer warp, and consumer warpgroups of 64 rows each whose products and softmax
    overlap. q_stages: query tiles in shared memory; with one, the next work tile's loads when the last product of scores is done,
    and the output goes out of registers; with two, its first product begins while this one is worked on, and the output takes
    the place of the queries; with three it loads while the output of the one before still waits there. rescale_tau: how far the
    row maximum may move (in log2) before O is rescaled. turns: the warpgroups take turns at issuing products. own_p: P of a tile
    has registers beside those that the product of the tile before reads, so that the two overlap; otherwise that product is
    issued, and ends, before the scores of the tile.
    registers: (consumer, producer)."""

    head_dim: int
    head_dim_v: int
    consumers: int = 2
    kv_tile: int = 128
    kv_stages: int = 2
    registers: tuple[int, int] = (240, 24)
    q_stages: int = 1
    rescale_tau: float = 8.0
    turns: bool = True
    own_p: bool = True

    def __post_init__(self):
        _common_checks(self.rows, self.kv_tile, self.head_dim, self.head_dim_v, self.kv_stages)
        require(self.consumers in (1, 2, 3), f"consumers={self.consumers}: one to three consumer warpgroups")
        require(self.q_stages in (1, 2, 3), f"q_stages={self.q_stages}: one to three query tiles")
        require(self.rescale_tau >= 0, f"rescale_tau={self.rescale_tau}: not negative")
        fragments = self.fragment_registers
        require(
            fragments + SM90_SPARE_REGISTERS <= self.registers[0],
            f"a consumer thread holds {fragments} registers of S, P and O and needs {SM90_SPARE_REGISTERS} more: "
            f"{self.registers[0]} are too few",
        )
        check_table(self.barriers, (Role.SCHEDULER, Role.PRODUCER, Role.CONSUMER))
        check_smem(self.smem)
        check_registers(self.register_table)

    @property
    def rows(self) -> int:
        return 64 * self.consumers

    @property
    def row_columns(self) -> int:
        """What a query row has room for: its output may take its place, and must not reach the next warpgroup's queries."""
        return max(self.head_dim, self.head_dim_v) if self.out_over_q else self.head_dim

    @property
    def threads(self) -> int:
        return 32 * WARPS_PER_GROUP * (self.consumers + 1)

    @property
    def fragment_registers(self) -> int:
        """64 rows over 128 threads: S in f32, P in 16 bits (twice with `own_p`), O in f32."""
        return self.kv_tile // 2 + self.kv_tile // 4 * (2 if self.own_p else 1) + self.head_dim_v // 2

    @property
    def register_table(self) -> tuple[tuple[str, int, int], ...]:
        return ("consumer", WARPS_PER_GROUP * self.consumers, self.registers[0]), ("producer", WARPS_PER_GROUP, self.registers[1])

    @cached_property
    def barriers(self) -> tuple[Barrier, ...]:
        return sm90_forward_barriers(self.consumers, self.kv_stages, self.q_stages)

    @property
    def out_over_q(self) -> bool:
        """Whether the output goes through shared memory, in the place of the queries it was made of."""
        return self.q_stages > 1

    @property
    def slots(self) -> int:
        """Places for work tiles that the consumers are told of: one a query tile, two at least."""
        return max(2, self.q_stages)

    @property
    def smem(self) -> tuple[Buffer, ...]:
        out = [Buffer("out", self.rows * self.head_dim_v * HALF_BYTES, self.q_stages, aliases="q")] if self.out_over_q else []
        return (
            Buffer("q", self.rows * self.row_columns * HALF_BYTES, self.q_stages),
            Buffer("k", self.kv_tile * self.head_dim * HALF_BYTES, self.kv_stages),
            Buffer("v", self.kv_tile * self.head_dim_v * HALF_BYTES, self.kv_stages),
            *out,
            Buffer("barriers", MBARRIER_BYTES, sum(b.count for b in self.barriers)),
            Buffer("work tile", WORK_TILE_BYTES, self.slots + 1),
        )


@dataclass(frozen=True)
class TiledForward:
    """The tiled engine on any torch device: only the tile sizes are decided."""

    q_tile: int = 128
    kv_tile: int = 128

    def __post_init__(self):
        require(self.q_tile > 0 and self.kv_tile > 0, f"q_tile={self.q_tile}, kv_tile={self.kv_tile}: must be positive")

    @property
    def rows(self) -> int:
        return self.q_tile
