"""Resolves registers, labels and operand forms of a kernel against the handler table: a flat program for the core."""

import re
import struct
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from ..errors import PtxError, UnknownInstruction
from .contract import contract
from .syntax import ARRAY, GUARD, TYPE_BYTES, Kernel, statements

ROW = 128  # bytes of a 32-bit register of all lanes; see core/machine.h
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
ADDRESS = re.compile(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+)|(-\s*\w+))?\s*\]$")
REGISTER = re.compile(r"([%\w$]+?)(?:<(\d+)>)?$")
# Modifiers that only steer caches. `.L2::cache_hint` also takes the last operand away.
HINTS = re.compile(r"\.(?:L1::(?:no_allocate|evict_\w+)|L2::(?:64B|128B|256B|evict_\w+)|weak)(?=\.|$)")
AXES = "xyz"
# Numbers of the kinds in `fill` of core/sched.cpp.
SPECIAL = {
    "%laneid": (7, 0),
    "%warpid": (8, 0),
    "%cluster_ctarank": (9, 0),
    "%cluster_nctarank": (14, 0),
    "%smid": (15, 0),
    "%nsmid": (16, 0),
    "%lanemask_lt": (17, 0),
    "%lanemask_le": (18, 0),
    "%lanemask_gt": (19, 0),
    "%lanemask_ge": (20, 0),
    "%lanemask_eq": (21, 0),
    "%dynamic_smem_size": (22, 0),
    "%nwarpid": (23, 0),
    "%gridid": (0, 0),
    "WARP_SZ": (0, 32),
}
for _i, _axis in enumerate(AXES):
    SPECIAL |= {
        f"%{name}.{_axis}": (kind, _i)
        for name, kind in {
            "tid": 3,
            "ntid": 4,
            "ctaid": 5,
            "nctaid": 6,
            "cluster_ctaid": 10,
            "cluster_nctaid": 11,
            "clusterid": 12,
            "nclusterid": 13,
        }.items()
    }
