"""A graph as one straight-line Python function over torch ops.

The engine calls a program once a tile, so the walk over the graph is done once, here: each node is one line, constants and
literals stay Python numbers wherever torch takes them, and a value is dropped at its last use.
"""
from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Mapping, Sequence

import torch

from flexfa4.ir import DType, Node, Op, topological
from flexfa4.ir.bound import BoundGraph
from flexfa4.ir.ops import FLOAT_LEAVES, INDEX_LEAVES
from flexfa4.tensors import torch_dtype

from .meaning import EVALUATE, divide, load, modulo

_NUMBERS = frozenset({Op.CONST, Op.SLOT})
_ENV = INDEX_LEAVES | FLOAT_LEAVES
# Casts of a number that a Python number holds exactly. Halves and small integers go through a 0-d tensor.
_NUMBER_CAST = {DType.F64: "float({0})", DType.F32: "float32({0})", DType.BOOL: "bool({0})"}


def _float32(value: float) -> float:
    """`value` rounded to float32."""
    return ctypes.c_float(value).value


class Program:
    """Evaluates `roots`. Call with

    - env: a value for each index and float leaf in the graph: Python ints or int64 tensors for B, H, Q, KV, D, and tensors of
      the leaf's dtype for SCORE, OUT, LSE; all broadcastable together, on any one device;
    - tensors: the captured tensors, any strides, on that device (0-d ones may be on the CPU);
    - literals: Python numbers, one a slot.

    Returns one tensor a root, of the root's dtype, in the broadcast shape of just those leaves that the root depends on; a root
    that depends on none is a 0-d CPU tensor. Records for autograd where grad mode is on and an input requires grad.
    """

    __slots__ = ("roots", "source", "_run")

    def __init__(self, roots: tuple[Node, ...]):
        self.roots = roots
        self.source = _Writer(roots).write()
        namespace = {
            "torch": torch, "load": load, "divide": divide, "modulo": modulo, "float32": _float32, "Tensor": torch.Tensor,
            "inf": float("inf"), "nan": float("nan"), **{op.name: op for op in _ENV},
        }
        exec(compile(self.source, "<flexfa4 program>", "exec"), namespace)
        self._run = namespace["run"]

    def __call__(self, env: Mapping[Op, torch.Tensor | int | float], tensors: Sequence[torch.Tensor] = (),
                 literals: Sequence[bool | int | float] = ()) -> tuple[torch.Tensor, ...]:
        return self._run(env, tensors, literals)


@lru_cache(maxsize=1024)
def program(roots: tuple[Node, ...]) -> Program:
    """The Program of `roots`, written once."""
    return Program(tuple(roots))


def evaluate(bound: BoundGraph, env: Mapping[Op, torch.Tensor | int | float]) -> torch.Tensor:
    """The root of `bound` on `env` (see Program), shape: broadcast of the leaves it depends on."""
    return program((bound.graph.root,))(env, bound.tensors, bound.literals)[0]


class _Writer:
    """Writes the source of one program. A node has a `tensor` name, a `number` expression (a Python number), or both."""

    def __init__(self, roots: tuple[Node, ...]):
        self.roots = roots
        self.order = list(topological(*roots))
        self.lines: list[str] = []
        self.tensor: dict[Node, str] = {}
        self.number: dict[Node, str] = {}
        self.free: list[str] = []
        self.count = 0
        self.uses: dict[Node, int] = {}
        for n in self.order:
            for a in n.args:
                self.uses[a] = self.uses.get(a, 0) + 1
        for r in roots:
            self.uses[r] = self.uses.get(r, 0) + 1

    def write(self) -> str:
        for n in self.order:
            if n.op in _NUMBERS:
                self.number[n] = self._number(n)
            elif n.op in _ENV:
                self._leaf(n)
            elif n.op is Op.CAST and n.args[0] in self.number and n.dtype in _NUMBER_CAST:
                self.number[n] = _NUMBER_CAST[n.dtype].format(self.number[n.args[0]])
            else:
                source = self._source(n)
                for a in n.args:
                    self._release(a)
                self._assign(n, source)
        result = "".join(f"{self._tensor(r)}, " for r in self.roots)
        return "def run(env, tensors, literals):\n" + "".join(f"    {line}\n" for line in self.lines) + f"    return ({result})\n"

    def _number(self, n: Node) -> str:
        return repr(n.attr) if n.op is Op.CONST else EVALUATE[n.op].source.format(attr=n.attr)

    def _leaf(self, n: Node) -> None:
        """Leaves keep their own names for good: `q` as given and, where a tensor is needed, `q_t`."""
        name = n.op.name.lower() if n.dtype is not DType.F64 else f"{n.op.name.lower()}64"
        self.lines.append(f"{name} = {EVALUATE[n.op].source}")
        if n.op in FLOAT_LEAVES:
            self.tensor[n] = name

    def _tensor(self, n: Node) -> str:
        if n not in self.tensor and n.op in INDEX_LEAVES:
            name = n.op.name.lower()
            self.lines.append(f"{name}_t = {name} if isinstance({name}, Tensor) else torch.tensor({name}, device='cpu')")
            self.tensor[n] = f"{name}_t"
        elif n not in self.tensor:
            self._assign(n, f"torch.tensor({self.number[n]}, dtype={torch_dtype(n.dtype)}, device='cpu')")
        return self.tensor[n]

    def _assign(self, n: Node, source: str) -> None:
        if self.free:
            name = self.free.pop()
        else:
            name, self.count = f"t{self.count}", self.count + 1
        self.lines.append(f"{name} = {source}")
        self.tensor[n] = name

    def _release(self, n: Node) -> None:
        """After a use: a value not needed any more gives up its name, and is dropped as soon as the name is taken again."""
        self.uses[n] -= 1
        if not self.uses[n] and n in self.tensor and n.op not in _ENV:
            self.free.append(self.tensor[n])

    def _source(self, n: Node) -> str:
        row = EVALUATE[n.op]
        if n.op is Op.LOAD:
            index = "".join(f", {self._index(a)}" for a in n.args)
            return row.source.format(attr=n.attr, args=index) if n.args else f"tensors[{n.attr}]"
        numbers = [i for i, a in enumerate(n.args) if a in self.number and i in row.numbers]
        if len(numbers) == len(n.args) or (n.op is Op.WHERE and len(numbers) == 2):
            numbers = numbers[1:]
        # A maximum with a number first is the same with it second.
        args = list(n.args)
        if n.op in (Op.MIN, Op.MAX) and args[0] in self.number and args[1] not in self.number:
            args, numbers = [args[1], args[0]], [1]
        names = [self.number[a] if i in numbers else self._tensor(a) for i, a in enumerate(args)]
        template = row.with_number if numbers and row.with_number else row.source
        return template.format(*(f"({x})" if x.startswith("-") else x for x in names), dtype=torch_dtype(n.dtype))

    def _index(self, n: Node) -> str:
        """An index stays a Python int where it is one: selecting is a view."""
        if n in self.number:
            return self.number[n]
        return n.op.name.lower() if n.op in INDEX_LEAVES else self.tensor[n]
