"""Comparisons of positions in a mask graph, for up to 32 keys at once: a word with a bit a key.

`kv <= q`, `q - kv < window` or `kv < prefix[b]` change at one key of a row. Of a comparison whose two sides differ by one more
(or one less) from key to key, the word of a stretch of keys is one shift by where it changes, and `&`, `|`, `~` of such
comparisons are those of words. Testing a bit at a constant place then costs less than a comparison: the compiler unpacks seven at
a time.

Where a thread holds a row of scores the keys are consecutive; in a fragment of wgmma they are two of every eight (`Pairs`), and
where a comparison changes is counted in those.

`labels[q] == labels[kv]` compares something of the key alone. Its word takes a step for each different label among the keys, of
which there are one or two where documents are longer than a word. Any condition on the key alone, or on the distance alone, is a
ballot or two (`along.py`).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from flexfa4.emit.emitter import Emitter, Scope
from flexfa4.emit.values import as_int, select
from flexfa4.facts.axes import axes
from flexfa4.facts.lines import Line, lines
from flexfa4.ir import Node, Op, topological
from flexfa4.ir.dtypes import INT_RANGE

from .along import Along
from .carried import Fixed

WORD = 32
_PER_KEY = frozenset({Op.KV, Op.SCORE})
_COMPARISONS = frozenset({Op.LT, Op.LE, Op.EQ, Op.NE})
_LOGIC = {Op.AND: operator.and_, Op.OR: operator.or_, Op.XOR: operator.xor, Op.NOT: operator.invert}
_STEPS = {Op.ADD: operator.add, Op.SUB: operator.sub, Op.NEG: operator.neg, Op.CAST: lambda step: step}
_FAR = 1 << 62
_NEAR = 1 << 30


def key_steps(emitter: Emitter) -> dict[Node, int]:
    """By how much an integer node grows from one key to the next, for those where that is one number and nothing wraps."""
    steps: dict[Node, int] = {}
    for root in emitter.roots:
        on = axes(root)
        for n in topological(root):
            if n.dtype.is_int and not on[n] & _PER_KEY:
                steps[n] = 0
            elif n.op is Op.KV:
                steps[n] = 1
            elif n.dtype.is_int and n.op in _STEPS and all(a in steps for a in n.args) and _never_wraps(n, emitter):
                steps[n] = _STEPS[n.op](*(steps[a] for a in n.args))
    return steps


def _never_wraps(n: Node, emitter: Emitter) -> bool:
    """Where a result may wrap its range is the whole range of its type."""
    (low, high), (least, most) = emitter.ranges[n], INT_RANGE[n.dtype]
    return least < low and high < most and -_FAR < low and high < _FAR


class Run:
    """Bit j is key j of the stretch. keys: how many keys a word reaches over; labels: a lane for each of them can be asked, and
    rows are the lanes'."""

    keys, labels = WORD, True

    @staticmethod
    def before(limit: Int32) -> Int32:
        """How many of a word's keys are below `limit`, counted from its first; past them where it is."""
        return limit


class Pairs(Run):
    """Bit j is key 8 * (j // 2) + j % 2: what a thread of a warpgroup holds of a row."""

    keys, labels = 4 * WORD, False

    @staticmethod
    def before(limit: Int32) -> Int32:
        rest = limit & 7
        return ((limit >> 3) << 1) + select(rest < 2, rest, Int32(2), Int32)


@dataclass(frozen=True)
class Place(Fixed):
    """Where a word is made. first: a scope at the row and the word's first key; lane: a scope without row, at this lane's key;
    along: at a stretch of keys of which this is word `number`. Without `labels` neither."""

    first: Scope
    lane: Scope | None = None
    along: Along | None = None
    number: int = 0


