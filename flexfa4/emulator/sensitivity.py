"""Is each synchronisation statement of a kernel needed, and would its absence be seen? Deletes one at a time and looks.

`sites(ptx)` lists the statements, `without(ptx, site)` deletes one, `Judge(records)` runs a mutant under several schedules and
says what gave it away."""

import ctypes
import re
from dataclasses import dataclass

import numpy as np

from . import native, replay
from .bare import prepare_arguments
from .driver import run_recorded
from .errors import EmulatorError
from .ptx.syntax import GUARD, STATEMENT, blank_comments, find_kernel
from .replay import Recorded

# What is deleted, by the first pattern that fits the opcode.
KINDS = {
    "tcgen05.wait::ld": r"tcgen05\.wait::ld",
    "setmaxnreg": r"setmaxnreg",
    "mbarrier wait": r"mbarrier\.(try|test)_wait",
    "mbarrier arrive": r"mbarrier\.(arrive|expect_tx|complete_tx)|cp\.async\.mbarrier\.arrive",
    "barrier": r"(bar|barrier)\.",
    "fence": r"(tcgen05\.|wgmma\.)?fence\b|membar",
    "commit": r"tcgen05\.commit|.*commit_group",
    "wait": r".*(wait_group|wait_all)|tcgen05\.wait::st|griddepcontrol\.wait",
}
APART = {  # counted apart, and why one may go unseen
    "tcgen05.wait::ld": "right kernels leave it out: the hardware waits for the register",
    "setmaxnreg": "the pool of registers suffices without it; whether code needs them PTX does not show",
}
IDLE = re.compile(r"line (\d+)(?: \([^)]*\))?: \S+: (.*)")
WAIT = re.compile(r"(?P<guard>@!?\s*[%\w$]+\s+)?mbarrier\.(?:try|test)_wait\S*\s+(?P<done>[%\w$]+)")


@dataclass(frozen=True)
class Site:
    """One statement: its place in the PTX without comments, line, kind and text."""

    begin: int
    end: int
    line: int
    kind: str
    text: str


def sites(ptx: str, entry: str | None = None) -> list[Site]:
    """The synchronisation statements of a kernel, in order."""
    clean, kernel = blank_comments(ptx), find_kernel(ptx, entry)
    shift, at, found = clean.index(kernel.body), 0, []
    while m := STATEMENT.match(kernel.body, at):
        at = m.end()
        if m.lastgroup != "text":
            continue
        text = m["text"].strip()
        opcode = GUARD.sub("", text).split(None, 1)[0] if text else ""
        kind = next((k for k, pattern in KINDS.items() if re.match(pattern, opcode)), None)
        if kind:
            begin = shift + m.start("text")
            begin += len(m["text"]) - len(m["text"].lstrip())
            found.append(Site(begin, shift + m.end("text"), clean.count("\n", 0, begin) + 1, kind, " ".join(text.split())))
    return found


def without(ptx: str, site: Site) -> str:
    """The PTX without one statement. A deleted wait is one that is over at once: its predicate is set."""
    clean = blank_comments(ptx)
    wait = WAIT.match(clean, site.begin)
    instead = f"{wait['guard'] or ''}mov.pred {wait['done']}, 1" if wait else ""
    return clean[: site.begin] + instead + clean[site.end :]


def record(ptx: str, grid, block, args, *, cluster=(1, 1, 1), smem: int = 0, **options) -> Recorded:
    """One launch of bare PTX, run and recorded; parameters as of `emulator.run`."""
    grid, block, cluster = [x if isinstance(x, tuple) else (x, 1, 1) for x in (grid, block, cluster)]
    (base, size, owner), ranges = prepare_arguments(native.load(ptx), args)
    spans = sorted(set(ranges))
    raw = ctypes.string_at(base, size)
    kept = Recorded(ptx, grid, block, cluster, smem, raw, spans, replay.memory(spans), keep=[args, owner])
    kept.after = run_recorded(kept, **options)[1]
    return kept


@dataclass
class Verdict:
    """how: "numbers", the kind of an error or finding, or "" when nothing showed. strict: only strict rules saw it."""

    how: str
    message: str = ""
    strict: bool = False
    executed: bool = True
    why: str = ""  # of one that nothing shows: why nothing can


def _essence(finding: tuple[str, str]) -> tuple[str, str]:
    """A finding without what varies between schedules: addresses, CTAs, warps."""
    kind, message = finding
    return kind, re.sub(r"0x[0-9a-f]+|CTA \d+,\d+,\d+|warps? [\d-]+|one thread of ", "", message)