SPECIAL |= {f"{name}.w": (0, 0) for name in ("%tid", "%ntid", "%ctaid", "%nctaid")}
CLOCKS = {"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
PREDICATE, CONST, PARAM, SHARED_KIND, LOCAL_KIND = 0, 0, 1, 2, 25
ROWS = {"pred": PREDICATE, "b8": 1, "b16": 1, "b32": 1, "b64": 2, "b128": 4}
for _bits in ("8", "16", "32", "64"):
    ROWS |= {t + _bits: ROWS["b" + _bits] for t in "usf"}


@dataclass
class Program:
    """Decoded kernel. ins: int32 [n, 6] (handler, guard, negated, first operand, operand count, line); pool: encoded operands
    int32;
    fills: registers to set at warp start, int64 [n, 4] (offset, kind, value, wide)."""

    kernel: Kernel
    ins: np.ndarray
    pool: np.ndarray
    fills: np.ndarray
    reg_bytes: int
    shared_bytes: int
    source: list = field(default_factory=list)  # (file number, line) of each instruction where `.loc` gave one
    names: list = field(default_factory=list)  # opcode of each instruction
    local_bytes: int = 0  # local memory of a thread, a multiple of 16


class _Scope:
    __slots__ = ("labels", "names", "open")

    def __init__(self):
        self.names, self.labels, self.open = {}, {}, []


class Decoder:
    """One use: `Decoder(kernel, table).run()`. table: opcode -> list of (handler number, operand tokens)."""

    def __init__(self, kernel: Kernel, table: dict):
        self.kernel, self.table = kernel, table
        self.scopes = [_Scope()]
        self.cache: list[dict] = [{}]  # resolved names of each open scope, outer ones copied down
        self.bytes = 16 * ROW  # rows 0-7: discarded results; 8: discarded predicates
        self.pred_at, self.pred_left = 0, 0
        self.fill_at: dict = {}
        self.fills, self.pool, self.ins, self.source, self.names = [], [], [], [], []
        self.shared = dict(kernel.shared)
        self.local: dict[str, int] = {}
        self.local_bytes = 0
        self.shared_bytes = max((o + n for o, n in self.shared.values()), default=0)
        self.params = {p.name: p.offset for p in kernel.parameters}
        self.line, self.loc, self.stores = 0, None, False
        self.encoders = {
            "d": self._dst1,
            "D": self._dst2,
            "Q": self._reg4,
            "s": self._src1,
            "S": self._src2,
            "p": self._pdst,
            "P": self._psrc,
            "pp": self._pair,
            "d|p": self._dst_pred,
            "a": self._address,
            "i": self._integer,
            "L": self._label,
            "C": self._clock,
        }

    # ---- registers and constants
    def _alloc(self, rows: int) -> int:
        if rows == PREDICATE:
            if not self.pred_left:
                self.pred_at, self.pred_left, self.bytes = self.bytes, ROW // 4, self.bytes + ROW
            self.pred_left -= 1
            self.pred_at += 4
            return self.pred_at - 4
        at = self.bytes
        self.bytes += rows * ROW
        return at

    def _declare(self, text: str) -> None:
        parts = text.split(None, 2)
        kind = parts[1].lstrip(".")
        if kind not in ROWS:
            raise self._error(f"unknown register type {parts[1]}")
        rows = ROWS[kind]
        scope = self.cache[-1]
        for item in parts[2].split(","):
            name, count = REGISTER.match(item.strip()).groups()
            if count is None:
                scope[name] = (self._alloc(rows), rows)
            else:
                for i in range(int(count)):
                    scope[f"{name}{i}"] = (self._alloc(rows), rows)

    def _fill(self, kind: int, value: int, rows: int) -> int:
        key = (kind, value, rows)
        at = self.fill_at.get(key)
        if at is None:
            at = self.fill_at[key] = self._alloc(rows)
            self.fills.append((at, kind, value, rows == 2))
        return at

    def _error(self, text: str) -> PtxError:
        return PtxError(f"line {self.line}: {text}")

    def _reg(self, name: str, rows: int) -> int | None:
        found = self.cache[-1].get(name)
        if found is None:
            return None
        if found[1] != rows:
            raise _Form(f"register {name} has the wrong width")
        return found[0]

    # ---- operands: each appends to `out`, or raises _Form when the text is not of this form
    def _dst1(self, t, out):
        out.append(0 if t == "_" else self._need(t, 1))

    def _dst2(self, t, out):
        out.append(0 if t == "_" else self._need(t, 2))

    def _reg4(self, t, out):
        out.append(self._need(t, 4))

    def _need(self, t, rows):
        at = self._reg(t, rows)
        if at is None:
            raise _Form(f"{t!r} is not a register")
        return at

    def _src1(self, t, out):
        found = self.cache[-1].get(t)
        if found is not None:
            # PTX, "Operand Size Exceeding Instruction-Type Size": a store takes the low bits, which are the first row.
            if found[1] != 1 and not (self.stores and found[1] == 2):
                raise _Form(f"register {t} has the wrong width")
            out.append(found[0])
        else:
            out.append(self._constant(t, 1))

    def _src2(self, t, out):
        found = self.cache[-1].get(t)
        if found is not None:
            if found[1] != 2:
                raise _Form(f"register {t} has the wrong width")
            out.append(found[0])
        else:
            out.append(self._constant(t, 2))

    def _constant(self, t: str, rows: int) -> int:
        value = self._number(t)
        if value is not None:
            bits = 32 * rows
            if not -(1 << (bits - 1)) <= value < 1 << bits:
                raise _Form(f"{t} does not fit {bits} bits")
            value &= (1 << bits) - 1
            return self._fill(CONST, value - (1 << 64) if value >> 63 else value, rows)
        if t in SPECIAL:
            return self._fill(*SPECIAL[t], rows)
        if t in self.shared:
            return self._fill(SHARED_KIND, self.shared[t][0], rows)
        if t in self.local:
            return self._fill(LOCAL_KIND, self.local[t], rows)
        if t in self.params and rows == 2:
            return self._fill(PARAM, self.params[t], 2)
        raise _Form(f"{t!r} is neither a register nor a constant that is modelled")

    @staticmethod
    def _number(t: str) -> int | None:
        if INTEGER.match(t):
            return int(t.rstrip("U"), 0)
        if t[:2] in ("0f", "0F") and len(t) == 10:
            return int(t[2:], 16)
        if t[:2] in ("0d", "0D") and len(t) == 18:
            return int(t[2:], 16)
        if re.match(r"-?\d+\.\d*$", t):
            return struct.unpack("<I", struct.pack("<f", float(t)))[0]
        return None

    def _pdst(self, t, out):
        out.append(8 * ROW if t == "_" else self._need(t, PREDICATE))

    def _psrc(self, t, out):
        if INTEGER.match(t):
            # A predicate's 32 bits all clear, read negated for true (any number but 0).
            out += (self._fill(CONST, 0, 1), int(int(t, 0) != 0))
            return
        negated = t.startswith("!")
        out += (self._need(t[1:].strip() if negated else t, PREDICATE), int(negated))

    def _pair(self, t, out):
        first, _, second = t.partition("|")
        self._pdst(first.strip(), out)
        self._pdst(second.strip() or "_", out)

    def _dst_pred(self, t, out):
        first, _, second = t.partition("|")
        self._dst1(first.strip(), out)
        self._pdst(second.strip() or "_", out)

    def _integer(self, t, out):
        value = self._number(t)
        if value is None:
            raise _Form(f"{t!r} must be a constant")
        out.append(value)

    def _clock(self, t, out):
        if t not in CLOCKS:
            raise _Form(f"{t!r} is not a clock")

    def _label(self, t, out):
        self.scopes[-1].open.append((t, len(self.pool) + len(out), self.line))
        out.append(-1)

    def _address(self, t, out):
        m = ADDRESS.match(t)
        if not m:
            raise _Form(f"{t!r} is not an address")
        name, plus, minus = m.groups()
        shift = int(plus.rstrip("U"), 0) if plus else int(minus.replace(" ", ""), 0) if minus else 0
        found = self.cache[-1].get(name)
        if found is not None:
            if found[1] not in (1, 2):
                raise _Form(f"{name} cannot hold an address")
            out += (found[0], shift, int(found[1] == 2))
        elif name in self.params:
            out += (self._fill(PARAM, self.params[name] + shift, 2), 0, 1)
        elif name in self.local:
            out += (self._fill(LOCAL_KIND, self.local[name], 2), shift, 1)
        elif name in self.shared:
            out += (self._fill(SHARED_KIND, self.shared[name][0], 1), shift, 0)
        elif INTEGER.match(name):
            out += (self._fill(CONST, int(name, 0) + shift, 2), 0, 1)
        else:
            raise _Form(f"{name!r} in an address is unknown")

    def _operand(self, token: str, t: str, out: list) -> None:
        if token[0] == "{":
            if t[0] != "{":
                raise _Form(f"{t!r} is not a vector")
            items = [x.strip() for x in t[1:-1].split(",")]
            if len(items) != len(token) - 2:
                raise _Form(f"a vector of {len(items)}")
            for letter, item in zip(token[1:-1], items):
                self.encoders[letter](item, out)
        elif token[0] == "T":
            m = re.match(r"\[\s*([^,\]]+),\s*(\{[^}]*\})\s*\]$", t)
            if not m:
                raise _Form(f"{t!r} is not [map, {{coordinates}}]")
            self._address(f"[{m.group(1).strip()}]", out)
            self._operand("{" + "s" * int(token[1:]) + "}", m.group(2), out)
        else:
            self.encoders[token](t, out)

    # ---- statements
    def _instruction(self, text: str) -> None:
        predicate, negated, full, operands = _split(text)
        guard, name = self._need(predicate, PREDICATE) if predicate else -1, full
        rows = self.table.get(name)
        if rows is None:
            name = HINTS.sub("", name)
            if ".L2::cache_hint" in name:
                name = name.replace(".L2::cache_hint", "")
                operands = operands[:-1]
            rows = self.table.get(name)
            if rows is None:
                raise UnknownInstruction(f"line {self.line}: no handler for {full!r}: {text}")
        why, self.stores = [], name.startswith("st.")
        for number, tokens in rows:
            if len(tokens) != len(operands):
                continue
            out: list[int] = []
            mark = len(self.scopes[-1].open)
            try:
                for token, t in zip(tokens, operands):
                    encode = self.encoders.get(token)
                    encode(t, out) if encode else self._operand(token, t, out)
            except _Form as e:
                why.append(str(e))
                del self.scopes[-1].open[mark:]
                continue
            self.ins.append((number, guard, negated, len(self.pool), len(out), self.line))
            self.pool += out
            self.source.append(self.loc)
            self.names.append(full)
            return
        raise UnknownInstruction(
            f"line {self.line}: operand form of {full!r} is not modelled: {text} "
            f"({'; '.join(why) or f'{len(operands)} operands'})"
        )

    def _directive(self, text: str) -> None:
        if text.startswith(".reg"):
            self._declare(text)
        elif text.startswith(".shared"):
            for align, kind, name, count in ARRAY.findall(text):
                step, size = max(int(align or 1), TYPE_BYTES[kind]), TYPE_BYTES[kind] * int(count or 1)
                at = -(-self.shared_bytes // step) * step
                self.shared[name], self.shared_bytes = (at, size), at + size
        elif text.startswith(".local"):
            for align, kind, name, count in ARRAY.findall(text):
                step, size = max(int(align or 1), TYPE_BYTES[kind]), TYPE_BYTES[kind] * int(count or 1)
                at = -(-self.local_bytes // step) * step
                self.local[name], self.local_bytes = at, at + size
        elif not text.startswith(".pragma"):
            raise self._error(f"directive {text.split()[0]} is not modelled: {text[:80]}")

    def _close(self) -> None:
        scope = self.scopes.pop()
        self.cache.pop()
        for name, at, line in scope.open:
            if name in scope.labels:
                self.pool[at] = scope.labels[name]
            elif self.scopes:
                self.scopes[-1].open.append((name, at, line))
            else:
                raise PtxError(f"line {line}: label {name} is not defined")

    def run(self) -> Program:
        """Decodes every statement. Raises PtxError or UnknownInstruction naming the line."""
        self.scopes.clear()
        self.cache = [{}]
        for kind, text, line in statements(self.kernel):
            self.line = line
            if kind == "text":
                text = text.strip()
                if not text:
                    continue
                if text[0] == ".":
                    self._directive(text)
                    continue
                try:
                    self._instruction(text)
                except _Form as e:
                    raise self._error(f"{e}: {text}") from None
            elif kind == "label":
                self.scopes[-1].labels[text] = len(self.ins)
            elif kind == "open":
                self.scopes.append(_Scope())
                self.cache.append(dict(self.cache[-1]) if len(self.scopes) < 2 else _Chain(self.cache[-1]))
            elif kind == "close":
                self._close()
            elif text.startswith(".loc"):
                self.loc = tuple(int(x) for x in text.split()[1:3])
        # Falling off the end is a return.
        self.ins.append((self.table["ret"][0][0], -1, 0, 0, 0, self.line))
        self.source.append(self.loc)
        self.names.append("ret")
        contract(self.ins, self.pool, self.names, self.table)
        fills = np.array(self.fills, dtype=np.int64).reshape(-1, 4)
        return Program(
            self.kernel,
            np.array(self.ins, dtype=np.int32),
            np.array(self.pool or [0], dtype=np.int64).astype(np.int32),
            fills,
            -(-self.bytes // ROW) * ROW,
            self.shared_bytes,
            self.source,
            self.names,
            -(-self.local_bytes // 16) * 16,
        )


@lru_cache(maxsize=1 << 15)  # kernels without one statement, or with other graphs, are much the same text
def _split(text: str) -> tuple[str, int, str, tuple[str, ...]]:
    """(guard or "", whether it is negated, opcode, operands) of an instruction."""
    m = GUARD.match(text) if text[0] == "@" else None
    guard, negated = (m.group(2), int(bool(m.group(1)))) if m else ("", 0)
    opcode, *rest = text[m.end() if m else 0 :].split(None, 1)
    return guard, negated, opcode, tuple(t.strip() for t in OPERAND.findall(rest[0])) if rest else ()


class _Form(Exception):
    """The operand is not of the form that the handler's row asks for."""


class _Chain(dict):
    """Names of an inner scope; what it does not hold is looked up outside."""

    def __init__(self, outer):
        super().__init__()
        self.outer = outer

    def get(self, name, default=None):
        found = super().get(name)
        return found if found is not None else self.outer.get(name, default)