class Words:
    """The nodes of a graph that are made as words: `nodes`, the outermost. heads_differ: rows have heads of their own; layout:
    which keys the bits are; root: of the graph, where it is not the emitter's."""

    def __init__(self, emitter: Emitter, heads_differ: bool, layout: type[Run] = Run, root: Node | None = None):
        self.emitter, self.steps, self.layout, self.root = emitter, key_steps(emitter), layout, root or emitter.roots[0]
        self._of_key_alone = frozenset({Op.B, Op.KV} if heads_differ else {Op.B, Op.H, Op.KV})
        root = self.root
        self._on, self._made = axes(root), set()
        found = lines(root) if layout.labels else {}
        self.lines = {n: line for n, line in found.items()
                      if n.dtype.is_bool and line is not Line.TILE and not (heads_differ and Op.H in self._on[n])}
        for n in topological(root):
            if n.dtype.is_bool and self._can_be_made(n):
                self._made.add(n)
        self.nodes = tuple(n for n in self._outermost(root) if n in self._made)

    def _can_be_made(self, n: Node) -> bool:
        if not self._on[n] & _PER_KEY:
            return True
        if n.op in _LOGIC:
            return n in self.lines or all(a in self._made for a in n.args)
        return self._is_stepped(n) or n in self.lines or self._is_matched(n)

    def _is_stepped(self, n: Node) -> bool:
        """Whether the sides' difference grows by one, or falls by one, from key to key."""
        steps = [self.steps.get(a) for a in n.args]
        return n.op in _COMPARISONS and None not in steps and abs(steps[1] - steps[0]) == 1

    def _is_matched(self, n: Node) -> bool:
        """Whether something of the key alone is compared for equality with something without the key."""
        if not self.layout.labels or n.op not in (Op.EQ, Op.NE) or not all(a.dtype.is_int for a in n.args):
            return False
        of_key = [self._on[a] for a in n.args if self._on[a] & _PER_KEY]
        return len(of_key) == 1 and of_key[0] <= self._of_key_alone

    def _shifts(self, n: Node) -> bool:
        """Whether it is logic of comparisons that are shifts: less than a ballot."""
        return all(self._shifts(a) for a in n.args) if n.op in _LOGIC else not self._on[n] & _PER_KEY or self._is_stepped(n)

    def _outermost(self, root: Node) -> list[Node]:
        """Nodes made as words and those that are not, from the root down to the first that are."""
        found, stack = [], [root]
        while stack:
            n = stack.pop()
            if n not in found and self._on[n] & _PER_KEY:
                found.append(n)
                stack.extend(() if n in self._made else n.args)
        return found

    @property
    def is_all(self) -> bool:
        """Whether the whole mask is one word."""
        return self.nodes == (self.root,)

    def remaining(self) -> frozenset[Node]:
        """Nodes that need the key and are still computed key by key."""
        return frozenset(self._outermost(self.root)) - frozenset(self.nodes)

    def conjunct(self) -> Node | None:
        """A word without which the mask hides a key: the root, or one below ANDs of it."""
        stack = [self.root]
        while stack:
            n = stack.pop()
            if n in self.nodes:
                return n
            if n.op is Op.AND:
                stack.extend(n.args)
        return None

    def made(self, at: Place) -> dict[Node, Int32]:
        """The word of each of `nodes`."""
        return {n: self._word(n, at) for n in self.nodes}

    def at(self, place: Place, present: Int32) -> tuple[dict[Node, Int32], Int32 | None]:
        """(`made`, a word of keys that exist where that is not part of another). present: how many keys there are from the first
        on."""
        made = self.made(place)
        exist, conjunct = below(self.layout.before(present)), self.conjunct()
        if conjunct is None:
            return made, exist
        return made | {conjunct: made[conjunct] & exist}, None

    def _word(self, n: Node, at: Place) -> Int32:
        first, lane = at.first, at.lane
        if not self._on[n] & _PER_KEY:
            return select(first.value_of(n), Int32(-1), Int32(0), Int32)
        if n in self.lines and not self._shifts(n):
            return at.along.word(n, self.lines[n], at.number)
        if n.op in _LOGIC:
            return _LOGIC[n.op](*(self._word(a, at) for a in n.args))
        if self._is_stepped(n):
            return self._compared(n, first)
        key, row = n.args if self._on[n.args[0]] & _PER_KEY else n.args[::-1]
        wide = Int64 if Int64 in (self.emitter.int_type(key), self.emitter.int_type(row)) else Int32
        word = matching(as_int(lane.value_of(key), wide), as_int(first.value_of(row), wide))
        return word if n.op is Op.EQ else ~word

    def _compared(self, n: Node, first: Scope) -> Int32:
        """The difference of the sides is d at the first key, and one less or one more at each further one."""
        left, right = n.args
        d = self._difference(right, left, first)
        falls, before = self.steps[right] < self.steps[left], self.layout.before
        if n.op in (Op.EQ, Op.NE):
            at = d if falls else -d
            word = below(before(at + 1)) & starting(before(at))
            return word if n.op is Op.EQ else ~word
        margin = Int32(n.op is Op.LE)
        return below(before(d + margin)) if falls else starting(before(1 - margin - d))

    def _difference(self, a: Node, b: Node, scope: Scope) -> Int32:
        """a - b, or a number on the same side of a word of keys."""
        values = scope.value_of(a), scope.value_of(b)
        if all(-_NEAR < end < _NEAR for n in (a, b) for end in self.emitter.ranges[n]):
            return Int32(values[0]) - Int32(values[1])
        # A side that changes from key to key is below _FAR, and a captured number may be anything.
        left, right = (_clamped(Int64(v), _FAR) for v in values)
        return Int32(_clamped(left - right, 2 * self.layout.keys))


