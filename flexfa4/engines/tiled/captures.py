"""Gradients of captured tensors: every lane adds (score gradient * adjoint) to the element that its lookup read.

Lanes are summed first over the axes that the lookup's indices do not depend on, so that a per-head scale costs a reduction and
not a scatter. All additions happen in a fixed order: results are equal bit for bit from run to run.
"""
from __future__ import annotations

import torch

from flexfa4.ir import Node
from flexfa4.ir.bound import BoundGraph


class CaptureGradients:
    """Sums gradients of the captures named in `wanted`; `loads` are the (load, adjoint) pairs of facts.derivative."""

    def __init__(self, bound: BoundGraph, loads: tuple[tuple[Node, Node], ...], wanted: frozenset[int], dtype: torch.dtype):
        self.bound = bound
        self.loads = tuple((load, adjoint) for load, adjoint in loads if load.attr in wanted)
        self.totals = {i: torch.zeros(max(1, bound.tensors[i].numel()), dtype=_sum_type(bound.tensors[i], dtype),
                                      device=bound.tensors[i].device) for i in sorted(wanted)}

    @property
    def roots(self) -> tuple[Node, ...]:
        """What a program must evaluate in each tile for `add`: per load, its adjoint and then its indices."""
        return tuple(n for load, adjoint in self.loads for n in (adjoint, *load.args))

    def add(self, gradient: torch.Tensor, values, clean) -> None:
        """gradient: d loss / d result on one tile; values: those of `roots`; clean(t): zeroes t's masked lanes in place."""
        at = iter(values)
        for load, _ in self.loads:
            lanes = clean(torch.mul(gradient, next(at)))
            self._scatter(load.attr, lanes, [next(at) for _ in load.args])

    def _scatter(self, capture: int, lanes: torch.Tensor, indices: list[torch.Tensor]) -> None:
        total, sizes = self.totals[capture], self.bound.tensors[capture].shape
        position = torch.zeros((), dtype=torch.int64, device=lanes.device)
        for index, size in zip(indices, sizes):
            index = index.to(lanes.device)
            index = torch.where(index < 0, index + size, index).clamp_(0, size - 1)
            position = position * size + index
        lanes = lanes.to(total.dtype)
        position = position.reshape((1,) * (lanes.dim() - position.dim()) + position.shape)
        constant = [d for d in range(lanes.dim()) if position.shape[d] == 1 and lanes.shape[d] != 1]
        if constant:
            lanes = lanes.sum(constant, keepdim=True)
        position = position.expand(lanes.shape).reshape(-1).to(total.device)
        scatter_add(total, position, lanes.reshape(-1).to(total.device))

    def results(self) -> dict[int, torch.Tensor]:
        """Gradient of each wanted capture, in its shape and dtype."""
        return {i: t[:self.bound.tensors[i].numel()].view(self.bound.tensors[i].shape).to(self.bound.tensors[i].dtype)
                for i, t in self.totals.items()}


def scatter_add(total: torch.Tensor, position: torch.Tensor, lanes: torch.Tensor) -> None:
    """total[position[i]] += lanes[i], in a fixed order."""
    if total.device.type == "cpu":
        total.index_add_(0, position, lanes)                        # a serial loop
    else:
        total.index_put_((position,), lanes, accumulate=True)       # sorts by position, where index_add_ uses atomics


def _sum_type(tensor: torch.Tensor, compute: torch.dtype) -> torch.dtype:
    return torch.promote_types(compute, tensor.dtype)
