"""Device code: a Plan's graphs on a fragment of registers, each value computed at its level (`flexfa4.emit.emitter`).

    hooks = Hooks(signature, values)              # in the kernel's body
    tile = hooks.tile(b=b, h=h)                    # a work item
    rows = tile.rows([q0, q1])                     # the rows that a thread owns, outside its loop over KV tiles
    rows.score(fragment, columns, scale)           # in the loop: fragment[i, j] is the score of row i and key columns[j]
    rows.mask(fragment, columns, present)          # on PARTIAL tiles, and on the ragged last one
    rows.out(fragment, columns, lses)              # after normalisation

Plain Python run while the kernel is traced; all indices are Int32. Where the heads of a KV head share a query tile, tile() gets
b alone and rows() a head for each row.
"""
from __future__ import annotations

import math
from typing import Callable, Sequence

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from flexfa4.emit.emitter import Emitter, Scope
from flexfa4.emit.values import select
from flexfa4.facts.documents import TRUE, inside
from flexfa4.facts.lines import Line
from flexfa4.ir import Node, Op, topological
from flexfa4.plan.signature import KINDS

from .added import NOTHING, Added, Rows, Split, split_root
from .affine import Walker, affine_terms
from .arguments import Signature, Values
from .along import Along, WarpRows
from .bits import WORD, Pairs, Place, Run, Words, below, bit
from .carried import Fixed
from .gathers import Gathered, gathers
from .loops import unrolled
from .rounding import LOG2_E, in_log2
from .slices import Area, Read, Stretch, slice_reads
from .spread import Spread, as_word, of_word
from .units import Terms, terms_of

# Of a mask's values of distances, at a time: they are registers.
MOST_SPREAD = 2


class Hooks(Fixed):
    """The graphs of one kernel. Makes what needs no coordinate, so build it outside staged loops. own_rows: a thread has one row
    (`added.Rows`)."""

    def __init__(self, signature: Signature, values: Values, own_rows: bool = False):
        plan = signature.plan
        self.emitters: dict[str, Emitter] = {}
        self.reads: dict[str, tuple[Read, ...]] = {}
        for kind, graph in zip(KINDS, signature.graphs):
            if graph is not None:
                captures, slots, contiguous = signature.share(kind, values)
                self.emitters[kind] = Emitter(graph, captures, slots, plan.precise, plan.assume)
                self.reads[kind] = slice_reads(self.emitters[kind], contiguous) if kind != "out" else ()
                if kind == "mask" and signature.placed and inside(graph).root is not TRUE:
                    self.emitters["inside"] = Emitter(graph, captures, slots, plan.precise, plan.assume, (inside(graph).root,))
                    self.reads["inside"] = slice_reads(self.emitters["inside"], contiguous)
        self.terms = affine_terms(self.emitters["score"]) if "score" in self.emitters else ()
        layout = Pairs if plan.arch == "sm90" else Run
        self.words = {kind: Words(self.emitters[kind], plan.pack > 1, layout) for kind in ("mask", "inside") if self.has(kind)}
        rows, self.packed = Rows(own_rows, plan.pack == 1), plan.arch == "sm100"
        self.split = split_root(self.emitters["score"], self.terms, rows) if self.has("score") else None
        self.gathers = gathers(self.emitters["score"], self.split.inner) if own_rows and self.split else ()
        self.pack, self.spread = plan.pack, {}
        if own_rows and self.split:
            self.words["score"] = Words(self.emitters["score"], plan.pack > 1, root=self.split.inner)
            self.spread["score"] = self.split.spread
            self.reads["score"] = self._read_singly(self.reads["score"])
        if own_rows and self.has("mask") and not (self.split and self.split.line):
            (root,) = self.emitters["mask"].roots
            found = rows.apart(root, self.words["mask"].nodes)
            self.spread["mask"] = tuple((n, line) for n, line in found if line is Line.DIAGONAL)[:MOST_SPREAD]
        self.units = self._units() if own_rows and self.split and not plan.precise else None
        apart = self.split and (self.split.walked or self.split.of_row or self.split.factors)
        self.loses = bool(apart) and self.has("mask") and not own_rows

    def _units(self) -> Terms | None:
        """None too where the graph is no more than the score."""
        inner, scaled = self.split.inner, self.split.scaled
        score = scaled[0] if scaled else next((n for n in topological(inner) if n.op is Op.SCORE), None)
        apart = {self.split.kept, *(n for n, _ in self.split.spread)}
        affine = {t.node for t in self.terms}
        return None if inner.op is Op.SCORE else terms_of(inner, score, affine, apart)

    def _read_singly(self, reads: tuple[Read, ...]) -> tuple[Read, ...]:
        """Of the score graph's reads those that a thread makes for each score: not of words, and of no table or spread."""
        apart = {self.split.kept, *self.words["score"].nodes, *(n for n, _ in self.split.spread)}
        seen, stack = set(), [self.split.inner]
        while stack:
            n = stack.pop()
            if n not in seen and n not in apart:
                seen.add(n)
                stack.extend(n.args)
        return tuple(r for r in reads if r.node in seen)

    def has(self, kind: str) -> bool:
        return kind in self.emitters

    def softmax_scale(self, scale: Float32) -> Float32:
        """What scores are multiplied by inside exp2: with a score graph they are scaled before it, and log2(e) is left. The
        graph's additions are kept apart (`RowHooks.added`)."""
        return _exponent_scale(self.split, scale, self.factor())

    def factor(self) -> Float32 | None:
        """What the graph multiplies all scores by, where that is kept apart; 1 for NaN where rows may be `Added.lost`."""
        factor = self.split.factor(self.emitters["score"].launch) if self.split else None
        return select(factor != factor, Float32(1.0), factor, Float32) if self.loses and factor is not None else factor

    def walks(self) -> bool:
        """Whether the score graph adds affine terms that are kept apart from it."""
        return self.split is not None and bool(self.split.walked)

    def hidden(self) -> Float32:
        """A score that `softmax_scale` makes -inf."""
        return _hidden(self.factor())

    def tile(self, b: Int32, h: Int32 | None) -> "TileHooks":
        """What depends on the batch, and the head where the tile has one."""
        leaves = {"b": b} if h is None else {"b": b, "h": h}
        return TileHooks(self, {kind: e.scope(**leaves) for kind, e in self.emitters.items()})


