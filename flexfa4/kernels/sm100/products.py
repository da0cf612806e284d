"""Products on the fifth-generation tensor core, written as one block of PTX each: what changes from call to call are two
descriptors, and the steps along the inner dimension are added to them as constants. (Through `cute.gemm` each step is elected and
addressed by itself, and the compiler keeps the addresses of all steps in registers, more than the mma warp has.)

Operands: PTX ISA 9.x, "tcgen05 matrix descriptors" and "instruction descriptor" of .kind::f16.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import BFloat16, Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu.tcgen05 import smem_descriptor_to_int

from ..carried import Fixed

STEP = 16  # of the inner dimension in one instruction
STEP_COLUMNS = 8  # of tensor memory that a step of P takes: two elements a column


def instruction_descriptor(element, shape: tuple[int, int], b_transposed: bool) -> int:
    """Float32 += element x element; shape: (rows, columns) of the result. b_transposed: the inner dimension of the second operand
    is not the contiguous one."""
    rows, columns = shape
    kind = 1 if element is BFloat16 else 0
    return 1 << 4 | kind << 7 | kind << 10 | b_transposed << 16 | (columns >> 3) << 17 | (rows >> 4) << 24


@dataclass(frozen=True)
class SharedOperand(Fixed):
    """An operand in shared memory. descriptor: of its first step; steps: what to add to it for each, in units of 16 bytes."""

    descriptor: Int64
    steps: tuple[int, ...]

    @staticmethod
    def of(fragment: cute.Tensor) -> SharedOperand:
        """From `make_fragment_A` or `make_fragment_B`, one stage."""
        steps = range(cute.size(fragment, mode=[2]))
        offsets = tuple(cute.crd2idx((0, 0, step), fragment.layout) for step in steps)
        return SharedOperand(smem_descriptor_to_int(fragment.iterator), offsets)


def multiply(result: Int32, a: SharedOperand | Int32, b: SharedOperand, steps: range, instruction: int, accumulate,
             ctas: int) -> None:
    """Issues result (+)= a b over some steps, by one thread. result: first column of tensor memory; a: an operand in shared
    memory, or the first column of one in tensor memory. accumulate: of the first step, the others always do. ctas: 2 for a
    product of a pair, issued by its first CTA; the operands and the result of both lie alike."""
    shared = isinstance(a, SharedOperand)
    lines = [".reg .pred add;", ".reg .b64 a, b;", ".reg .b32 t, i;", f"mov.b32 i, {instruction};", "setp.ne.b32 add, $3, 0;"]
    before_a, before_b = ("$1", 0), ("$2", 0)
    for n, step in enumerate(steps):
        # From one step to the next, not from the first: all steps' addresses at once take more uniform registers than there are.
        at_a, at_b = a.steps[step] if shared else step * STEP_COLUMNS, b.steps[step]
        lines.append(f"add.s64 b, {before_b[0]}, {at_b - before_b[1]};")
        lines.append(f"add.{'s64 a' if shared else 's32 t'}, {before_a[0]}, {at_a - before_a[1]};")
        lines.append(f"tcgen05.mma.cta_group::{ctas}.kind::f16 [$0], {'a' if shared else '[t]'}, b, i, {'add' if n == 0 else 1};")
        before_a, before_b = ("a" if shared else "t", at_a), ("b", at_b)
    operands = (Int32(result), a.descriptor if shared else a, b.descriptor, Int32(accumulate))
    llvm.inline_asm(
        None, [x.ir_value() for x in operands], "{\n" + "\n".join(lines) + "\n}", f"r,{'l' if shared else 'r'},l,r",
        has_side_effects=True, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT,
    )  # fmt: skip
