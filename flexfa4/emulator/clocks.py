"""Modelled time as data: what an instruction costs the warp, the scheduler and the unit it runs on, and how fast an SM's shared
units are. `emulator.device(arch, timing=BLACKWELL_CLOCKS)` runs a launch in the order of these clocks: one SM a CTA, warp w on
quarter w % 4, each quarter one instruction a clock, the warp that issued longest ago first. What comes out is a `Timeline`."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

# `Cost` and `Pace` of core/timed.h.
COST = np.dtype([("issue", "f4"), ("busy", "f4"), ("after", "f4"), ("latency", "f4"), ("unit", "u2"), ("kind", "u1"),
                 ("copy", "u1")])
PACE = np.dtype([("tensor", "f8"), ("shared", "f8"), ("copy", "f8"), ("wake", "f8"), ("ahead", "f8"), ("most_issues", "u8")])
KINDS = ("arithmetic", "result", "load", "store")
UNITS = ("", "fma", "alu", "special", "tensor memory", "memory")


@dataclass(frozen=True)
class Cost:
    """Of an opcode, in clocks. issue: slots of the quarter's scheduler. busy: that it takes `unit` of the quarter;
    each_register: for each register of a tensor memory access. after: until its warp may go on. latency: until what it loads is
    there, or asynchronous work is seen to be done, beside the units it takes. copy: its bytes go through the copy engine. kind:
    "arithmetic" may queue at its unit (`Clocks.ahead`), as the compiler interleaves it with other arithmetic; a "store" queues
    behind what its warp has queued before, a "result" waits for that; after a "load" a warp issues other loads only."""

    issue: float = 1.0
    busy: float = 0.0
    after: float = 0.0
    latency: float = 0.0
    unit: str = ""
    kind: str = "arithmetic"
    copy: bool = False
    each_register: bool = False


@dataclass(frozen=True)
class Clocks:
    """table: (pattern of opcodes, cost), the first that matches counts; the others cost a slot. tensor: multiply-adds of 16-bit
    operands; shared: bytes of a product's operands; copy: bytes; each a clock of an SM. wake: clocks from an event to the next
    instruction of a warp that slept for it. ahead: clocks of work that may be queued at a unit when a warp adds to it.
    most_issues: recorded in a timeline."""

    name: str
    table: tuple[tuple[str, Cost], ...]
    tensor: float
    shared: float = 128.0
    copy: float = 64.0
    wake: float = 30.0
    ahead: float = 128.0
    most_issues: int = 1 << 22

    def costs(self, opcodes: list[str]) -> np.ndarray:
        """[n] of COST, one an instruction."""
        known: dict[str, tuple] = {}
        for name in opcodes:
            if name not in known:
                known[name] = self._row(name)
        return np.array([known[name] for name in opcodes], COST)

    def _row(self, opcode: str) -> tuple:
        c = next((cost for pattern, cost in self.table if re.match(pattern, opcode)), Cost())
        registers = re.search(r"\.x(\d+)\b", opcode) if c.each_register else None
        busy = c.busy * int(registers[1]) if registers else c.busy
        return c.issue, busy, c.after, c.latency, UNITS.index(c.unit), KINDS.index(c.kind), c.copy

    def pace(self) -> np.ndarray:
        return np.array([(self.tensor, self.shared, self.copy, self.wake, self.ahead, self.most_issues)], PACE)


def table(tensor_memory: float = 0.5, tensor_latency: float = 30.0, copy_latency: float = 700.0) -> tuple:
    """Lanes a clock of an SM (CUDA programming guide, arithmetic instructions, compute capability 9.0 and 10.0): 128 for float32
    additions, products and fused ones, 64 for integers, comparisons and conversions, 16 for special functions. A packed pair is
    two. Two maxima of PTX are one three-input instruction; register moves vanish. Latencies are assumptions of the usual size:
    30 clocks of shared memory, 300 of the L2 cache, `copy_latency` of TMA, `tensor_latency` of tensor memory and of the tensor
    core's pipeline; tensor_memory: clocks a register of tcgen05.ld, twice that of tcgen05.st."""
    pair, single, half = Cost(busy=2, unit="fma"), Cost(busy=1, unit="fma"), Cost(busy=2, unit="alu")
    moves = dict(unit="tensor memory", each_register=True, latency=tensor_latency)
    memory = dict(busy=1, unit="memory")
    return (
        (r"mov|ld\.param|cvta", Cost(issue=0)),
        (r"(ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)\.|div\.", Cost(busy=8, unit="special")),
        (r"(max|min)\.(\w+\.)*f32", Cost(issue=0.5, busy=1, unit="alu")),
        (r"(add|sub|mul|fma)\.(\w+\.)*f32x2", pair),
        (r"(add|sub|mul|fma|mad)\.(\w+\.)*f(16|32)|mad\.lo|mul\.lo", single),
        (r"tcgen05\.ld", Cost(busy=tensor_memory, kind="load", **moves)),
        (r"tcgen05\.st", Cost(busy=2 * tensor_memory, kind="store", **moves)),
        (r"tcgen05\.mma|wgmma\.mma", Cost(latency=tensor_latency)),
        (r"(cp\.async|cp\.reduce\.async)\.bulk\.(tensor|shared|global)", Cost(latency=copy_latency, copy=True)),
        (r"mbarrier\.(try|test)_wait", Cost(after=15)),
        (r"bar(rier)?\.sync", Cost(after=15, kind="result")),
        (r"(shfl|vote|match|redux)", Cost(after=15, busy=2, unit="alu", kind="result")),
        (r"elect", Cost(after=5)),
        (r"ld\.(\w+\.)*shared|ldmatrix", Cost(kind="load", latency=30, **memory)),
        (r"ld\.|atom", Cost(kind="load", latency=300, **memory)),
        (r"st\.|red\.|stmatrix", Cost(kind="store", **memory)),
        (r"bra|ret|exit|setmaxnreg", Cost()),
        (r"bar|fence|membar|mbarrier|tcgen05|wgmma", Cost(kind="result")),
        (r"", half),
    )


# 2.25 PFLOP/s of 148 SMs at 1.85 GHz, and 989 TFLOP/s of 132 at 1.83 GHz, for 16-bit operands without sparsity.
BLACKWELL_CLOCKS = Clocks("sm_100a", table(), tensor=4096.0)
HOPPER_CLOCKS = Clocks("sm_90a", table(), tensor=2048.0)