class TileHooks(Fixed):
    """The graphs at one work item."""

    def __init__(self, hooks: Hooks, scopes: dict[str, Scope]):
        self.emitters, self.reads, self.scopes, self.words = hooks.emitters, hooks.reads, scopes, hooks.words
        self.walker = Walker(hooks.terms, scopes["score"]) if hooks.terms else None
        self.split, self.packed, self.gathers, self.pack = hooks.split, hooks.packed, hooks.gathers, hooks.pack
        self.units, self.spread, self.loses = hooks.units, hooks.spread, hooks.loses

    def rows(self, positions: Sequence[Int32], heads: Sequence[Int32] | None = None) -> "RowHooks":
        """Computes what a row needs beside its key, for score and mask. positions: q of each row; heads: h of each row where
        they differ."""
        leaves = [{"q": q} if heads is None else {"q": q, "h": heads[i]} for i, q in enumerate(positions)]
        made = {kind: [scope.inner(**at) for at in leaves] for kind, scope in self.scopes.items() if kind != "out"}
        return RowHooks(self, made, leaves)


class RowHooks(Fixed):
    """The graphs at the rows of a fragment. Fragments are indexed [row, column], rows as given to `TileHooks.rows`."""

    def __init__(self, tile: TileHooks, rows: dict[str, list[Scope]], leaves: list[dict]):
        self._emitters, self._tiles, self._rows, self._leaves = tile.emitters, tile.scopes, rows, leaves
        self._reads, self._walker, self._words, self._split = tile.reads, tile.walker, tile.words, tile.split
        self._packed, self._gathers, self._pack, self._units = tile.packed, tile.gathers, tile.pack, tile.units
        self._spread, self._loses = tile.spread, tile.loses

    def slices(self, kind: str, first_column: Int32, area: Area) -> list[Stretch]:
        """The look-ups of the score or mask graph that may be read as slices of this fragment, where each is `inside`."""
        if kind not in self._rows:
            return []
        scope = self._emitters[kind].join(self._rows[kind][0], self._tiles[kind].inner(kv=first_column))
        return [Stretch(read, self._emitters[kind], scope, area) for read in self._reads[kind]]

    def added(self, first_column: Int32, area: Area) -> Added:
        """What `score` leaves out, at a fragment."""
        if self._split is None or not (self._split.walked or self._split.of_row or self._loses):
            return NOTHING
        rows, step, clean, lost = self._rows["score"], None, None, []
        sums = [_sum(row, self._split.of_row) for row in rows]
        if self._loses:
            finite, clean = self._walker.finite() if self._split.walked else (Boolean(True), None)
            spoilt = self._factor_is_nan() | ~finite
            lost = [spoilt | Boolean(~(value < math.inf)) for value in sums]
            sums = [select(one, Float32(0.0), value, Float32) for one, value in zip(lost, sums)]
        begin = [in_log2(value) for value in sums] if self._split.of_row else [Float32(0.0)] * len(rows)
        if self._split.walked:
            first, emitter = self._tiles["score"].inner(kv=first_column), self._emitters["score"]
            for i, row in enumerate(rows):
                starts = self._walker.start(emitter, row, first, clean)
                begin[i] = sum((starts[k] * (sign * LOG2_E) for sign, k in self._split.walked), begin[i])
            step = sum((self._walker.steps[k] * (sign * LOG2_E) for sign, k in self._split.walked), Float32(0.0))
            if self._loses:
                step = select(cute.math.absf(step) < math.inf, step, Float32(0.0), Float32)
        return Added(begin, step, area.columns, tuple(lost))

    def _factor_is_nan(self) -> Boolean:
        """Of the whole launch."""
        factor = self._split.factor(self._emitters["score"].launch)
        return Boolean(False) if factor is None else Boolean(factor != factor)

    def factor(self, i: int = 0) -> Float32 | None:
        """`Hooks.factor` of a row."""
        return self._split.factor(self._rows["score"][i]) if self._split else None

    def exponent_scale(self, scale: Float32, i: int = 0) -> Float32:
        """`Hooks.softmax_scale` of a row."""
        return _exponent_scale(self._split, scale, self.factor(i))

    def hidden(self, i: int = 0) -> Float32:
        """A score that `exponent_scale` makes -inf."""
        return _hidden(self.factor(i))

    def gathered(self, first: Int32, spread: Spread) -> list[Gathered]:
        """The score graph's look-ups that may be read so for the keys of a spread, from the first on, where each is `inside`; for
        a thread with one row."""
        if not self._gathers or spread.shared is None:
            return []
        emitter, (row,) = self._emitters["score"], self._rows["score"]
        lane = emitter.join(self._tiles["score"], kv=spread.key(first))
        return [Gathered(g, emitter, row, lane, spread) for g in self._gathers]

    def on_line(self, q: Int32, kv: Int32) -> Float32:
        """What `Split.line`'s table has of the line through a position: what is added, in units of the exponent, or the bits
        of `Split.kept`'s value."""
        scope = self._tiles["score"].inner(q=q, kv=kv)
        if self._split.kept:
            return as_word(scope.value_of(self._split.kept)).bitcast(Float32)
        return in_log2(_sum(scope, self._split.tabled))

    def score(self, fragment: cute.Tensor, columns: Sequence[Int32], scale: Float32, area: Area | None = None,
              slices: Sequence[Stretch | Gathered] = (), kept: Callable | None = None, unit: Float32 | None = None,
              spread: Spread | None = None) -> None:
        """fragment[i, j] = score graph(fragment[i, j] * scale) in place, without what `added` gives; nothing without a score
        graph or where the scaled score is all that is left of it (`Hooks.softmax_scale`). area: where the offsets of rows and
        columns are known while compiling; affine terms are then walked. slices: those that are inside. kept: from a column of
        the fragment to the bits of `Split.kept`'s value. unit: what the result is times (`Hooks.units`), None for 1. spread: for
        `Split.spread`, of the fragment's columns."""
        if "score" not in self._rows or self._split.inner.op is Op.SCORE:
            return
        emitter, tile, rows = self._emitters["score"], self._tiles["score"], self._rows["score"]
        walks = self._walker is not None and area is not None
        scaled, units = self._split.scaled, None if unit is None else self._units
        numbers = [units.scaled(row, unit) if units else {} for row in rows]
        scale = scale * unit if units and units.score else scale
        factors = [scale * Float32(row.value_of(scaled[1])) if scaled else scale for row in rows]
        values = [self._times(fragment, i, factor) for i, factor in enumerate(factors)]
        if walks:
            first = tile.inner(kv=columns[0])
            starts = [self._walker.start(emitter, row, first) for row in rows]
            in_unit = [[value * unit for value in start] if units else [] for start in starts]
        words = self._score_words(columns)
        apart = spread.lines(self._along("score", columns[0]), self._split.spread) if spread else {}
        for j, kv in enumerate(columns):
            known = {n: bit(word, j % WORD, True) for n, word in words[j // WORD].items()} if words else {}
            known |= {n: values[j] for n, values in apart.items()}
            column = emitter.join(tile, known=known | _of_column(slices, j), kv=kv)
            for i, row in enumerate(rows):
                known = self._walker.known(starts[i], area.columns[j]) if walks else {}
                known |= _of_element(slices, i, j)
                if kept:
                    known[self._split.kept] = of_word(kept(j), self._kind(self._split.kept))
                if scaled:
                    known[scaled[0]] = values[i][j]
                scope = emitter.join(row, column, known=known, score=values[i][j])
                if units:
                    terms = self._walker.known(in_unit[i], area.columns[j], unit) if walks else {}
                    fragment[i, j] = units.value(scope, numbers[i] | terms | {units.score: values[i][j]})
                else:
                    fragment[i, j] = Float32(scope.value_of(self._split.inner))

    def _times(self, fragment: cute.Tensor, i: int, factor: Float32) -> list[Float32]:
        """A row of a fragment times a number; two at a time where the architecture can."""
        row = [fragment[i, j] for j in range(cute.size(fragment, mode=[1]))]
        if not self._packed or self._split.summed:
            return [value * factor for value in row]
        pairs = (cute.arch.mul_packed_f32x2(pair, (factor, factor), rnd="rn") for pair in zip(row[::2], row[1::2]))
        return [value for pair in pairs for value in pair]

    def mask(self, fragment: cute.Tensor, columns: Sequence[Int32], present: Int32, slices: Sequence[Stretch] = (),
             kind: str = "mask", hidden: float | Float32 = -math.inf) -> None:
        """fragment[i, j] = hidden where the mask graph says no, or key columns[j] is not present: of the keys from columns[0] on
        as many are. kind: "inside" for what is left of the mask where its label tests hold. The columns are those of a wgmma
        fragment."""
        for begin in range(0, len(columns), WORD):
            left = present - begin // WORD * Pairs.keys
            word = range(begin, min(begin + WORD, len(columns)))
            if kind not in self._rows:
                self._hide_word(fragment, below(Pairs.before(left)), word, hidden)
            else:
                for i, row in enumerate(self._rows[kind]):
                    self._mask_word(kind, fragment, (i, row), columns, word, left, slices, hidden)

    def _hide_word(self, fragment: cute.Tensor, seen: Int32, word: range, hidden) -> None:
        """`mask` where only keys past the end are hidden."""

        def hide(j: Int32) -> None:
            for i in range(len(self._leaves)):
                at = i, j + word.start
                fragment[at] = select(bit(seen, j, True), fragment[at], Float32(hidden), Float32)

        unrolled(0, len(word), hide)

    def _mask_word(self, kind: str, fragment: cute.Tensor, at: tuple[int, Scope], columns: Sequence[Int32], word: range,
                   present: Int32, slices: Sequence[Stretch], hidden) -> None:
        """`mask` of the columns of one word of one row."""
        (i, row), emitter, tile, words = at, self._emitters[kind], self._tiles[kind], self._words[kind]
        made, exist = words.at(Place(emitter.join(row, tile.inner(kv=columns[word[0]]))), present)
        for j in word:
            column = emitter.join(tile, known=_of_column(slices, j), kv=columns[j])
            known = {n: bit(w, j - word[0], words.is_all) for n, w in made.items()}
            seen = Boolean(emitter.join(row, column, known=known | _of_element(slices, i, j)).value())
            seen = seen if exist is None else seen & bit(exist, j - word[0], False)
            fragment[i, j] = select(seen, fragment[i, j], Float32(hidden), Float32)

    def mask_run(self, fragment: cute.Tensor, first: Int32, present: Int32, spread: Spread, hidden: float | Float32) -> None:
        """`mask` of one row, keys first, first + 1, ..., of which `present` exist; at most 32."""
        if "mask" not in self._words:
            self._hide_word(fragment, below(present), range(cute.size(fragment)), hidden)
            return
        seen = self._seen_of_run(first, present, spread)
        for j in range(cute.size(fragment)):
            fragment[0, j] = select(seen(j), fragment[0, j], Float32(hidden), Float32)

    def _seen_of_run(self, first: Int32, present: Int32, spread: Spread) -> Callable[[int], Boolean]:
        emitter, tile, (row,), made = self._emitters["mask"], self._tiles["mask"], self._rows["mask"], self._words["mask"]
        lane = emitter.join(tile, kv=spread.key(first))
        words, exist = made.at(Place(emitter.join(row, tile.inner(kv=first)), lane, self._along("mask", first)), present)
        columns = spread.values(emitter, lane, made.remaining())
        columns |= spread.lines(self._along("mask", first), self._spread.get("mask", ()))

        def seen(j: int) -> Boolean:
            column = emitter.join(tile, known={n: values[j] for n, values in columns.items()}, kv=first + j)
            known = {n: bit(word, j, made.is_all) for n, word in words.items()}
            value = Boolean(emitter.join(row, column, known=known).value())
            return value if exist is None else value & bit(exist, j, False)

        return seen

    def _kind(self, n: Node) -> type:
        """Of a node of 32 bits."""
        return Float32 if n.dtype.is_float else Int32

    def _along(self, kind: str, first: Int32) -> Along:
        return Along(self._emitters[kind], self._tiles[kind], WarpRows(self._leaves[0]["q"], self._pack), first)

    def _score_words(self, columns: Sequence[Int32]) -> list[dict[Node, Int32]]:
        """The words of the score graph, of each 32 columns."""
        words = self._words.get("score")
        if words is None or not words.nodes:
            return []
        emitter, tile, (row,) = self._emitters["score"], self._tiles["score"], self._rows["score"]
        along, made = self._along("score", columns[0]), []
        for number, first in enumerate(columns[::WORD]):
            lane = emitter.join(tile, kv=first + cute.arch.lane_idx())
            made.append(words.made(Place(emitter.join(row, tile.inner(kv=first)), lane, along, number)))
        return made

    def out(self, fragment: cute.Tensor, columns: Sequence[Int32], lses: Sequence[Float32]) -> None:
        """fragment[i, j] = out graph of it, with the natural-log LSE of row i and output column columns[j]; nothing without an
        out graph."""
        if "out" not in self._tiles:
            return
        tile = self._tiles["out"]
        rows = [tile.inner(lse=lse, **at) for lse, at in zip(lses, self._leaves)]
        for j, d in enumerate(columns):
            column = tile.inner(d=d)
            for i, row in enumerate(rows):
                fragment[i, j] = Float32(self._emitters["out"].join(row, column, out=fragment[i, j]).value())


def _sum(scope: Scope, terms: Sequence[tuple[int, Node]]) -> Float32:
    return sum((Float32(scope.value_of(n)) * float(sign) for sign, n in terms), Float32(0.0))


def _exponent_scale(split: Split | None, scale: Float32, factor: Float32 | None) -> Float32:
    untouched = split is None or split.inner.op is Op.SCORE
    return _scaled(scale * LOG2_E if untouched else Float32(LOG2_E), factor)


def _scaled(value: Float32, factor: Float32 | None) -> Float32:
    return value if factor is None else value * factor


def _hidden(factor: Float32 | None) -> Float32:
    return Float32(-math.inf) if factor is None else -factor * math.inf


def _of_column(slices: Sequence[Stretch | Gathered], j: int) -> dict:
    """What look-ups by key alone found, for a whole column."""
    return {s.node: s.at(0, j) for s in slices if not s.by_row}


def _of_element(slices: Sequence[Stretch | Gathered], i: int, j: int) -> dict:
    return {s.node: s.at(i, j) for s in slices if s.by_row}
