"""Which engine runs a call: a GPU kernel where one fits, else the tiled engine, with the reason. Imports no compiler."""
from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Sequence

import torch
from torch import Tensor

from flexfa4.ir import DType
from flexfa4.ir.bound import BoundGraph
from flexfa4.plan import Assumptions, BudgetError, Heads, Plan, RowLayout, plan_forward, row_layout

# Compute capability -> the architecture of its kernel. That of (10, 0) has run in the emulator only.
ARCHITECTURES = {(9, 0): "sm90", (10, 0): "sm100"}
_NARROW = Assumptions()
# An integer that no narrow plan takes.
_WIDE_LITERAL = 1 << 62
_DTYPES = {torch.float16: DType.F16, torch.bfloat16: DType.BF16}


@dataclass(frozen=True)
class Choice:
    """plan: of the kernel, or None for the tiled engine; reason: why no kernel takes the call, empty where one does."""

    plan: Plan | None
    reason: str = ""


@lru_cache(maxsize=None)
def architecture(device: torch.device) -> str | None:
    """The kernel architecture of a device, or None."""
    return ARCHITECTURES.get(torch.cuda.get_device_capability(device)) if device.type == "cuda" else None


def choose(arch: str | None, query: Tensor, key: Tensor, value: Tensor, scale: float,
           bounds: Sequence[BoundGraph | None], precise: bool = False) -> Choice:
    """bounds: the score, mask and out graphs. `arch` is that of the device, None where it has no kernel. precise: as a Plan has
    it."""
    if arch is None:
        return Choice(None, f"no kernel exists for {query.device}")
    if query.dtype not in _DTYPES:
        return Choice(None, f"the kernels take float16 and bfloat16, not {query.dtype}")
    if scale <= 0:
        return Choice(None, f"scale={scale}: the kernels look for the largest score before they scale it")
    if 0 in query.shape or 0 in key.shape:
        return Choice(None, "a dimension is empty")
    present = [b for b in bounds if b is not None]
    if any(0 in t.shape for b in present for t in b.tensors):
        return Choice(None, "a captured tensor is empty")
    literals = tuple(x for b in present for x in b.literals)
    lengths = (query.shape[2], key.shape[2])
    graphs, dims = tuple(b.graph for b in present), (query.shape[3], value.shape[3])
    try:
        layout = row_layout(arch, *dims, Heads.of(query.shape[1] // key.shape[1], graphs), query.shape[2])
    except BudgetError as error:
        return Choice(None, str(error))
    return _plan(arch, _DTYPES[query.dtype], dims, graphs, layout, _NARROW.holds(lengths, literals), precise)


@lru_cache(maxsize=512)
def _plan(arch: str, dtype: DType, dims: tuple[int, int], graphs: tuple, layout: RowLayout, narrow: bool,
          precise: bool) -> Choice:
    try:
        plan = plan_forward(arch, dtype, *dims, graphs, layout, literals=() if narrow else (_WIDE_LITERAL,),
                            precise=precise)
    except BudgetError as error:
        return Choice(None, str(error))
    return Choice(plan)


@cache
def announce(reason: str) -> None:
    """Says once why calls on a GPU go to the tiled engine."""
    warnings.warn(f"flex_attention runs on the tiled engine, which is slower than a kernel: {reason}", stacklevel=2)
