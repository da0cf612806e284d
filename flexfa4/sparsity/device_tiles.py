"""Kinds of tiles worked out on the device of the captures in steps of fixed shape, without a word from it to the host.

For masks whose terms compare something of the query with something of the key (`facts/terms.py`). Each side is evaluated at every
position of its axis; its least and greatest value in a tile say of each pair of tiles which terms are certain and which possible,
and its values at the ends of tiles which elements are true in the corners. Tiles alike in all corners are evaluated element by
element, as many as there is room for; the rest stays PARTIAL, which is always safe.
"""
from __future__ import annotations

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
_TILES_AT_ONCE = 1 << 22
# What is known of a side in a tile, by number: its least and greatest value, and those at the first and last position.
_LO, _HI, _ENDS = 0, 1, slice(2, 4)


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
    """What each term of a mask is over the tiles of both axes: for a side [4, Bm or 1, Hm or 1, tiles], numbered as above."""

    def __init__(self, bound: BoundGraph, terms: Terms, tiling: Tiling, device: torch.device):
        self.bound, self.terms, self.tiling, self.device = bound, terms, tiling, device
        self._names: dict[LabelPair, torch.Tensor] = {}
        self._leaves: dict[Op, torch.Tensor] = {}
        self.sides = [self._of_term(term) for term in terms.terms]

    def kinds(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the tiles in some rows of tiles: kinds, uint8, and which are PARTIAL for all that is known, and alike in their
        corners; [Bm, Hm, rows, kv_tiles] each."""
        t = self.tiling
        known = [self._known(term, *pair, rows) for term, pair in zip(self.terms.terms, self.sides)]
        must, may = bounds_of(self.terms.expression, [bounds for bounds, _ in known])
        corners = value_of(self.terms.expression, [value for _, value in known]).flatten(0, 1)
        shape = (t.Bm, t.Hm, len(range(t.q_tiles)[rows]), t.kv_tiles)
        must, may = must.expand(shape), may.expand(shape)
        return may.view(torch.uint8) + must.view(torch.uint8), (may ^ must) & (corners.any(0) == corners.all(0))

    def _known(self, term, f: torch.Tensor | None, g: torch.Tensor | None, rows: slice) -> tuple[tuple, torch.Tensor]:
        """((certain, possible), values in the corners [2 or 1, 2 or 1, ...]) of a term on the grid [Bm, Hm, rows, kv_tiles]."""
        f = None if f is None else f[:, None, ..., rows, None]
        g = None if g is None else g[None, ..., None, :]
        if isinstance(term, OneSided):
            return ((g[0, _LO], g[0, _HI]), g[:, _ENDS]) if f is None else ((f[_LO, 0], f[_HI, 0]), f[_ENDS])
        if term.op is Op.EQ:
            equal = f == g
            may = (f[_LO, 0] <= g[0, _HI]) & (g[0, _LO] <= f[_HI, 0])
            return (equal[_LO, _HI] & equal[_HI, _LO], may), equal[_ENDS, _ENDS]
        a, b = (f, g) if term.q_left else (g, f)
        true = a < b if term.op is Op.LT else a <= b
        bounds = (true[_HI, _LO], true[_LO, _HI]) if term.q_left else (true[_LO, _HI], true[_HI, _LO])
        return bounds, true[_ENDS, _ENDS]

    def _of_term(self, term) -> tuple[torch.Tensor | None, torch.Tensor | None]:
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
            labels = self.bound.tensors[pair.captures[0]].detach().movedim(pair.dim, -1).contiguous()
            if labels.dtype is torch.bool:
                labels = labels.view(torch.uint8)
            ordered, order = labels.sort(dim=-1, stable=True)
            names = order.gather(-1, torch.searchsorted(ordered, labels))
            self._names[pair] = names.movedim(-1, pair.dim)
        return self._names[pair]

    def _sum(self, parts: Parts, axis: Op) -> torch.Tensor:
        total = None
        for sign, n in parts:
            value = self._at(n, axis).long()
            value = value if sign == 1 else value * sign
            total = value if total is None else total + value
        return total

    def _at(self, n: Node, axis: Op, tensors=None) -> torch.Tensor:
        """A node at all positions of an axis, [Bm or 1, Hm or 1, tiles * tile]; past its end the last one again."""
        t = self.tiling
        size, length = (t.q_tiles * t.q_tile, t.q_len) if axis is Op.Q else (t.kv_tiles * t.kv_tile, t.kv_len)
        env = {Op.B: self._leaf(Op.B, t.Bm, t.Bm)[:, None, None], Op.H: self._leaf(Op.H, t.Hm, t.Hm)[:, None],
               axis: self._leaf(axis, size, length)}
        value = program((n,))(env, self.bound.tensors if tensors is None else tensors, self.bound.literals)[0]
        return value.to(self.device).expand(*torch.broadcast_shapes(value.shape, (1, 1, size)))

    def _leaf(self, op: Op, size: int, length: int) -> torch.Tensor:
        if op not in self._leaves:
            found = torch.arange(size, device=self.device)
            self._leaves[op] = found if size == length else found.clamp_(max=length - 1)
        return self._leaves[op]

    def _range(self, value: torch.Tensor, axis: Op) -> torch.Tensor:
        tiles = value.unflatten(-1, (-1, self.tiling.q_tile if axis is Op.Q else self.tiling.kv_tile))
        ends = tiles[..., 0], tiles[..., -1]
        if value.dtype is torch.bool:
            return torch.stack([tiles.all(-1), tiles.any(-1), *ends])
        return torch.stack([*tiles.aminmax(dim=-1), *ends])


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
