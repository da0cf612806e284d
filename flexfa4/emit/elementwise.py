"""A graph as an element-wise kernel: y[b, h, q, kv] = graph(score[b, h, q, kv], b, h, q, kv).

It shows that a graph compiles and what it costs, through the emitter that the attention kernels use, in the register layout of
their softmax: a thread owns `rows` rows of `columns` neighbouring columns.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from typing import Optional

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint8
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_fake_tensor

from flexfa4.ir import Graph
from flexfa4.plan.ranges import Assumptions

from .cubin import KernelFacts, kernel_facts
from .emitter import Emitter, slot_types
from .values import MEMORY_TYPE, as_int

THREADS = 128


@dataclass(frozen=True)
class Fragment:
    """What a thread owns. 1 x 32 is a piece of the sm100 layout (a row a thread); 2 x 16 of the sm90 one."""

    rows: int = 1
    columns: int = 32

    def __post_init__(self):
        if self.rows < 1 or self.columns < 4 or self.columns % 4:
            raise ValueError(f"{self}: needs at least one row, and columns in fours (16-byte vectors)")


@dataclass(frozen=True, eq=False)
class Compiled:
    """PTX text, resource figures, and the callable (x, lse, y, captures, slots, stream) where this machine can run it."""

    ptx: str
    facts: KernelFacts
    cubin: bytes
    seconds: float
    function: object = field(repr=False)


class Elementwise:
    """x, y: [B, H, Sq, Skv] (out mods: [B, H, Sq, D]), last dim contiguous and a multiple of the fragment's columns; y is
    float32, or uint8 for masks. lse: [B, H, Sq] float32, read by out mods only. Rows past Sq repeat the last one."""

    def __init__(self, graph: Graph, fragment: Fragment, precise: bool, assume: Assumptions):
        self.graph, self.fragment, self.precise, self.assume = graph, fragment, precise, assume

    @cute.jit
    def __call__(
        self, x: cute.Tensor, lse: cute.Tensor, y: cute.Tensor, captures: Optional[tuple], slots: Optional[tuple], stream
    ):
        batch, heads, rows, columns = x.shape
        grid = (cute.ceil_div(columns, self.fragment.columns), cute.ceil_div(rows, THREADS * self.fragment.rows), batch * heads)
        self.kernel(x, lse, y, captures, slots).launch(grid=grid, block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, x: cute.Tensor, lse: cute.Tensor, y: cute.Tensor, captures: Optional[tuple], slots: Optional[tuple]):
        _emit_kernel(self, x, lse, y, captures, slots)


def _emit_kernel(kernel: Elementwise, x, lse, y, captures, slots) -> None:
    """The body: plain Python at trace time."""
    thread = cute.arch.thread_idx()[0]
    column_block, row_block, batch_head = cute.arch.block_idx()
    heads, rows = x.shape[1], Int32(x.shape[2])
    b, h = batch_head // heads, batch_head % heads
    emitter = Emitter(kernel.graph, captures or (), slots or (), kernel.precise, kernel.assume)
    tile = emitter.scope(b=Int32(b), h=Int32(h))
    first = row_block * (THREADS * kernel.fragment.rows) + thread
    of_out = kernel.graph.kind == "out"
    held = []
    for i in range(kernel.fragment.rows):
        q = Int32(cutlass.select_(first + i * THREADS < rows, first + i * THREADS, rows - 1))
        leaves = {"q": q, "lse": lse[b, h, q]} if of_out else {"q": q}
        held.append((tile.inner(**leaves), *_row_fragments(kernel, x, y, (b, h, q), column_block)))
    for j in range(kernel.fragment.columns):
        position = Int32(column_block * kernel.fragment.columns + j)
        column = tile.inner(d=position) if of_out else tile.inner(kv=position)
        for row, source, result, _ in held:
            leaf = {"out": source[j]} if of_out else {} if kernel.graph.kind == "mask" else {"score": source[j]}
            value = emitter.join(row, column, **leaf).value()
            result[j] = Uint8(as_int(value, Int32)) if kernel.graph.kind == "mask" else Float32(value)
    for _, _, result, target in held:
        cute.autovec_copy(result, target)


def _row_fragments(kernel: Elementwise, x, y, row, column_block) -> tuple:
    """(loaded source registers, result registers, where they go) of one row."""
    shape = (kernel.fragment.columns,)
    source_view = cute.local_tile(x[(*row, None)], shape, (column_block,))
    target = cute.local_tile(y[(*row, None)], shape, (column_block,))
    source = cute.make_rmem_tensor(cute.make_layout(shape), Float32)
    if kernel.graph.kind != "mask":
        cute.autovec_copy(source_view, source)
    return source, cute.make_rmem_tensor(cute.make_layout(shape), y.element_type), target


def compile(
    graph: Graph,
    arch: str = "sm_100a",
    precise: bool = False,
    fragment: Fragment = Fragment(),
    assume: Assumptions = Assumptions(),
) -> Compiled:
    """Compile for "sm_90a" or "sm_100a"; needs no GPU. The callable runs only where the environment's CUTE_DSL_ARCH is `arch`.
    Raises what CuTe DSL raises where it cannot compile."""
    began = time.perf_counter()
    batch, heads, rows = cute.sym_int(), cute.sym_int(), cute.sym_int()
    columns = cute.sym_int(divisibility=fragment.columns)
    order = (3, 2, 1, 0)
    result_type = Uint8 if graph.kind == "mask" else Float32
    x = make_fake_compact_tensor(Float32, (batch, heads, rows, columns), stride_order=order, assumed_align=16)
    y = make_fake_compact_tensor(result_type, (batch, heads, rows, columns), stride_order=order, assumed_align=16)
    lse = make_fake_compact_tensor(Float32, (batch, heads, rows), stride_order=(2, 1, 0))
    captures = tuple(
        make_fake_tensor(
            MEMORY_TYPE[c.dtype],
            tuple(cute.sym_int() for _ in range(max(1, c.rank))),
            stride=tuple(cute.sym_int64() for _ in range(max(1, c.rank))),
        )
        for c in graph.captures
    )
    slots = tuple(kind(0) for kind in slot_types(graph, assume))
    # An empty tuple is no argument type of the DSL; None is.
    with tempfile.TemporaryDirectory(prefix="flexfa4-") as dumps:  # keeping the PTX writes it to a file as well
        compiled = cute.compile(
            Elementwise(graph, fragment, precise, assume),
            x,
            lse,
            y,
            captures or None,
            slots or None,
            make_fake_stream(),
            options=f"--gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {dumps}",
        )
    (facts,) = kernel_facts(compiled.__cubin__)
    return Compiled(compiled.__ptx__, facts, compiled.__cubin__, time.perf_counter() - began, compiled)
