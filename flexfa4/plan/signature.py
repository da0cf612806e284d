"""Signature: what a forward kernel is compiled for in full, a Plan and which optional arguments its launches pass."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields

from flexfa4.ir import DType, Graph
from flexfa4.ir.text import parse
from flexfa4.threads import cached_property

from .plan import ARCHITECTURES, Plan
from .ranges import Assumptions

KINDS = ("score", "mask", "out")
# TMA takes a base and strides that are multiples of 16 bytes.
TMA_BYTES = 16
# Numbers of a row that a piece of it tells the combine.
STATISTICS = 4


@dataclass(frozen=True)
class Signature:
    """Which forward is compiled: a Plan, and which optional arguments a call passes. The compile key of the runtime.

    masked: spans are passed. ordered: a work list is passed. counted: a work counter is passed. contiguous: which captures
    (all of them, in order; () for none) have stride 1 in their last dimension. placed: the spans say where each work tile lies.
    halved: they tell what each of its two query tiles sees.
    These are decisions of a launch, not of a Plan.
    """

    plan: Plan
    masked: bool = False
    ordered: bool = False
    counted: bool = False
    contiguous: tuple[bool, ...] = ()
    placed: bool = False
    halved: bool = False

    def __post_init__(self):
        if self.plan.mask and not self.masked:
            raise ValueError("a plan with a mask graph is launched with the mask's spans")
        if self.plan.split and not self.ordered:
            raise ValueError("a split plan is launched with a work list, which holds the pieces")
        if self.placed and not (self.masked and self.ordered):
            raise ValueError("work tiles that are placed by spans are launched with the spans and a work list")
        if self.halved and not (self.masked and self.plan.halves):
            raise ValueError("spans of two halves are for a kernel of two halves a work tile")

    @cached_property
    def graphs(self) -> tuple[Graph | None, Graph | None, Graph | None]:
        """(score, mask, out)."""
        return tuple(parse(text) if text else None for text in (getattr(self.plan, kind) for kind in KINDS))

    def share(self, kind: str, values) -> tuple[tuple, tuple, tuple[bool, ...]]:
        """The captures, the slots, and the part of `contiguous` of one graph, of `flexfa4.kernels.arguments.Values`."""
        captures, slots = values.captures or (), values.slots or ()
        dense = self.contiguous or (False,) * len(captures)
        first_capture = first_slot = 0
        for name, graph in zip(KINDS, self.graphs):
            if graph is None:
                continue
            more, others = first_capture + len(graph.captures), first_slot + len(graph.slots)
            if name == kind:
                return captures[first_capture:more], slots[first_slot:others], dense[first_capture:more]
            first_capture, first_slot = more, others
        return (), (), ()

    def compile_key(self) -> str:
        """64 hex digits, the same in every process and on every machine."""
        launch = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name != "plan"]
        return hashlib.sha256("\n".join([self.plan.compile_key(), *launch]).encode()).hexdigest()

    def to_json(self) -> str:
        """All of it as text, for another process; `signature_from_json` reads it."""
        return json.dumps(asdict(self), default=lambda dtype: dtype.name)


def signature_from_json(text: str) -> Signature:
    """The equal of the one whose `to_json` this is."""
    data = json.loads(text)
    plan, data["contiguous"] = data.pop("plan"), tuple(data["contiguous"])
    tiles = {name: tuple(x) if isinstance(x, list) else x for name, x in plan["tiles"].items()}
    plan |= dict(dtype=DType[plan["dtype"]], tiles=ARCHITECTURES[plan["arch"]][0](**tiles), assume=Assumptions(**plan["assume"]))
    return Signature(Plan(**plan), **data)
