"""A Graph together with what changes from call to call: captured tensors, literal values, and where the user wrote it.

Tensors are held by reference and never looked into here, so that this module needs no torch.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Mapping

from .graph import Graph, Node

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Origin:
    """Where a mod came from, for messages: its name, file and first line, the names of its captured tensors and the line of
    each op that can fail at run time (the LOADs)."""

    name: str
    file: str
    line: int
    capture_names: tuple[str, ...] = ()
    lines: Mapping[Node, int] = field(default_factory=dict, compare=False)

    def where(self, n: Node | None = None) -> str:
        """"file:line" of a node, or of the mod."""
        return f"{self.file}:{self.lines.get(n, self.line)}"


@dataclass(frozen=True, eq=False)
class BoundGraph:
    """What one call of a mod means.

    `tensors[i]` is described by `graph.captures[i]` (same dtype and rank, any strides, any device, may require grad);
    `literals[j]` is the value of slot j. Facts and engines take a BoundGraph; a kernel is compiled for `graph` alone.
    """

    graph: Graph
    tensors: tuple["torch.Tensor", ...]
    literals: tuple[bool | int | float, ...]
    origin: Origin

    @property
    def parts(self) -> tuple[Graph, tuple[bool | int | float, ...], tuple["torch.Tensor", ...]]:
        return self.graph, self.literals, self.tensors
