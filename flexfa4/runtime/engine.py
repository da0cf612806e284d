"""Which engine runs a call: a GPU kernel where one fits, else the tiled engine, with the reason. Imports no compiler."""
from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Callable, Sequence

import torch
from torch import Tensor

from flexfa4.facts.doubles import needs_doubles
from flexfa4.ir import DType
from flexfa4.ir.bound import BoundGraph
from flexfa4.plan import (WIDE_KEYS, Asked, Assumptions, BudgetError, Heads, Plan, RowLayout, plan_forward, row_layout, stand_ins,
                          wide_layout)
from flexfa4.sparsity import Spans
from flexfa4.sparsity.work_spans import WorkSpans

# Compute capability -> the architecture of its kernel. That of (10, 0) has run in the emulator only.
ARCHITECTURES = {(9, 0): "sm90", (10, 0): "sm100"}
_NARROW = Assumptions()
# An integer that no narrow plan takes.
_WIDE_LITERAL = 1 << 62
# What the 32-bit numbers of the kernels hold, with room for the tiles at the ends: of rows, and of places along a dimension.
_MOST_ROWS, MOST_ITEMS = 1 << 30, 1 << 31
# Beyond, scale * log2(e) or a score times it leaves float32, where a hidden score of -inf becomes NaN.
_SCALES = 2.0**-100, 2.0**100
_DTYPES = {torch.float16: DType.F16, torch.bfloat16: DType.BF16}


@dataclass(frozen=True)
class Choice:
    """plan: of the kernel, or None for the tiled engine; reason: why no kernel takes the call, empty where one does; wide: the
    plan for a mask whose rows turn out long, None where it is the same."""

    plan: Plan | None
    reason: str = ""
    wide: Plan | None = None

    def settled(self, spans_at: Callable[[Plan], Spans | WorkSpans]) -> tuple[Plan, Spans | WorkSpans]:
        """The plan of a call with a mask, and the mask's spans at its tiles. spans_at: makes those of a plan, or finds them."""
        spans = spans_at(self.plan)
        if self.wide is None or spans.mean_keys < WIDE_KEYS:
            return self.plan, spans
        return self.wide, spans_at(self.wide)


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
    if not _SCALES[0] <= scale <= _SCALES[1]:
        return Choice(None, f"scale={scale}: the kernels compute in float32 and take 2**-100 to 2**100")
    if 0 in query.shape or 0 in key.shape:
        return Choice(None, "a dimension is empty")
    present = [b for b in bounds if b is not None]
    if any(0 in t.shape for b in present for t in b.tensors):
        return Choice(None, "a captured tensor is empty")
    for bound in present:
        if needs_doubles(bound.graph):
            name = f"{bound.origin.where()}: {bound.origin.name}"
            return Choice(None, f"{name} compares, rounds or subtracts float64 values, and the kernels compute in float32: "
                          "capture integers, or what is exact enough in float32")
    too_large = _too_large(query, key, present)
    if too_large:
        return Choice(None, f"{too_large}: the kernels count in 32 bits")
    literals = tuple(x for b in present for x in b.literals)
    lengths = (query.shape[2], key.shape[2])
    graphs, dims = tuple(b.graph for b in present), (query.shape[3], value.shape[3])
    heads = Heads.of(query.shape[1] // key.shape[1], graphs)
    try:
        layout = row_layout(arch, *dims, heads, query.shape[2])
        alike = 0 if heads.masked else query.shape[0] * query.shape[1]
        wide = wide_layout(layout, arch, dims, heads, query.shape[2], alike)
    except BudgetError as error:
        return Choice(None, str(error))
    rest = _NARROW.holds(lengths, literals, query.shape[:2]), precise
    if not heads.masked:
        return _plan(arch, _DTYPES[query.dtype], dims, graphs, wide, *rest)
    usual = _plan(arch, _DTYPES[query.dtype], dims, graphs, layout, *rest)
    if wide == layout:
        return usual
    return replace(usual, wide=_plan(arch, _DTYPES[query.dtype], dims, graphs, wide, *rest).plan)


def _too_large(query: Tensor, key: Tensor, present: Sequence[BoundGraph]) -> str:
    """What of a call 32 bits do not hold; empty where they do."""
    for name, t in (("query", query), ("key", key)):
        if max(t.shape[:3]) > _MOST_ROWS:
            return f"{name} has shape {tuple(t.shape)}"
    batch, heads, q_len, _ = query.shape
    if batch * heads * (q_len // 64 + 1) >= MOST_ITEMS:
        return f"query has shape {tuple(query.shape)}"
    shapes = (t.shape for b in present for t in b.tensors)
    return next((f"a captured tensor has shape {tuple(s)}" for s in shapes if max(s, default=0) >= MOST_ITEMS), "")


@lru_cache(maxsize=512)
def _plan(arch: str, dtype: DType, dims: tuple[int, int], graphs: tuple, layout: RowLayout, narrow: bool,
          precise: bool) -> Choice:
    try:
        plan = plan_forward(arch, dtype, *dims, graphs, layout, literals=() if narrow else (_WIDE_LITERAL,),
                            precise=precise)
    except BudgetError as error:
        return Choice(None, str(error))
    _asked[plan] = Asked(arch, dtype, dims, graphs, precise)
    return Choice(plan)


_asked: "weakref.WeakKeyDictionary[Plan, Asked]" = weakref.WeakKeyDictionary()


def others_for(plan: Plan, split: bool, group: int) -> tuple[Plan, ...]:
    """Plans whose kernels compute the calls of a plan that `choose` gave, the nearest first; split: whether its own splits
    rows."""
    asked = _asked.get(plan)
    return () if asked is None else stand_ins(replace(plan, split=split), asked, group)


@cache
def announce(reason: str) -> None:
    """Says once why calls on a GPU go to the tiled engine."""
    warnings.warn(f"flex_attention runs on the tiled engine, which is slower than a kernel: {reason}", stacklevel=2)
