"""What a launch in modelled time did, in clocks: sections of warps told by the instructions in them, how much of the time two
warpgroups spend in them together, and pictures."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .trace import Trace, class_of

QUARTERS = 4
EXPONENTIALS = r"ex2\."


@dataclass(frozen=True)
class Together:
    """Sections of two warps that share a quarter of an SM, means over the quarters. clocks: from the first section's begin to the
    last one's end; both, either: of these, those in which both warps are in a section, or one at least. count: sections of a
    warp; length: clocks of one. busy: share of `clocks` that the unit of the sections' instructions works."""

    clocks: float
    both: float
    either: float
    count: float
    length: float
    busy: float

    @property
    def share(self) -> float:
        """Of the clocks, those in which both are in a section."""
        return self.both / self.clocks if self.clocks else 0.0

    def __str__(self) -> str:
        one = self.either / max(1.0, self.clocks)
        return (f"{self.count:.0f} sections of {self.length:.0f} clocks a warp in {self.clocks:.0f} clocks; both warpgroups in "
                f"one {self.share:.1%} of the time, one at least {one:.1%}; the unit works {self.busy:.1%}")


class Timeline:
    """Of one CTA of a launch with `clocks`."""

    def __init__(self, trace: Trace, cta: int = 0):
        self.trace = trace
        self.issues = trace.issues[trace.issues["cta"] == cta]
        self.cta = cta

    @property
    def clocks(self) -> int:
        return int(self.issues["clock"].max(initial=0))

    def where(self, pattern: str) -> np.ndarray:
        """Issues of the opcodes that match."""
        wanted = np.array([re.match(pattern, name) is not None for name in self.trace.opcodes])
        return self.issues[wanted[self.issues["pc"]]]

    def sections(self, pattern: str = EXPONENTIALS, least: int = 16, gap: int = 400) -> dict[int, np.ndarray]:
        """warp -> int64 [n, 2], begin and end: matching instructions of a warp, at most `gap` clocks from one to the next and
        `least` of them at least."""
        found = {}
        mine = self.where(pattern)
        for warp in np.unique(mine["warp"]):
            at = np.sort(mine["clock"][mine["warp"] == warp].astype(np.int64))
            cuts = np.flatnonzero(np.diff(at) > gap) + 1
            pieces = [p for p in np.split(at, cuts) if p.size >= least]
            if pieces:
                found[int(warp)] = np.array([(p[0], p[-1] + 1) for p in pieces])
        return found

    def together(self, pattern: str = EXPONENTIALS, busy: float = 8.0, **sections) -> Together | None:
        """Of the first two warpgroups that have sections; None where there are no two. busy: clocks that an instruction takes its
        unit."""
        found = self.sections(pattern, **sections)
        groups = sorted({warp // QUARTERS for warp in found})[:2]
        rows = []
        for quarter in range(QUARTERS):
            pair = [found.get(group * QUARTERS + quarter) for group in groups]
            if len(pair) < 2 or any(p is None for p in pair):
                continue
            low, high = min(p[0, 0] for p in pair), max(p[-1, 1] for p in pair)
            inside = np.zeros((2, high - low), bool)
            for line, p in zip(inside, pair):
                for begin, end in p - low:
                    line[begin:end] = True
            count = self.where(pattern)
            count = ((count["warp"] % QUARTERS == quarter) & (count["clock"] >= low) & (count["clock"] < high)).sum()
            lengths = np.concatenate([p[:, 1] - p[:, 0] for p in pair])
            rows.append((high - low, inside.all(0).sum(), inside.any(0).sum(), lengths.size / 2, lengths.mean(),
                         busy * count / (high - low)))
        return Together(*np.mean(rows, 0)) if rows else None

    # ---- pictures
    def lines(self) -> dict[str, tuple[list[int], dict[int, list]]]:
        """role -> (warps, warp -> [(begin, end)] it runs)."""
        mine = self.trace.events[self.trace.events["cta"] == self.cta]
        return {role: (warps, {w: [(int(e["start"]), int(e["end"])) for e in mine[(mine["warp"] == w) & (mine["kind"] == 6)]]
                               for w in warps}) for role, warps in self.trace.roles().items()}

    def text(self, begin: int = 0, end: int | None = None, width: int = 110, pattern: str = EXPONENTIALS) -> str:
        """A line a warpgroup or single warp: `E` in a section, `#` runs, `.` neither, of its first warp; then the tensor core's
        products and copies in flight."""
        end = self.clocks if end is None else end
        scale = max(1.0, (end - begin) / width)
        sections = self.sections(pattern)

        def paint(line, spans, sign):
            for a, b in spans:
                for i in range(max(0, int((a - begin) / scale)), min(width, int((b - begin) / scale) + 1)):
                    line[i] = sign

        out = [f"clocks {begin} to {end}, a column is {scale:.0f}"]
        for role, (warps, runs) in self.lines().items():
            for first in sorted({w // QUARTERS * QUARTERS for w in warps}):
                warp = min(w for w in warps if w >= first)
                line = ["."] * width
                paint(line, runs[warp], "#")
                paint(line, sections.get(warp, []), "E")
                out.append(f"{role:>12} {warp:>2} {''.join(line)}")
        for kind, spans in self.work().items():
            line = ["-"] * width
            paint(line, spans, "=")
            out.append(f"{kind:>12}    {''.join(line)}")
        return "\n".join(out)

    def work(self) -> dict[str, list[tuple[int, int]]]:
        """Products and copies of the CTA: (issue, done)."""
        found: dict[str, list] = {}
        for e in self.trace.work(self.cta):
            kind = class_of(self.trace.opcodes[int(e["pc"])])
            if kind in ("tensor", "bulk copy"):
                found.setdefault(kind, []).append((int(e["start"]), int(e["end"] or self.clocks)))
        return found

    def draw(self, path, begin: int = 0, end: int | None = None, pattern: str = EXPONENTIALS) -> None:
        """The same as a picture (needs matplotlib), every warp."""
        from matplotlib.figure import Figure

        end = self.clocks if end is None else end
        sections, work = self.sections(pattern), self.work()
        rows = [(f"{role} (warp {w})", runs[w], sections.get(w, ())) for role, (warps, runs) in self.lines().items()
                for w in warps]
        figure = Figure(figsize=(14, 0.28 * (len(rows) + len(work)) + 1.5))
        axes = figure.add_subplot()

        def bars(spans, y, colour, alpha=1.0):
            seen = [(a, max(1, b - a)) for a, b in spans if b >= begin and a <= end]
            axes.broken_barh(seen, (y, 0.8), color=colour, alpha=alpha)

        for y, (_, runs, inside) in enumerate(rows):
            bars(runs, y, "tab:green", 0.4)
            bars(inside, y, "tab:red")
        for y, spans in enumerate(work.values(), len(rows)):
            bars(spans, y, "tab:blue", 0.3)
        names = [name for name, _, _ in rows] + [f"{kind} in flight" for kind in work]
        axes.set_yticks([i + 0.4 for i in range(len(names))], names)
        axes.set_xlim(begin, end)
        axes.invert_yaxis()
        axes.set_xlabel("clocks of the model: green runs, red in a section")
        axes.set_title(f"{self.trace.kernel[:90]}, CTA {self.cta}")
        figure.savefig(path, bbox_inches="tight")