class Judge:
    """Runs mutants of recorded launches of one kernel. schedules: (seed, completion) pairs, tried in order."""

    def __init__(self, records: list[Recorded], schedules: list[tuple[int, str]]):
        self.records, self.schedules = records, schedules
        self.known: dict = {True: set(), "strict": set()}
        self.loose = [[False for _ in r.after] for r in records]  # ranges whose words vary with the schedule: sums in any order
        self.steps = 0
        self.idle: dict[int, str] | None = None
        self.lines: set[int] = set()
        for races in (True, "strict"):
            for i, record in enumerate(records):
                for seed, completion in schedules:
                    launch, after = run_recorded(record, seed=seed, completion=completion, races=races)
                    self.known[races] |= {_essence(f) for f in launch.findings}
                    self.steps = max(self.steps, launch.warp_instructions)
                    rows = native.load(record.ptx).program.ins
                    self.lines |= {int(line) for line, n in zip(rows[:, 5], launch.counts) if n}
                    self.loose[i] = [known or now != then for known, now, then in zip(self.loose[i], after, record.after)]

    @staticmethod
    def _words(raw: bytes) -> np.ndarray:
        return np.frombuffer(raw, np.uint32, len(raw) // 4)

    def _differs(self, i: int, after: list[bytes]) -> bool:
        """Other results than the unmutated kernel's; in a range where its own vary with the schedule, beyond float32 rounding."""
        for loose, now, then in zip(self.loose[i], after, self.records[i].after):
            a, b = self._words(now), self._words(then)
            changed = a != b
            if changed.any() and not loose:
                return True
            x, y = a[changed].view(np.float32).astype(np.float64), b[changed].view(np.float32).astype(np.float64)
            if not (np.abs(x - y) <= 1e-3 * np.abs(y).max(initial=0)).all():
                return True
        return False

    def __call__(self, ptx: str, site: Site | None = None) -> Verdict:
        """What gives the mutant away. Every schedule with the rules on, then once more with the strict ones."""
        executed = site is None or site.line in self.lines
        for races in (True, "strict"):
            for i, record in enumerate(self.records):
                for seed, completion in self.schedules if races is True else self.schedules[:2]:
                    options = dict(seed=seed, completion=completion, races=races, max_steps=20 * self.steps + 10000)
                    try:
                        launch, after = run_recorded(record, ptx, **options)
                    except EmulatorError as e:
                        return Verdict(e.kind, str(e).splitlines()[0], False, executed)
                    new = [f for f in launch.findings if _essence(f) not in self.known[races]]
                    if new:
                        return Verdict(new[0][0], new[0][1], races == "strict", executed)
                    if self._differs(i, after):
                        return Verdict("numbers", "", False, executed)
        return Verdict("", "", False, executed, self._redundant(ptx, site) if site else "")

    def _idle(self, ptx: str | None = None) -> dict[int, str]:
        """Lines of the statements that told nobody anything in any launch (`races="idle"`), and why."""
        idle: dict[int, str] = {}
        busy: set[int] = set()
        for record in self.records:
            seed, completion = self.schedules[0]
            launch, _ = run_recorded(record, ptx, seed=seed, completion=completion, races="idle")
            rows = native.load(ptx or record.ptx).program.ins
            here = {int(m[1]): m[2] for kind, text in launch.findings if kind == "idle" and (m := IDLE.match(text))}
            busy |= {int(line) for line, n in zip(rows[:, 5], launch.counts) if n} - set(here)
            idle |= here
        return {line: why for line, why in idle.items() if line not in busy}

    def _redundant(self, ptx: str, site: Site) -> str:
        """Why the deletion of an executed statement changes nothing: it told nobody anything; or another one, idle beside it,
        does its work when it is gone; or the orders that it alone gives are of accesses that do not conflict. The clocks of
        the run without it found every pair of conflicting accesses in order, so that much is certain."""
        if site.line not in self.lines:
            return "these launches do not execute it"
        if site.kind in APART:
            return APART[site.kind]
        if self.idle is None:
            self.idle = self._idle()
        if site.line in self.idle:
            return self.idle[site.line]
        stands_in = sorted(set(self.idle) - set(self._idle(ptx)))
        if stands_in:
            return f"line {stands_in[0]}, which adds nothing beside it, does its work without it"
        return "what it alone puts in order does not conflict"
