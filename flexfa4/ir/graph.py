"""Hash-consed nodes, and the Graph of one mod. Standard library only.

A `Node` is immutable and interned: two structurally equal nodes are the same object, so `is` compares structure and a dict
keyed by node is a memo. A `Graph` is pure structure and is what a kernel is compiled for: it holds no captured tensor and no
literal value. What changes from call to call travels beside it in a `BoundGraph` (see `flexfa4.trace`).
"""
from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Hashable, Iterator, NamedTuple

from flexfa4.threads import make_lock

from .dtypes import DType
from .ops import Op

_interned: "weakref.WeakValueDictionary[tuple, Node]" = weakref.WeakValueDictionary()
_lock = make_lock()


class Node:
    """One operation. Make nodes with `node()`; `attr` is the static number of a CONST, the index of a SLOT or LOAD,
    or of a MIN or MAX of floats the operand (0 or 1) that has the whole gradient at ties; None: each has half."""

    __slots__ = ("op", "args", "dtype", "attr", "__weakref__")

    op: Op
    args: tuple["Node", ...]
    dtype: DType
    attr: Hashable

    def __reduce__(self):
        return node, (self.op, self.args, self.dtype, self.attr)

    def __copy__(self) -> "Node":
        return self

    def __deepcopy__(self, memo) -> "Node":
        return self

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args))
        tag = "" if self.attr is None else f"[{self.attr!r}]"
        return f"{self.op!r}{tag}({inner}):{self.dtype!r}" if self.args else f"{self.op!r}{tag}:{self.dtype!r}"


def node(op: Op, args: tuple[Node, ...], dtype: DType, attr: Hashable = None) -> Node:
    """The interned node of this structure."""
    # repr(attr) tells 0 from 0.0, -0.0 and False, which compare equal; NaN is equal to itself by its repr.
    key = (op, tuple(map(id, args)), dtype, None if attr is None else (type(attr), repr(attr)))
    with _lock:
        found = _interned.get(key)
        if found is None:
            found = object.__new__(Node)
            found.op, found.args, found.dtype, found.attr = op, args, dtype, attr
            _interned[key] = found
        return found


def const(value: bool | int | float, dtype: DType) -> Node:
    """A static number of the given dtype."""
    kind = bool if dtype.is_bool else int if dtype.is_int else float
    return node(Op.CONST, (), dtype, kind(value))


def cast(n: Node, dtype: DType) -> Node:
    """`n` as `dtype`; `n` itself where it already has it."""
    return n if n.dtype is dtype else node(Op.CAST, (n,), dtype)


SCORE = node(Op.SCORE, (), DType.F32)
B = node(Op.B, (), DType.I64)
H = node(Op.H, (), DType.I64)
Q = node(Op.Q, (), DType.I64)
KV = node(Op.KV, (), DType.I64)
OUT = node(Op.OUT, (), DType.F32)
LSE = node(Op.LSE, (), DType.F32)
D = node(Op.D, (), DType.I64)


class Capture(NamedTuple):
    """What the graph knows of a captured tensor: its element type and rank. Its sizes and values are run-time matters."""

    dtype: DType
    rank: int


ARGUMENTS = {
    "score": (Op.SCORE, Op.B, Op.H, Op.Q, Op.KV),
    "mask": (Op.B, Op.H, Op.Q, Op.KV),
    "out": (Op.OUT, Op.LSE, Op.B, Op.H, Op.Q, Op.D),
}


@dataclass(frozen=True)
class Graph:
    """The structure of one mod: `kind` is "score" (result: float), "mask" (result: bool) or "out" (result: float).

    Equality and hash are structural and cheap; `flexfa4.ir.text.show(graph)` is the canonical, process-independent form.
    SCORE's and OUT's dtype is that of the compute type (f32, or f64 for float64 inputs).
    """

    kind: str
    root: Node
    captures: tuple[Capture, ...] = ()
    slots: tuple[DType, ...] = ()
    _order: tuple[Node, ...] = field(default=(), compare=False, repr=False)
    # By name: torch.compile traces `uses`, and that of torch 2.11 and 2.12 cannot hash these members.
    _ops: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self):
        if self.kind not in ARGUMENTS:
            raise ValueError(f"kind={self.kind!r}: expected one of {sorted(ARGUMENTS)}")
        object.__setattr__(self, "_order", tuple(topological(self.root)))
        object.__setattr__(self, "_ops", frozenset([n.op._name_ for n in self._order]))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, arguments before users, the root last."""
        return self._order

    @property
    def ops(self) -> frozenset[str]:
        """The names of all ops that occur."""
        return self._ops

    def uses(self, *ops: Op) -> bool:
        for op in ops:
            if op.name in self._ops:
                return True
        return False


def topological(*roots: Node) -> Iterator[Node]:
    """Nodes below the roots, arguments first, each once; iterative, since traced sums can be thousands deep."""
    seen: set[Node] = set()
    for root in roots:
        stack = [(root, iter(root.args))]
        if root in seen:
            continue
        seen.add(root)
        while stack:
            current, rest = stack[-1]
            for child in rest:
                if child not in seen:
                    seen.add(child)
                    stack.append((child, iter(child.args)))
                    break
            else:
                stack.pop()
                yield current


def rebuild(root: Node, replace) -> Node:
    """`root` with every node passed through `replace(node_with_new_args)`, arguments first."""
    new: dict[Node, Node] = {}
    for n in topological(root):
        args = tuple(new[a] for a in n.args)
        new[n] = replace(n if args == n.args else node(n.op, args, n.dtype, n.attr))
    return new[root]
