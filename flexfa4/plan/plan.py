"""Plan: the compile key. What changes from call to call (lengths, strides, literal values, captured tensors) is not in it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

from flexfa4.ir import DType, Op
from flexfa4.ir.text import parse

from .budget import require
from .forward import Sm90Forward, Sm100Forward, TiledForward
from .ranges import Assumptions

# Which tiles belong to an architecture, and which input types its kernel takes.
ARCHITECTURES = {
    "sm100": (Sm100Forward, (DType.F16, DType.BF16)),
    "sm90": (Sm90Forward, (DType.F16, DType.BF16)),
    "tiled": (TiledForward, (DType.F16, DType.BF16, DType.F32, DType.F64)),
}

# Places for heads in a query tile: TMA copies 64 rows at least.
PACKS = (1, 2, 4, 8, 16, 32, 64)


def heads_a_thread(arch: str) -> int:
    """Up to which `pack` the rows of a thread are of one head: on sm90 it has two, 8 apart."""
    return 8 if arch == "sm90" else PACKS[-1]


@dataclass(frozen=True)
class Plan:
    """One kernel to compile, or to find compiled.

    score, mask and out are canonical graph texts (`flexfa4.ir.text.show`), empty where there is no such hook. pack: places for
    query heads of one KV head in a query tile, 1 where it has one head; a power of two, so that a call with any number of
    heads up to it takes the same kernel. split: pieces of split rows write partial results for the combine,
    which also runs the out graph on them, instead of the output. precise: no
    approximations in the hooks, and none of the exponentials by a polynomial. assume: what integer narrowing takes for granted.
    """

    arch: str
    dtype: DType
    tiles: Sm100Forward | Sm90Forward | TiledForward
    score: str = ""
    mask: str = ""
    out: str = ""
    pack: int = 1
    split: bool = False
    precise: bool = False
    assume: Assumptions = Assumptions()

    def __post_init__(self):
        require(self.arch in ARCHITECTURES, f"arch={self.arch!r}: expected one of {sorted(ARCHITECTURES)}")
        kind, dtypes = ARCHITECTURES[self.arch]
        require(type(self.tiles) is kind, f"{self.arch} takes {kind.__name__}, not {type(self.tiles).__name__}")
        require(self.dtype in dtypes, f"{self.arch} takes {', '.join(map(repr, dtypes))} inputs, not {self.dtype!r}")
        self._check_pack()
        for name in ("score", "mask", "out"):
            text = getattr(self, name)
            require(
                not text or parse(text).kind == name, f"the {name} hook was given another kind of graph: {text.splitlines()[:1]}"
            )

    def _check_pack(self) -> None:
        require(self.pack in PACKS, f"pack={self.pack}: one of {', '.join(map(str, PACKS))}")
        if self.pack > 1:
            graphs = [parse(text) for text in (self.score, self.mask, self.out) if text]
            by_head = [graph.kind for graph in graphs if graph.uses(Op.H)]
            require("mask" not in by_head, f"pack={self.pack}: the mask differs from head to head")
            most = heads_a_thread(self.arch) if by_head else PACKS[-1]
            require(self.pack <= most, f"pack={self.pack}: the {' and the '.join(by_head)} graph depends on the head, and on "
                    f"{self.arch} a thread's rows are of one head up to {most}")

    @property
    def q_tile(self) -> int:
        """Query positions of one work tile."""
        return self.tiles.rows // self.pack

    @property
    def ctas(self) -> int:
        """How many CTAs work on a work tile together."""
        return self.tiles.ctas if isinstance(self.tiles, Sm100Forward) else 1

    @property
    def hooks(self) -> tuple[str, ...]:
        return tuple(name for name in ("score", "mask", "out") if getattr(self, name))

    @property
    def halves(self) -> bool:
        """Whether the kernel takes spans that tell what each half of the rows of a work tile sees: two query tiles of a CTA; or
        two warpgroups of one query tile that causal masks show different tiles, as tiles narrower than the rows are."""
        if self.arch == "sm90":
            return (self.tiles.consumers, self.tiles.q_stages) == (2, 1) and self.tiles.kv_tile < self.tiles.rows
        return self.arch == "sm100" and (self.tiles.q_tiles, self.tiles.ctas) == (2, 1)

    @property
    def places_work(self) -> bool:
        """Whether the kernel takes work tiles that begin at any query and key."""
        return self.arch in ("sm90", "sm100")

    def compile_key(self) -> str:
        """64 hex digits, the same in every process and on every machine."""
        text = "\n".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        """Plan, maps and budgets in words."""
        lines = [
            f"{self.arch} forward, {self.dtype!r}, hooks: {', '.join(self.hooks) or 'none'}, "
            f"{self.tiles.rows} query rows a work tile{' of two CTAs' if self.ctas == 2 else ''}, "
            + ("a head each" if self.pack == 1 else f"places for {self.pack} heads, {self.q_tile} queries"),
            f"{self.tiles}",
        ]
        if isinstance(self.tiles, Sm100Forward):
            lines.append(
                "tensor memory: "
                + ", ".join(
                    f"{r.name} {r.first}..{r.end - 1}" + (f" (in {r.aliases})" if r.aliases else "") for r in self.tiles.tmem
                )
            )
        if not isinstance(self.tiles, TiledForward):
            smem = self.tiles.smem
            lines.append(
                f"shared memory: {sum(b.total for b in smem)} bytes: "
                + ", ".join(f"{b.name} {b.count} x {b.bytes}" + (f" (over {b.aliases})" if b.aliases else "") for b in smem)
            )
            lines.append("registers: " + ", ".join(f"{role} {warps} warps x {n}" for role, warps, n in self.tiles.register_table))
        return "\n".join(lines)
