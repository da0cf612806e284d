"""Random legal graphs with data to evaluate them on, as hypothesis strategies: for every pass that must keep or bound a value.

    @given(cases("mask", max_ops=12))
    def test_something(case):
        value = evaluate(case.bound, case.env)
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from flexfa4.ir import Capture, DType, Graph, Node, Op, cast, const, node
from flexfa4.ir.bound import BoundGraph, Origin
from flexfa4.ir.dtypes import INT_RANGE
from flexfa4.ir.graph import ARGUMENTS
from flexfa4.ir.ops import FLOAT_LEAVES, INDEX_LEAVES, LEAVES, SHIFTS
from flexfa4.ir.verify import RULES, verify
from flexfa4.tensors import torch_dtype

ALL_OPS = frozenset(Op) - LEAVES
_DIVISIONS = frozenset({Op.FLOORDIV, Op.MOD, Op.TRUNCDIV, Op.FMOD})
_FLOAT_VALUES = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.25, 0.1, 7.0, 100.0)
_FLOAT_SPECIALS = (float("nan"), float("inf"), float("-inf"), 1e-30, -3e38)


@dataclass(frozen=True)
class Case:
    """A bound graph, an env to evaluate it on (q is [Tq, 1], kv [1, Tk], score [Tq, Tk], d [1, Tk]; b and h Python ints), and a
    printable form for hypothesis."""

    bound: BoundGraph
    env: dict

    def __repr__(self) -> str:
        from flexfa4.ir.text import show
        tensors = [f"{t.dtype}{tuple(t.shape)}={t.tolist()}" for t in self.bound.tensors]
        return f"{show(self.bound.graph)}\ntensors {tensors}\nliterals {self.bound.literals}\nenv {self.env}"

    def _repr_pretty_(self, printer, cycle) -> None:
        printer.text(repr(self))


@dataclass(frozen=True)
class Options:
    """What may occur. `ops`: operations besides leaves. `dtypes`: element types. `specials`: NaN, infinities and huge values in
    constants and data. `in_range`: indices of lookups are clamped into the table. `static_operands`: divisors and shift
    amounts are non-zero constants, as the tracer makes them; otherwise any value. `float_to_int`: casts from float to
    integers, whose result for NaN and out-of-range values depends on the machine."""

    ops: frozenset[Op] = ALL_OPS
    dtypes: tuple[DType, ...] = tuple(DType)
    max_ops: int = 16
    specials: bool = True
    in_range: bool = False
    static_operands: bool = False
    float_to_int: bool = True
    score: DType = DType.F32


class _Builder:
    def __init__(self, draw, kind: str, options: Options):
        self.draw, self.kind, self.options = draw, kind, options
        self.captures: list[Capture] = []
        self.sizes: list[tuple[int, ...]] = []
        self.slots: list[DType] = []
        self.pool: list[Node] = [
            node(op, (), DType.I64 if op in INDEX_LEAVES else options.score) for op in ARGUMENTS[kind]]

    def constant(self, dtype: DType) -> Node:
        return const(self.draw(values(dtype, self.options.specials)), dtype)

    def operand(self, dtype: DType) -> Node:
        """A node of this type: usually one that is there (late ones more often), else a cast of one, a constant or a slot."""
        there = [n for n in self.pool if n.dtype is dtype]
        how = self.draw(st.integers(0, 9))
        if there and how < 7:
            return there[-1 - self.draw(st.integers(0, len(there) - 1))]
        if how == 9:
            self.slots.append(dtype)
            return node(Op.SLOT, (), dtype, len(self.slots) - 1)
        source = self.draw(st.sampled_from(self.pool))
        if how == 8 and self._may_cast(source.dtype, dtype):
            return cast(source, dtype)
        return self.constant(dtype)

    def _may_cast(self, source: DType, target: DType) -> bool:
        return self.options.float_to_int or not (source.is_float and target.is_int)

    def load(self) -> Node:
        dtype = self.draw(st.sampled_from(self.options.dtypes))
        reuse = [i for i, c in enumerate(self.captures) if c.dtype is dtype]
        if reuse and self.draw(st.booleans()):
            which = self.draw(st.sampled_from(reuse))
        else:
            rank = self.draw(st.integers(0, 2))
            which = len(self.captures)
            self.captures.append(Capture(dtype, rank))
            self.sizes.append(tuple(self.draw(st.integers(1, 9)) for _ in range(rank)))
        index = tuple(self._index(size) for size in self.sizes[which])
        return node(Op.LOAD, index, dtype, which)

    def _index(self, size: int) -> Node:
        index = self.operand(DType.I64)
        if not self.options.in_range:
            return index
        low = node(Op.MAX, (index, const(-size, DType.I64)), DType.I64)
        return node(Op.MIN, (low, const(size - 1, DType.I64)), DType.I64)

    def operation(self, op: Op) -> Node | None:
        """A node of this op on random operands; None where the allowed types have none."""
        if op is Op.LOAD:
            return self.load()
        rule = RULES[op]
        types = [d for d in self.options.dtypes if d in rule.types]
        if not types:
            return None
        t = self.draw(st.sampled_from(types))
        if op is Op.CAST:
            source = self.draw(st.sampled_from([n for n in self.pool if self._may_cast(n.dtype, t)] or [None]))
            return source and node(Op.CAST, (source,), t)
        args = [self.operand(DType.BOOL if kind == "bool" else t) for kind in rule.operands]
        if t.is_int and (op in SHIFTS or op is Op.POW or (op in _DIVISIONS and self.options.static_operands)):
            low, high = (1, 7) if op in _DIVISIONS else (0, 4)
            args[1] = const(self.draw(st.integers(low, high)), t)
        elif t.is_int and op in _DIVISIONS and args[1].op is Op.CONST and args[1].attr == 0:
            args[1] = const(3, t)
        return node(op, tuple(args), DType.BOOL if rule.result == "bool" else t)

    def graph(self) -> Graph:
        names = st.sampled_from(sorted(self.options.ops, key=lambda op: op.value))
        for op in self.draw(st.lists(names, min_size=1, max_size=self.options.max_ops)):
            made = self.operation(op)
            if made is not None:
                self.pool.append(made)
        root = self.pool[-1]
        if self.kind == "mask" and root.dtype is not DType.BOOL:
            other = self.operand(root.dtype)
            root = node(self.draw(st.sampled_from([Op.LT, Op.LE, Op.EQ, Op.NE])), (root, other), DType.BOOL)
        elif self.kind != "mask":
            root = cast(root, self.options.score)
        return verify(Graph(self.kind, root, tuple(self.captures), tuple(self.slots)))


def values(dtype: DType, specials: bool = True) -> st.SearchStrategy:
    """Python numbers of a type: mostly small, sometimes at the edge."""
    if dtype.is_bool:
        return st.booleans()
    if dtype.is_int:
        low, high = INT_RANGE[dtype]
        small = st.integers(max(low, -9), 9)
        return st.one_of(small, small, st.sampled_from((low, high, high - 1))) if specials else small
    # torch refuses a Python number that a half cannot hold.
    extremes = _FLOAT_SPECIALS[:3] if dtype is DType.F16 else _FLOAT_SPECIALS
    return st.sampled_from(_FLOAT_VALUES + extremes if specials else _FLOAT_VALUES)


def tensor(shape: tuple[int, ...], dtype: DType, seed: int, specials: bool = True) -> torch.Tensor:
    """Random data of a type: small integers, normal floats; with `specials`, one element in eight is an extreme value."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_int:
        low, high = INT_RANGE[dtype]
        data = torch.randint(max(low, -9), 10, shape, generator=generator).to(torch_dtype(dtype))
        extremes = torch.tensor([low, high], dtype=torch_dtype(dtype))
    else:
        data = (torch.randn(shape, generator=generator) * 3).to(torch_dtype(dtype))
        extremes = torch.tensor(_FLOAT_SPECIALS + (0.0, -0.0), dtype=torch_dtype(dtype))
    if not specials:
        return data
    chosen = extremes[torch.randint(0, len(extremes), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.125, chosen, data)


@st.composite
def cases(draw, kind: str = "score", options: Options = Options(), **changes) -> Case:
    """Strategy of Cases of a kind ("score", "mask", "out"). Keyword arguments override fields of `options`."""
    options = Options(**{**options.__dict__, **changes})
    builder = _Builder(draw, kind, options)
    graph = builder.graph()
    seed = draw(st.integers(0, 2**31))
    described = enumerate(zip(graph.captures, builder.sizes))
    data = tuple(tensor(size, c.dtype, seed + i, options.specials) for i, (c, size) in described)
    literals = tuple(draw(values(d, options.specials)) for d in graph.slots)
    bound = BoundGraph(graph, data, literals, Origin("mod", "mods.py", 1, tuple(f"t{i}" for i in range(len(data)))))
    q0, kv0 = draw(st.integers(0, 40)), draw(st.integers(0, 40))
    tq, tk = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    env: dict = {Op.B: draw(st.integers(0, 3)), Op.H: draw(st.integers(0, 5)), Op.Q: torch.arange(q0, q0 + tq)[:, None],
                 Op.KV: torch.arange(kv0, kv0 + tk)[None], Op.D: torch.arange(tk)[None]}
    for i, op in enumerate(sorted(FLOAT_LEAVES, key=lambda op: op.value)):
        env[op] = tensor((tq, 1 if op is Op.LSE else tk), options.score, seed + 100 + i, options.specials)
    return Case(bound, {op: env[op] for op in ARGUMENTS[kind]})


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit as far as arithmetic can tell: NaN equals NaN, 0.0 differs from -0.0; shapes may differ by broadcast."""
    a, b = torch.broadcast_tensors(a, b)
    if a.dtype is not b.dtype:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())
