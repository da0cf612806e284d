"""Loops that the compiler unrolls: a body that does the same at each index is traced and lowered once."""
from __future__ import annotations

from typing import Callable

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cutlass_dsl import LoopUnroll


def unrolled(first: int, end: int, body: Callable[[Int32], None]) -> None:
    """body(first), ..., body(end - 1), the index a constant in machine code, but not while tracing. What one index leaves for the
    next goes through tensors in registers."""
    for i in cutlass.for_generate(first, end, unroll=LoopUnroll(full=True)):
        body(Int32(i))
        cutlass.yield_out()


def in_a_row(fragment: cute.Tensor) -> cute.Tensor:
    """All numbers of a fragment in registers under one index, as they lie there."""
    return cute.make_tensor(fragment.iterator, cute.make_layout(cute.size(fragment)))