def halves(value: Int64) -> tuple[Int32, Int32]:
    """(low, high)."""
    ptx = cute.arch.inline_ptx
    return ptx("mov.b64 {{$w0}, {$w1}}, {$r0};", write_only_types=[Int32, Int32], read_only_args=[value])


def joined(low: Int32, high: Int32) -> Int64:
    return cute.arch.inline_ptx("mov.b64 {$w0}, {{$r0}, {$r1}};", write_only_types=[Int64], read_only_args=[low, high])


def _clamped(value: Int64, most: int) -> Int64:
    value = select(value > most, Int64(most), value, Int64)
    return select(value < -most, Int64(-most), value, Int64)


def below(limit: Int32) -> Int32:
    """Bits 0 .. limit - 1, for any limit."""
    return _shifted("shr.u32", WORD - limit)


def starting(first: Int32) -> Int32:
    """Bits first .. 31, for any first."""
    return _shifted("shl.b32", first)


def _shifted(operation: str, by: Int32) -> Int32:
    """All ones shifted; PTX shifts by 32 or more to 0, the languages above it to nothing defined."""
    by = select(by < 0, Int32(0), by, Int32)
    ptx = f"{operation} {{$w0}}, {{$r0}}, {{$r1}};"
    return cute.arch.inline_ptx(ptx, write_only_types=[Int32], read_only_args=[Int32(-1), by])


def bit(word: Int32, j: int | Int32, alone: bool) -> Boolean:
    """Bit j. alone: it is the whole condition. Otherwise it is tested in PTX, because LLVM would shift it down first."""
    if alone and isinstance(j, Int32):
        return Boolean((word & (Int32(1) << j)) != 0)
    if alone:
        return Boolean((word & Int32((1 << j) - (1 << 32 if j == 31 else 0))) != 0)
    found = cute.arch.inline_ptx(f"and.b32 {{$w0}}, {{$r0}}, {1 << j};", write_only_types=[Int32], read_only_args=[word])
    return Boolean(found != 0)


@cute.jit
def matching(of_key, of_row) -> Int32:
    """Bits of the lanes whose `of_key` is this lane's `of_row`: a step for each different value in the warp."""
    word, left = Int32(0), Int32(-1)
    while left != 0:
        value = _of_lane(of_key, _highest(left))
        same = Int32(cute.arch.vote_ballot_sync(of_key == value))
        word = word | select(value == of_row, same, Int32(0), Int32)
        left = left & ~same
    return word


def _highest(word: Int32) -> Int32:
    return cute.arch.inline_ptx("bfind.u32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[word])


def _of_lane(value, lane: Int32):
    if not isinstance(value, Int64):
        return cute.arch.shuffle_sync(value, lane)
    return joined(*(cute.arch.shuffle_sync(half, lane) for half in halves(value)))
