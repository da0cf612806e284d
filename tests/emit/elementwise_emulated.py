"""Runs an element-wise kernel's PTX in the emulator: kernel parameters are packed here, as the DSL lays them out."""
from __future__ import annotations

import struct

import torch

from flexfa4 import emulator
from flexfa4.emit.elementwise import THREADS, Compiled, Fragment
from flexfa4.emit.emitter import slot_types
from flexfa4.ir import Graph
from flexfa4.plan import Assumptions


def packed(t: torch.Tensor, static_last: bool) -> bytes:
    """A tensor parameter: address, int32 extents, padding to 8 bytes, int64 strides (a static one is left out)."""
    body = struct.pack("<Q", t.data_ptr()) + struct.pack(f"<{t.dim()}i", *t.shape)
    strides = t.stride()[:-1] if static_last else t.stride()
    return body + bytes(-len(body) % 8) + struct.pack(f"<{len(strides)}q", *strides)


def _scalar(value, kind) -> bytes:
    name = kind.__name__
    return struct.pack({"Float32": "<f", "Int32": "<i", "Int64": "<q"}[name], float(value) if name == "Float32" else int(value))


def run(compiled: Compiled, graph: Graph, x: torch.Tensor, lse: torch.Tensor, tensors=(), literals=(),
        assume: Assumptions = Assumptions(), fragment: Fragment = Fragment()) -> torch.Tensor:
    """y of x [B, H, Sq, columns] float32; lse [B, H, Sq] float32. Returns float32, or bool for masks."""
    mask = graph.kind == "mask"
    y = torch.full(x.shape, 7, dtype=torch.uint8 if mask else torch.float32)
    kept = [t.detach().view(torch.uint8) if t.dtype is torch.bool else t.detach() for t in tensors]
    kept = [t.reshape(1) if t.dim() == 0 else t for t in kept]
    arguments = [packed(x, True), packed(lse, True), packed(y, True), *(packed(t, False) for t in kept),
                 *(_scalar(v, kind) for v, kind in zip(literals, slot_types(graph, assume)))]
    sizes = [p.size for p in emulator.native.load(compiled.ptx, None).program.kernel.parameters]
    assert sizes == [len(a) for a in arguments], f"kernel parameters of {sizes} bytes, {[len(a) for a in arguments]} packed"
    batch, heads, rows, columns = x.shape
    grid = (columns // fragment.columns, -(-rows // (THREADS * fragment.rows)), batch * heads)
    emulator.run(compiled.ptx, grid, (THREADS, 1, 1), arguments)
    return y.bool() if mask else y
