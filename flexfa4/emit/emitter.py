"""Turns a Graph into CuTe DSL expressions, each value computed at the level where it belongs.

A kernel makes one `Emitter` for a graph, then nested scopes as it learns its coordinates:

    emitter = Emitter(graph, captures, slots)
    tile = emitter.scope(b=b, h=h)                # once a work tile: computes what needs b and h alone
    row = tile.inner(q=q)                         # once a row of registers
    for j in range(columns):
        column = tile.inner(kv=kv0 + j)           # shared by the rows, where a thread owns several
        score[i, j] = emitter.join(row, column, score=score[i, j]).value()

Making a scope emits, at that place of the kernel, every value that deeper scopes will read and that needs no more than the
scope's coordinates (`plan.hoist.frontier`). What is computed later stays inside the scope that asked for it. So a value is
used only where its definition dominates, as long as a scope is made outside the staged `if` or loop in which inner ones live.
Everything here is ordinary Python run while the kernel is traced.
"""

from __future__ import annotations

from typing import Sequence

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from flexfa4.ir import DType, Graph, Node, Op, topological
from flexfa4.plan.hoist import frontier
from flexfa4.plan.ranges import Assumptions, fits_i32, integer_ranges

from .integers import clamp_index
from .lower import lower
from .table import EMIT
from .values import as_float, as_int, round_half, wrap

_SMALL = frozenset({DType.U8, DType.I8, DType.I16})
_HALF = frozenset({DType.F16, DType.BF16})
# These give back one of their operands, or its negative: nothing to round.
_EXACT_HALF = frozenset({Op.LOAD, Op.WHERE, Op.MIN, Op.MAX, Op.NEG, Op.ABS, Op.SIGN, Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC})
_EXACT_SMALL = frozenset(
    {Op.LOAD, Op.CONST, Op.SLOT, Op.WHERE, Op.MIN, Op.MAX, Op.AND, Op.OR, Op.XOR, Op.MOD, Op.FMOD, Op.SIGN, Op.SHR}
)
_LEAF_NAMES = {"score": Op.SCORE, "b": Op.B, "h": Op.H, "q": Op.Q, "kv": Op.KV, "out": Op.OUT, "lse": Op.LSE, "d": Op.D}


class Emitter:
    """One graph in one kernel.

    captures: a cute.Tensor a capture, of its rank (1 for 0-d captures), of the element type `values.MEMORY_TYPE[dtype]`, no
    extent zero. slots: a staged scalar a slot (`slot_types`). `assume` is what the ranges may rely on; `precise` turns the
    approximations of `approx.APPROXIMATIONS` off. `roots` are the values wanted, where it is not the graph's own root: the
    adjoints of a backward pass, say, over the same captures and slots.
    """

    def __init__(
        self,
        graph: Graph,
        captures: Sequence[cute.Tensor],
        slots: Sequence,
        precise: bool = False,
        assume: Assumptions = Assumptions(),
        roots: tuple[Node, ...] = (),
    ):
        self.graph = graph
        self.precise = precise
        self.roots = lower(roots or (graph.root,), precise, assume)
        self.nodes = tuple(topological(*self.roots))
        self.ranges = integer_ranges(self.roots, assume)
        self.captures, self._slots = captures, slots
        self.launch = Scope(self, (), {})

    def scope(self, **leaves) -> "Scope":
        """A scope with these coordinates (b, h, q, kv, score; out, lse, d): Int32 indices, Float32 values."""
        return self.launch.inner(**leaves)

    def join(self, *parents: "Scope", known: dict[Node, object] | None = None, **leaves) -> "Scope":
        """A scope that sees everything its parents see, and these leaves. known: values of nodes that the caller has found
        another way, in their register types; they are not computed."""
        return Scope(self, parents, {_LEAF_NAMES[name]: value for name, value in leaves.items()}, known)

    def int_type(self, n: Node):
        """Int32 or Int64: the register type of an integer node."""
        return Int64 if n.dtype is DType.I64 and not fits_i32(self.ranges[n]) else Int32

    def slot(self, n: Node):
        value = self._slots[n.attr]
        if n.dtype.is_bool:
            return Boolean(value != 0)
        return as_float(value) if n.dtype.is_float else as_int(value, self.int_type(n))

    def load(self, n: Node, indices: Sequence):
        tensor = self.captures[n.attr]
        positions = tuple(
            clamp_index(index, Int32(cute.size(tensor, mode=[dim])), self.ranges[arg][0] >= 0)
            for dim, (index, arg) in enumerate(zip(indices, n.args))
        ) or (0,)
        return self.from_memory(n, tensor[positions if len(positions) > 1 else positions[0]])

    def from_memory(self, n: Node, element):
        """The value of a LOAD from the element that it found."""
        if n.dtype.is_bool:
            return Boolean(element != 0)
        if n.dtype.is_float:
            return as_float(element)
        value = as_int(element, self.int_type(n))
        # An element found by pointer has its width from the pointer, but no sign: it is read as signed.
        return wrap(value, n.dtype) if n.dtype is DType.U8 else value

    def emit(self, n: Node, args: Sequence):
        """The value of one node from those of its arguments, in its register type."""
        value = EMIT[n.op](self, n, args)
        if n.dtype.is_float:
            return round_half(value, n.dtype) if n.dtype in _HALF and n.op not in _EXACT_HALF else value
        if n.dtype.is_bool:
            return value
        value = as_int(value, self.int_type(n))
        return wrap(value, n.dtype) if n.dtype in _SMALL and n.op not in _EXACT_SMALL else value


class Scope:
    """Values known at one place of a kernel: coordinates, and what has been computed from them."""

    def __init__(self, emitter: Emitter, parents: tuple["Scope", ...], leaves: dict[Op, object],
                 known: dict[Node, object] | None = None):
        self._emitter, self._parents = emitter, parents
        self.axes = frozenset(leaves).union(*(p.axes for p in parents))
        self._values: dict[Node, object] = {n: leaves[n.op] for n in emitter.nodes if n.op in leaves}
        self._values.update(known or {})
        for n in frontier(emitter.roots, self.axes):
            self._compute(n)

    def inner(self, **leaves) -> "Scope":
        return self._emitter.join(self, **leaves)

    def _find(self, n: Node):
        found = self._values.get(n)
        if found is None:
            for parent in self._parents:
                found = parent._find(n)
                if found is not None:
                    break
        return found

    def value(self, index: int = 0):
        """The value of the root (of root `index`) here, computing what no enclosing scope has. Raises KeyError naming the leaf
        where a coordinate is missing."""
        return self._compute(self._emitter.roots[index])

    def value_of(self, n: Node):
        """The value of any node below the roots (or of a node made of such) here."""
        return self._compute(n)

    def _compute(self, n: Node):
        # Iterative, since traced sums can be thousands deep.
        stack = [n]
        while stack:
            current = stack[-1]
            if self._find(current) is not None:
                stack.pop()
                continue
            missing = [a for a in current.args if self._find(a) is None]
            if missing:
                stack.extend(missing)
                continue
            self._values[current] = self._emitter.emit(current, [self._find(a) for a in current.args])
            stack.pop()
        return self._find(n)


def slot_types(graph: Graph, assume: Assumptions = Assumptions()) -> tuple:
    """The kernel argument type of each runtime scalar: Float32 for floats, Int32 for bools and narrow integers, else Int64."""

    def kind(dtype: DType):
        if dtype.is_float:
            return Float32
        return Int64 if dtype is DType.I64 and assume.slot_bits > 31 else Int32

    return tuple(kind(d) for d in graph.slots)
