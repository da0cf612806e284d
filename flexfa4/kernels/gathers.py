"""Look-ups whose indices are something of the key plus something of the row: a bias of a 2-D distance, table[kv // w - q // w].

Their place in memory is a sum too. A lane computes the key's share for one key, and all lanes read all of them (`spread.py`);
then a look-up is an addition and a load, where the sums of the least and largest shares are inside the captured tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from flexfa4.emit.emitter import Emitter, Scope
from flexfa4.emit.integers import clamp_index
from flexfa4.facts.axes import axes
from flexfa4.facts.lines import Line, lines
from flexfa4.ir import Node, Op, topological
from flexfa4.plan.ranges import fits_i32

from .spread import Spread

_ROW = frozenset({Op.B, Op.H, Op.Q})
# Places as far apart as a signed 32-bit distance allows.
_FAR = 1 << 31


@dataclass(frozen=True)
class Gather:
    """A look-up. parts: of each index the nodes of the key and of the row, with their signs."""

    node: Node
    parts: tuple[tuple[tuple, tuple], ...]


def gathers(emitter: Emitter, root: Node) -> tuple[Gather, ...]:
    """Those below a root that are not the same along a line."""
    on, on_line, found = axes(root), lines(root), []
    for n in topological(root):
        if n.op is Op.LOAD and {Op.Q, Op.KV} <= on[n] and n not in on_line and all(fits_i32(emitter.ranges[a]) for a in n.args):
            parts = tuple(_parts(a, on, on_line) for a in n.args)
            if None not in parts:
                found.append(Gather(n, parts))
    return tuple(found)


def _parts(n: Node, on: dict, on_line: dict) -> tuple[tuple, tuple] | None:
    """(sign, node) of the key and of the row, which add up to an integer node modulo 2^32; None where they do not."""
    of_key, of_row, stack = [], [], [(1, n)]
    while stack:
        sign, n = stack.pop()
        if on[n] <= _ROW:
            of_row.append((sign, n))
        elif on_line.get(n) is Line.COLUMN:
            of_key.append((sign, n))
        elif n.op in (Op.ADD, Op.SUB):
            stack += [(sign, n.args[0]), (-sign if n.op is Op.SUB else sign, n.args[1])]
        else:
            return None
    return tuple(of_key), tuple(of_row)


class Gathered:
    """A look-up at the keys of a spread. row, lane: scopes at the row, and at the lane's key."""

    by_row = True

    def __init__(self, gather: Gather, emitter: Emitter, row: Scope, lane: Scope, spread: Spread):
        self.node, self.emitter = gather.node, emitter
        tensor = emitter.captures[gather.node.attr]
        at, offset, begin, last, inside = emitter.join(row), Int32(0), Int32(0), Int64(0), Boolean(True)
        for dim, (of_key, of_row) in enumerate(gather.parts):
            size, stride = Int32(cute.size(tensor, mode=[dim])), tensor.stride[dim]
            key, own = _sum(of_key, lane), _sum(of_row, at)
            if of_key:
                least, most = (cute.arch.warp_redux_sync(key, kind) for kind in ("min", "max"))
                inside = inside & Boolean(least + own >= 0) & Boolean(most + own < size)
            else:
                own = clamp_index(own, size, False)
            offset, begin = offset + key * Int32(stride), begin + own * Int32(stride)
            last = last + Int64(size - 1) * Int64(stride)
        self.inside = inside & Boolean(last < _FAR)
        self._memory = cute.make_tensor(tensor.iterator + begin, cute.make_layout(_FAR - 1))
        self._offsets = spread.spread(offset, cute.arch.lane_idx())

    def at(self, i: int, j: int):
        return self.emitter.from_memory(self.node, self._memory[self._offsets[j]])


def _sum(terms: Sequence[tuple[int, Node]], scope: Scope) -> Int32:
    total = Int32(0)
    for sign, n in terms:
        value = Int32(scope.value_of(n))
        total = total + value if sign > 0 else total - value
    return total
