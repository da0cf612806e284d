"""ctypes face of the C++ core: the handler table, programs and launches."""

import ctypes
import re
import weakref
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from . import build
from .errors import PtxError, from_report
from .ptx.decode import Decoder, Program
from .ptx.syntax import find_kernel
from .trace import EVENT, ISSUE, RANGE, Trace

U32, U64, I32, I64, PTR = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
COMPLETION = {"immediate": 0, "random": 1, "late": 2}
RACES = {False: 0, True: 1, "strict": 2, "idle": 3}


class Config(ctypes.Structure):
    """`Config` of core/machine.h."""

    _fields_ = [
        ("grid", U32 * 3),
        ("block", U32 * 3),
        ("cluster", U32 * 3),
        ("smem_dynamic", U32),
        ("smem_static", U32),
        ("sms", U32),
        ("completion", U32),
        ("checks", U32),
        ("local_bytes", U32),
        ("races", U32),
        ("trace", U32),
        ("pad", U32),
        ("seed", U64),
        ("max_steps", U64),
        ("params", U64),
        ("param_bytes", U64),
        ("ranges", U64),
        ("nranges", U64),
        ("costs", U64),
        ("pace", U64),
    ]


class _Fill(ctypes.Structure):
    _fields_ = [("off", I32), ("kind", I32), ("value", I64), ("wide", I32), ("pad", I32)]


class _Report(ctypes.Structure):
    _fields_ = [("text", PTR), ("text_n", U64), ("counts", PTR), ("total", U64), ("findings_n", U64), ("findings", PTR),
                ("trace", PTR)]


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The core, built if need be."""
    lib = ctypes.CDLL(str(build.core_library()))
    lib.emu_table.restype = ctypes.c_char_p
    lib.emu_program.restype = PTR
    lib.emu_program.argtypes = [PTR, I64, PTR, I64, PTR, I64, I64]
    lib.emu_program_free.argtypes = [PTR]
    lib.emu_run.argtypes = [PTR, ctypes.POINTER(Config), ctypes.POINTER(_Report)]
    lib.emu_trace_sizes.argtypes = [PTR, PTR]
    lib.emu_trace_copy.argtypes = [PTR, PTR, PTR, PTR, PTR]
    lib.emu_trace_free.argtypes = [PTR]
    return lib


@lru_cache(maxsize=1)
def handler_table() -> dict[str, list[tuple[int, tuple[str, ...]]]]:
    """opcode -> [(handler number, operand tokens)], as the core declares it."""
    table: dict[str, list] = {}
    for number, row in enumerate(library().emu_table().decode().splitlines()):
        name, _, spec = row.partition("\t")
        table.setdefault(name, []).append((number, tuple(spec.split())))
    return table


@dataclass
class Launch:
    """What one launch did. counts: executions of each instruction (int64 [n]); warp_instructions: their sum; findings: (kind,
    message)."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    warp_instructions: int = 0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    findings: list[tuple[str, str]] = field(default_factory=list)
    opcodes: list[str] = field(default_factory=list, repr=False)  # of each instruction
    trace: Trace | None = field(default=None, repr=False)  # with trace=True
    timing: object = None  # what the timing hook returned

    def by_opcode(self) -> dict[str, int]:
        """Warp-level executions of each opcode, the commonest first."""
        found: dict[str, int] = {}
        for name, n in zip(self.opcodes, self.counts.tolist()):
            if n:
                found[name] = found.get(name, 0) + n
        return dict(sorted(found.items(), key=lambda item: -item[1]))


class Loaded:
    """A decoded program inside the core."""

    def __init__(self, ptx: str, entry: str | None = None):
        self.ptx = ptx
        self.program: Program = Decoder(find_kernel(ptx, entry), handler_table()).run()
        p = self.program
        fills = (_Fill * max(1, len(p.fills)))(*[_Fill(int(o), int(k), int(v), int(w), 0) for o, k, v, w in p.fills])
        self.handle = library().emu_program(
            p.ins.ctypes.data, len(p.ins), p.pool.ctypes.data, len(p.pool), ctypes.addressof(fills), len(p.fills), p.reg_bytes
        )

        weakref.finalize(self, library().emu_program_free, self.handle)

    def where(self, message: str) -> str:
        """Adds the source line that `.loc` gives to each "line N" of a message."""
        sources = {int(row[5]): loc for loc, row in zip(self.program.source, self.program.ins) if loc}

        def name(found):
            loc = sources.get(int(found[1]))
            return f"line {found[1]} (source line {loc[1]} of file {loc[0]})" if loc else found[0]

        return re.sub(r"\bline (\d+)", name, message)

    def _take_trace(self, handle: int) -> Trace:
        lib, p = library(), self.program
        sizes = np.zeros(6, np.uint64)
        lib.emu_trace_sizes(handle, sizes.ctypes.data)
        events, ranges = np.zeros(int(sizes[0]), EVENT), np.zeros(int(sizes[1]), RANGE)
        counts = np.zeros((int(sizes[2]), int(sizes[3])), np.int64)
        issues = np.zeros(int(sizes[5]), ISSUE)
        lib.emu_trace_copy(handle, events.ctypes.data, ranges.ctypes.data, counts.ctypes.data, issues.ctypes.data)
        lib.emu_trace_free(handle)
        return Trace(p.kernel.name, events, ranges, counts, p.names, [int(row[5]) for row in p.ins], p.kernel.target,
                     int(sizes[4]), issues=issues)

    def launch(self, config: Config) -> Launch:
        """Runs a filled-in configuration. Raises what errors.py lists."""
        p = self.program
        config.smem_static, config.local_bytes = p.shared_bytes, p.local_bytes
        text, findings = ctypes.create_string_buffer(1 << 16), ctypes.create_string_buffer(1 << 17)
        counts = np.zeros(len(p.ins), np.int64)
        report = _Report(ctypes.addressof(text), len(text), counts.ctypes.data, 0, len(findings), ctypes.addressof(findings),
                         None)
        rc = library().emu_run(self.handle, ctypes.byref(config), ctypes.byref(report))
        done = Launch(p.kernel.name, tuple(config.grid), tuple(config.block), tuple(config.cluster), report.total, counts,
                      opcodes=p.names)
        if report.trace:
            done.trace = self._take_trace(report.trace)
        for row in findings.value.decode().splitlines():
            kind, _, message = row.partition("\t")
            done.findings.append((kind, self.where(message)))
        if rc:
            kind, _, message = text.value.decode().partition("\t")
            error = from_report(f"{kind}\t{self.where(message)}")
            error.launch = done
            raise error
        return done


@lru_cache(maxsize=64)
def load(ptx: str, entry: str | None = None) -> Loaded:
    """Decodes PTX once; later calls with the same text are free."""
    return Loaded(ptx, entry)


def check_block(loaded: Loaded, block: tuple[int, int, int]) -> None:
    """The launch must have the block that `.reqntid` asks for."""
    want = loaded.program.kernel.directives.get("reqntid")
    if want and tuple(want) + (1,) * (3 - len(want)) != tuple(block):
        raise PtxError(f"kernel {loaded.program.kernel.name} requires a block of {want}, the launch has {block}")
