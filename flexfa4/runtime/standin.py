"""The kernel that a call runs with where its own is not there yet: another one of the same mod that computes the same.

Lengths, batches and numbers of heads choose among kernels of one mod for speed (`flexfa4.plan.stand_in`). Only the first of them
is waited for. Where the chosen one is neither in memory nor on the disk and another is, the call runs with that one, with spans
and work of its tiles, and the chosen one is compiled in a process apart (`apart`).

Calls wait as they do for a first kernel where no kernel can stand in (32-bit integers for 64), where it would take longer than
the compiler, where nothing can be compiled apart, while a CUDA graph is captured, which would replay the slower kernel for as
long as it lives, and under `torch.use_deterministic_algorithms`, since results of two kernels differ by rounding.
"""
from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache, lru_cache
from typing import Callable, NamedTuple

import torch
from torch import Tensor

from flexfa4.errors import UnsupportedError
from flexfa4.plan import Plan, Signature

from . import apart, capture, engine, kernels
from .lists import Lists, heads_of

log = logging.getLogger("flexfa4")

# A stand-in that would take so much longer than its own kernel is not worth it: compiling takes 2 to 6 s. At a rate that the
# kernels reach on a tile that is full.
_MOST_SLOWER_S = 3.0
_FLOPS = 4e14
# Beyond, making the order of the work takes as long.
_MOST_ITEMS = 1 << 22


class Call(NamedTuple):
    """lists_for: the lists of a call for the kernel of a plan, which splits no rows unless the plan says so. keys: that a query
    sees on average. one_tile: no other tiles are to be made."""

    query: Tensor
    key: Tensor
    value: Tensor
    lists_for: Callable[[Plan], Lists]
    keys: Callable[[], float]
    one_tile: bool = False


class Settled(NamedTuple):
    """What a call runs with; better: what compiles its own kernel, None where it runs with that or can have no other."""

    plan: Plan
    lists: Lists
    better: apart.Job | None = None


def settled(call: Call, plan: Plan, lists: Lists, counted: bool, contiguous: tuple[bool, ...]) -> Settled:
    """plan, lists: those that were chosen for the call; the rest as `kernels.signature_of` takes it."""
    own = Settled(plan, lists)
    if kernels.is_prepared(plan, lists, counted, contiguous) or not apart.possible():
        return own
    wanted = _wanted(plan, lists, counted, contiguous)
    missing = [w for w in wanted if not kernels.is_near(w)]
    if not missing:
        return own
    job = apart.known(missing)
    if must_wait(call.query.device):
        if job is not None:
            log.info("flexfa4: waits for %s", job.about)
            job.wait()
        return own
    if job is not None and job.state == "arrived":       # and its entries are gone
        return own
    found = _stand_in(call, plan, wanted[0].signature)
    if found is None:
        return own
    job = apart.begin(missing, in_words(wanted[0].signature.plan))
    if job is None or job.look():
        return own
    _say(in_words(found.plan), job.about)
    return found._replace(better=None if job.state == "failed" else job)


@cache
def _say(runs_with: str, wanted: str) -> None:
    """Once."""
    log.info("flexfa4: calls run with %s until there is %s", runs_with, wanted)


def must_wait(device: torch.device) -> bool:
    """Whether a call must have its own kernel whenever it comes."""
    return torch.are_deterministic_algorithms_enabled() or capture.active(device)


def _wanted(plan: Plan, lists: Lists, counted: bool, contiguous: tuple[bool, ...]) -> list[kernels.Wanted]:
    signature = kernels.signature_of(plan, lists, counted, contiguous)
    return [kernels.forward_of(signature), *([kernels.combine_of(signature)] if lists.parts else [])]


def _stand_in(call: Call, plan: Plan, own: Signature) -> Settled | None:
    """own: the kernel that is not there."""
    group = call.query.shape[1] // call.key.shape[1]
    others = _others(plan, own, group)
    before = _stood_in.get((own, group))               # calls of other lengths look no further
    for other, forward in others if before is None else (before, *others):
        if call.one_tile and (other.tiles, other.pack) != (plan.tiles, plan.pack) or _takes_too_long(call, plan, other):
            continue
        if not kernels.is_near(forward):
            continue
        try:
            made = call.lists_for(other)
        except UnsupportedError:           # tiles that cannot be found now
            continue
        if all(map(kernels.is_near, _wanted(other, made, own.counted, own.contiguous))):
            if len(_stood_in) >= _KEPT:
                _stood_in.clear()
            _stood_in[own, group] = other, forward
            return Settled(other, made)
    return None


_KEPT = 256
_stood_in: dict[tuple[Signature, int], tuple[Plan, kernels.Wanted]] = {}


@lru_cache(maxsize=_KEPT)
def _others(plan: Plan, own: Signature, group: int) -> list[tuple[Plan, kernels.Wanted]]:
    """Plans and their kernels, the nearest first."""
    masked = own.masked
    return [(other, kernels.forward_of(replace(own, plan=kernels.scheduled(other, own.counted), ordered=masked or other.split,
                                               halved=masked and other.halves)))
            for other in engine.others_for(plan, own.plan.split, group)]


def _takes_too_long(call: Call, plan: Plan, other: Plan) -> bool:
    batch, heads, q_len, dim = call.query.shape
    together, _ = heads_of(other, call.query, call.key)[1:]
    items = batch * together * -(-q_len // other.q_tile)
    flops = 2.0 * batch * heads * q_len * call.keys() * (dim + call.value.shape[3])
    places = [min(heads // call.key.shape[1], p.pack) / p.pack * p.tiles.rows for p in (plan, other)]
    return items >= _MOST_ITEMS or flops / _FLOPS * max(0.0, places[0] / places[1] - 1.0) > _MOST_SLOWER_S


def in_words(plan: Plan) -> str:
    return (f"the {plan.arch} kernel of {plan.tiles.rows} rows a work tile, {plan.tiles.kv_tile} keys a step, "
            f"{'a head' if plan.pack == 1 else f'places for {plan.pack} heads'} in each, rows "
            f"{'split over keys' if plan.split else 'whole'}")
