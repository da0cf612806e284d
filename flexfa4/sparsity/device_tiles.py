"""Kinds of tiles worked out on the device of the captures in steps of fixed shape, without a word from it to the host.

For masks whose terms compare something of the query with something of the key (`facts/terms.py`). Each side is evaluated at every
position of its axis; its least and greatest value in a tile say of each pair of tiles which terms are certain and which possible,
and its values at the ends of tiles which elements are true in the corners. Tiles alike in all corners are evaluated element by
element, as many as there is room for; the rest stays PARTIAL, which is always safe.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch

from flexfa4.facts.interval import Analysis
from flexfa4.facts.interval_values import Space, top
from flexfa4.facts.labels import LabelPair
from flexfa4.facts.terms import Comparison, OneSided, Parts, Terms, bounds_of, order_of, terms_of, value_of
from flexfa4.interpret import evaluate, program
from flexfa4.ir import Node, Op
from flexfa4.ir.bound import BoundGraph
from flexfa4.ir.dtypes import INT_RANGE

from .spans import Tiling

# Pairs of tiles looked at together: some hundred megabytes for all that is known of them.
_TILES_AT_ONCE = 1 << 24


@dataclass(frozen=True, eq=False)
class _Range:
    """A side over the tiles of an axis, [Bm, Hm, tiles] each: least and greatest value, those at the first and last position."""

    lo: torch.Tensor
    hi: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor

    def along(self, rows: slice | None) -> "_Range":
        """As rows (some of them) or, for None, as columns of a grid [Bm, Hm, rows, columns]."""
        parts = (self.lo, self.hi, self.first, self.last)
        return _Range(*(x[..., None, :] if rows is None else x[..., rows, None] for x in parts))


def fits(bound: BoundGraph, tiling: Tiling) -> bool:
    """Whether the mask is made of comparisons of integers whose sums cannot wrap around, whatever its captures hold."""
    terms = terms_of(bound.graph)
    if terms is None:
        return False
    analysis = Analysis(bound, {Op.B: (0, tiling.Bm - 1), Op.H: (0, tiling.Hm - 1), Op.Q: (0, tiling.q_len - 1),
                                Op.KV: (0, tiling.kv_len - 1)}, Space(None))
    analysis.tables = _Unknown()
    return all(_sums_fit(term, analysis) for term in terms.terms if isinstance(term, Comparison))


class _Unknown:
    """Stands for the tables of captures of which nothing is known but their types."""

    def load(self, n: Node, index: list):
        return top(n.dtype)

    def labels(self, pair: LabelPair) -> None:
        return None


def _sums_fit(term: Comparison, analysis: Analysis) -> bool:
    if not term.dtype.is_int:
        return False
    for parts in (term.q, term.kv):
        if len(parts) == 1 and parts[0][0] > 0:
            continue
        size = 0
        for _, n in parts:
            known: dict = {}
            analysis.along(order_of(n), analysis.limits, known)
            if known[n].least is None:
                return False
            size += max(abs(known[n].least), abs(known[n].most))
        if size > INT_RANGE[term.dtype][1] // 2:
            return False
    return True


def device_states(bound: BoundGraph, tiling: Tiling, device: torch.device, room: int) -> torch.Tensor:
    """uint8 [Bm, Hm, q_tiles, kv_tiles]: the kinds of all tiles of a mask that `fits`. room: elements that may be evaluated."""
    with torch.no_grad():
        sides = _Sides(bound, terms_of(bound.graph), tiling, device)
        step = max(1, _TILES_AT_ONCE // (tiling.Bm * tiling.Hm * tiling.kv_tiles))
        parts = [sides.kinds(slice(first, first + step)) for first in range(0, tiling.q_tiles, step)]
        states, alike = (torch.cat(x, dim=2) if len(x) > 1 else x[0] for x in zip(*parts))
        count = min(states.numel(), max(1, room // (tiling.q_tile * tiling.kv_tile)))
        return _settled(bound, tiling, states, alike, count)


class _Sides:
    """What each term of a mask is over the tiles of both axes."""

    def __init__(self, bound: BoundGraph, terms: Terms, tiling: Tiling, device: torch.device):
        self.bound, self.terms, self.tiling, self.device = bound, terms, tiling, device
        self._names: dict[LabelPair, torch.Tensor] = {}
        self.sides = [self._of_term(term) for term in terms.terms]

    def kinds(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the tiles in some rows of tiles: kinds, uint8, and which are PARTIAL for all that is known, and alike in their
        corners; [Bm, Hm, rows, kv_tiles] each."""
        t = self.tiling
        grid = [tuple(side and side.along(rows if k == 0 else None) for k, side in enumerate(pair)) for pair in self.sides]
        must, may = bounds_of(self.terms.expression, [self._bounds(*x) for x in zip(self.terms.terms, grid)])
        some = every = None
        for q_end in ("first", "last"):
            for kv_end in ("first", "last"):
                values = [self._value(term, pair, q_end, kv_end) for term, pair in zip(self.terms.terms, grid)]
                value = value_of(self.terms.expression, values)
                some, every = (value, value) if some is None else (some | value, every & value)
        shape = (t.Bm, t.Hm, len(range(t.q_tiles)[rows]), t.kv_tiles)
        must, may, some, every = (x.expand(shape) for x in (must, may, some, every))
        return may.to(torch.uint8) + must.to(torch.uint8), may & ~must & ~(some & ~every)

    def _bounds(self, term, pair: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        f, g = pair
        if isinstance(term, OneSided):
            one = g if f is None else f
            return one.lo, one.hi
        if term.op is Op.EQ:
            return (f.lo == g.hi) & (f.hi == g.lo), (f.lo <= g.hi) & (g.lo <= f.hi)
        a, b = (f, g) if term.q_left else (g, f)
        return (a.hi < b.lo, a.lo < b.hi) if term.op is Op.LT else (a.hi <= b.lo, a.lo <= b.hi)

    def _value(self, term, pair: tuple, q_end: str, kv_end: str) -> torch.Tensor:
        f, g = (None if side is None else getattr(side, end) for side, end in zip(pair, (q_end, kv_end)))
        if isinstance(term, OneSided):
            return g if f is None else f
        a, b = (f, g) if term.q_left else (g, f)
        return a < b if term.op is Op.LT else a <= b if term.op is Op.LE else a == b

    def _of_term(self, term) -> tuple[_Range | None, _Range | None]:
        if isinstance(term, OneSided):
            if term.axis is Op.KV:
                return None, self._range(self._at(term.node, Op.KV), Op.KV)
            return self._range(self._at(term.node, Op.Q), Op.Q), None
        pair = term.pair
        if pair is not None and len(pair.captures) == 1:
            tensors = list(self.bound.tensors)
            tensors[pair.captures[0]] = self._named(pair)
            loads = pair.loads[term.q_load], pair.loads[1 - term.q_load]
            return tuple(self._range(self._at(load, op, tensors), op) for load, op in zip(loads, (Op.Q, Op.KV)))
        return self._range(self._sum(term.q, Op.Q), Op.Q), self._range(self._sum(term.kv, Op.KV), Op.KV)

    def _named(self, pair: LabelPair) -> torch.Tensor:
        """Labels renamed: each is the first position along its axis that has it."""
        if pair not in self._names:
            labels = self.bound.tensors[pair.captures[0]].detach().movedim(pair.dim, -1)
            ordered, order = labels.sort(dim=-1, stable=True)
            place = torch.arange(labels.shape[-1], device=labels.device)
            begins = torch.ones(labels.shape, dtype=torch.bool, device=labels.device)
            begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
            group = torch.where(begins, place, 0).cummax(dim=-1).values
            names = torch.empty_like(order).scatter_(-1, order, order.gather(-1, group))
            self._names[pair] = names.movedim(-1, pair.dim)
        return self._names[pair]

    def _sum(self, parts: Parts, axis: Op) -> torch.Tensor:
        total = None
        for sign, n in parts:
            value = self._at(n, axis).long() * sign
            total = value if total is None else total + value
        return total

    def _at(self, n: Node, axis: Op, tensors=None) -> torch.Tensor:
        """A node at all positions of an axis, [Bm, Hm, tiles * tile]; past its end the last one again."""
        t = self.tiling
        size, length = (t.q_tiles * t.q_tile, t.q_len) if axis is Op.Q else (t.kv_tiles * t.kv_tile, t.kv_len)
        env = {Op.B: torch.arange(t.Bm, device=self.device)[:, None, None], Op.H: torch.arange(t.Hm, device=self.device)[:, None],
               axis: torch.arange(size, device=self.device).clamp_(max=length - 1)}
        value = program((n,))(env, self.bound.tensors if tensors is None else tensors, self.bound.literals)[0]
        return value.to(self.device).expand(t.Bm, t.Hm, size)

    def _range(self, value: torch.Tensor, axis: Op) -> _Range:
        tiles = value.unflatten(-1, (-1, self.tiling.q_tile if axis is Op.Q else self.tiling.kv_tile))
        ends = tiles[..., 0], tiles[..., -1]
        if value.dtype is torch.bool:
            return _Range(tiles.all(-1), tiles.any(-1), *ends)
        return _Range(*tiles.aminmax(dim=-1), *ends)


def _settled(bound: BoundGraph, tiling: Tiling, states: torch.Tensor, alike: torch.Tensor, count: int) -> torch.Tensor:
    """`states` with at most `count` of the tiles that are `alike` evaluated element by element."""
    at = torch.nonzero_static(alike.reshape(-1), size=count, fill_value=-1).view(-1)
    tile = at.clamp(min=0)
    row, j = tile // tiling.kv_tiles, tile % tiling.kv_tiles
    mask, i = row // tiling.q_tiles, row % tiling.q_tiles
    # Lanes past the end repeat the last position, which changes neither "any" nor "all".
    q = (i[:, None] * tiling.q_tile + torch.arange(tiling.q_tile, device=at.device)).clamp_(max=tiling.q_len - 1)
    kv = (j[:, None] * tiling.kv_tile + torch.arange(tiling.kv_tile, device=at.device)).clamp_(max=tiling.kv_len - 1)
    env = {Op.B: (mask // tiling.Hm)[:, None, None], Op.H: (mask % tiling.Hm)[:, None, None], Op.Q: q[:, :, None],
           Op.KV: kv[:, None, :]}
    value = evaluate(bound, env).to(at.device).expand(count, tiling.q_tile, tiling.kv_tile).flatten(1)
    kinds = value.any(1).to(torch.uint8) + value.all(1).to(torch.uint8)
    # Places without a tile go to a spare one at the end.
    found = torch.nn.functional.pad(states.reshape(-1), (0, 1))
    found.scatter_(0, torch.where(at < 0, found.numel() - 1, at), kinds)
    return found[:-1].view(states.shape)
