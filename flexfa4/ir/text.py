"""Graphs as text and back. The text is canonical and the same in every process: it serves as a cache key and travels through
the registered torch op. Standard library only.

    score(captures f32[2] i64[0], slots f32)
    %0 = score : f32
    %1 = b : i64
    %2 = load[0](%0, %1) : f32
    ...
    return %7

A capture is written dtype[rank]. Lines are numbered in the order of `Graph.nodes`.
"""
from __future__ import annotations

import re
from functools import lru_cache

from .dtypes import DType
from .graph import Capture, Graph, Node, node
from .ops import Op

_HEAD = re.compile(r"(\w+)\(captures((?: \w+\[\d+\])*), slots((?: \w+)*)\)")
_LINE = re.compile(r"%(\d+) = (\w+)(?:\[([^\]]*)\])?(?:\(([^)]*)\))? : (\w+)")
_OPS = {op.name.lower(): op for op in Op}


@lru_cache(maxsize=1024)
def show(graph: Graph) -> str:
    """The canonical text of a graph, without a final newline. `parse(show(g)) == g`, with the identical root."""
    captures = "".join(f" {c.dtype!r}[{c.rank}]" for c in graph.captures)
    slots = "".join(f" {d!r}" for d in graph.slots)
    lines = [f"{graph.kind}(captures{captures}, slots{slots})"]
    number: dict[Node, int] = {}
    for n in graph.nodes:
        number[n] = len(number)
        attr = "" if n.attr is None else f"[{n.attr!r}]"
        args = f"({', '.join(f'%{number[a]}' for a in n.args)})" if n.args else ""
        lines.append(f"%{number[n]} = {n.op!r}{attr}{args} : {n.dtype!r}")
    lines.append(f"return %{number[graph.root]}")
    return "\n".join(lines)


@lru_cache(maxsize=1024)
def parse(text: str) -> Graph:
    """The graph that `show` printed. Raises ValueError naming the first line that is not understood."""
    first, *body = text.strip().splitlines() or [""]
    head = _HEAD.fullmatch(first.strip())
    if head is None:
        raise ValueError(f"line 1: {first!r} is not the head of a graph")
    captures = tuple(Capture(DType(c.split("[")[0]), int(c.split("[")[1][:-1])) for c in head[2].split())
    slots = tuple(map(DType, head[3].split()))
    values: list[Node] = []
    for number, line in enumerate(body, 2):
        line = line.strip()
        try:
            if line.startswith("return %"):
                return Graph(head[1], values[int(line[8:])], captures, slots)
            values.append(_node(line, values))
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise ValueError(f"line {number}: {line!r} is not understood ({error})") from None
    raise ValueError("the text ends without a return")


def _node(line: str, values: list[Node]) -> Node:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError("expected %N = op[attribute](%A, ...) : type")
    if int(match[1]) != len(values):
        raise ValueError(f"expected %{len(values)}")
    op, dtype = _OPS[match[2]], DType(match[5])
    args = tuple(values[int(a.strip()[1:])] for a in match[4].split(",")) if match[4] else ()
    return node(op, args, dtype, None if match[3] is None else _attr(match[3], op, dtype))


def _attr(text: str, op: Op, dtype: DType) -> bool | int | float:
    if op is not Op.CONST or dtype.is_int:
        return int(text)
    if dtype.is_bool:
        return {"True": True, "False": False}[text]
    return float(text)
