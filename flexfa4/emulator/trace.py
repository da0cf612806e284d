"""What happened when in one launch: roles of warps, who waited on what, counts by class and role, maps of memory.

Time is counted in emulated steps (warp-instructions of the whole machine): it orders events and says nothing of seconds."""

import re
from dataclasses import dataclass, field

import numpy as np

# `TraceEvent`, `TraceIssue` and `TraceRange` of core/trace.h.
EVENT = np.dtype([("start", "u8"), ("end", "u8"), ("work", "u8"), ("pc", "i4"), ("object", "u4"), ("cta", "u2"), ("warp", "u2"),
                  ("kind", "u2"), ("pad", "u2")])
ISSUE = np.dtype([("clock", "u4"), ("pc", "u4"), ("cta", "u2"), ("warp", "u2"), ("held", "u4")])
RANGE = np.dtype([("pc", "i4"), ("lo", "u4"), ("hi", "u4"), ("kind", "u4")])
WAITS = {0: "mbarrier", 1: "barrier", 2: "cluster barrier", 3: "registers", 4: "tensor memory", 5: "other lanes"}
RUN, WORK = 6, 16
# Class of an opcode: the first pattern that matches.
CLASSES = (
    ("tensor", r"wgmma\.mma|tcgen05\.mma|mma\.sync"),
    ("bulk copy", r"cp\.async\.bulk\.(tensor|shared|global)|cp\.reduce"),
    ("async copy", r"cp\.async|st\.async|red\.async"),
    ("tensor memory", r"tcgen05\.(ld|st|cp|alloc|dealloc|shift|relin)"),
    ("synchronisation", r"mbarrier|bar|fence|membar|wgmma|tcgen05|griddep|setmaxnreg|elect|cluster"),
    ("shared memory", r"(ld|st|atom|red)\.(\w+\.)*shared|ldmatrix|stmatrix|movmatrix"),
    ("global memory", r"(ld|st|atom|red)\b(?!\.param)"),
    ("special function", r"(ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)\.|div\.(approx|full|rn)\.f"),
    ("float", r"(add|sub|mul|fma|mad|max|min|neg|abs)\.(\w+\.)*(f16|f32|bf16|f64)"),
    ("conversion", r"cvt"),
    ("warp exchange", r"shfl|vote|match|redux|activemask"),
    ("control", r"bra|ret|exit|setp|selp|\w+\.pred"),
    ("move", r"mov|ld\.param|prmt"),
    ("integer", r""),
)
NAMED = (("special", "special function", 0.03), ("math", "float", 0.03), ("mma", "tensor", 0.0), ("load", "bulk copy", 0.0),
         ("load", "async copy", 0.0), ("copy", "global memory", 0.02))  # name, class, least share of the warp's instructions


def class_of(opcode: str) -> str:
    return next(name for name, pattern in CLASSES if re.match(pattern, opcode))


@dataclass
class Trace:
    """events, ranges: arrays of EVENT and RANGE. counts: executions [warp of the CTA, instruction], all CTAs together. opcodes,
    lines (of the PTX): of each instruction. dropped: events beyond the limit of a million, counted only."""

    kernel: str
    events: np.ndarray
    ranges: np.ndarray
    counts: np.ndarray
    opcodes: list[str]
    lines: list[int]
    target: str = ""
    dropped: int = 0
    names: dict[int, str] = field(default_factory=dict)  # of mbarriers by shared address, when the caller knows them
    issues: np.ndarray = field(default_factory=lambda: np.zeros(0, ISSUE))  # in modelled time: each instruction (`Timeline`)

    # ---- roles
    def roles(self) -> dict[str, list[int]]:
        """Warps of a CTA that executed (four fifths of) the same instructions, named after what they do; in order of warps."""
        groups: list[list[int]] = []
        done = self.counts > 0
        for warp, row in enumerate(done):
            for warps in groups:
                both = done[warps[0]] | row
                if (done[warps[0]] & row).sum() >= 0.8 * both.sum():
                    warps.append(warp)
                    break
            else:
                groups.append([warp])
        found: dict[str, list[int]] = {}
        for warps in groups:
            classes = self._classes(warps)
            total = sum(classes.values())
            # Rarely executed classes do not make a role; copies and matrix instructions are few by nature.
            name = next((n for n, kind, share in NAMED if classes.get(kind, 0) > share * total), "idle")
            number = sum(x.split(" ")[0] == name for x in found)
            found[name if not number else f"{name} {number + 1}"] = warps
        return found

    def _classes(self, warps: list[int]) -> dict[str, int]:
        total = self.counts[warps].sum(0)
        found: dict[str, int] = {}
        for i in np.flatnonzero(total):
            kind = class_of(self.opcodes[i])
            found[kind] = found.get(kind, 0) + int(total[i])
        return found

    def by_class(self) -> dict[str, dict[str, int]]:
        """role -> class -> warp-instructions executed."""
        return {role: self._classes(warps) for role, warps in self.roles().items()}

    # ---- waits
    def waits(self, cta: int | None = None) -> np.ndarray:
        """Events that are waits, of one CTA (in order of launch) or of all."""
        found = self.events[self.events["kind"] < RUN]
        return found if cta is None else found[found["cta"] == cta]

    def work(self, cta: int | None = None) -> np.ndarray:
        """Asynchronous work: from issue to completion; `object` bytes, `work` multiply-adds."""
        found = self.events[self.events["kind"] == WORK]
        return found if cta is None else found[found["cta"] == cta]

    @property
    def steps(self) -> int:
        return int(max(self.events["end"].max(initial=0), self.events["start"].max(initial=0)))

    def _object(self, event) -> str:
        kind, number = int(event["kind"]), int(event["object"])
        if kind == 0:
            return self.names.get(number, f"mbarrier 0x{number - 1024:x}")  # shared memory starts at 1024
        return f"{WAITS[kind]} {number}" if kind == 1 else WAITS[kind]

    def waited(self, cta: int = 0) -> list[tuple[str, str, int, int, int]]:
        """(role, what it waited on, PTX line, times, steps in all) of one CTA, the longest first. A wait that never ended counts
        to the last step."""
        role_of = {warp: role for role, warps in self.roles().items() for warp in warps}
        found: dict[tuple, list[int]] = {}
        for event in self.waits(cta):
            key = (role_of[int(event["warp"])], self._object(event), self.lines[int(event["pc"])])
            entry = found.setdefault(key, [0, 0])
            entry[0] += 1
            entry[1] += int(event["end"] or self.steps) - int(event["start"])
        return sorted(((*key, *entry) for key, entry in found.items()), key=lambda row: -row[4])

    # ---- pictures in words
    def text(self, cta: int = 0, width: int = 100) -> str:
        """The timeline of one CTA: a line a role and one a kind of asynchronous work, then who waited on what. `#` runs, `.`
        waits (all warps of the role), `-` neither."""
        mine = self.events[self.events["cta"] == cta]
        if not len(mine):
            return f"{self.kernel}: no events of CTA {cta}"
        low, high = int(mine["start"].min()), int(mine["end"].max())
        scale = max(1, -(-(high - low + 1) // width))
        lines = [f"{self.kernel[:80]}", f"CTA {cta}: steps {low} to {high}, one column is {scale} steps"]
        roles = self.roles()
        for role, warps in roles.items():
            run, wait = np.zeros(width, bool), np.zeros((len(warps), width), bool)
            for event in mine:
                if int(event["warp"]) not in warps or event["kind"] == WORK:
                    continue
                a, b = (int(event["start"]) - low) // scale, (int(event["end"] or high) - low) // scale
                if event["kind"] == RUN:
                    run[a : b + 1] = True
                else:
                    wait[warps.index(int(event["warp"])), a : b + 1] = True
            bar = "".join("#" if r else "." if w else "-" for r, w in zip(run, wait.all(0)))
            lines.append(f"{role:>12} {_spans(warps):<8} {bar}")
        for kind in ("bulk copy", "async copy", "tensor"):
            busy = np.zeros(width, int)
            for event in mine[mine["kind"] == WORK]:
                if class_of(self.opcodes[int(event["pc"])]) == kind:
                    busy[(int(event["start"]) - low) // scale : (int(event["end"] or high) - low) // scale + 1] += 1
            if busy.any():
                lines.append(f"{kind:>12} {'':<8} " + "".join("-" if not n else str(n) if n < 10 else "+" for n in busy))
        lines += ["", f"{'role':>12} waits on (PTX line): times, steps"]
        lines += [f"{role:>12} {what} ({line}): {n}, {steps}" for role, what, line, n, steps in self.waited(cta)[:20]]
        return "\n".join(lines)

    def shared_map(self) -> list[tuple[int, int, str]]:
        """(first byte, end, what uses it) of shared memory, offsets from its start: barriers, ranges of asynchronous work."""
        return self._map({0: "read by", 1: "written by", 4: "mbarrier"}, 1024)

    def tensor_map(self) -> list[tuple[int, int, str]]:
        """(first column, end, what uses it) of tensor memory: operands and accumulators of tcgen05.mma."""
        return self._map({2: "read by", 3: "written by"}, 0)

    def _map(self, kinds: dict[int, str], base: int) -> list[tuple[int, int, str]]:
        found: dict[tuple[int, int], set[str]] = {}
        for row in self.ranges:
            if int(row["kind"]) not in kinds:
                continue
            word = kinds[int(row["kind"])]
            label = word if row["pc"] < 0 else f"{word} {_short(self.opcodes[int(row['pc'])])}"
            found.setdefault((int(row["lo"]) - base, int(row["hi"]) - base), set()).add(label)
        return [(lo, hi, ", ".join(sorted(labels))) for (lo, hi), labels in sorted(found.items())]

    def draw(self, path, cta: int = 0) -> None:
        """Writes the timeline of one CTA as a picture (needs matplotlib): warps above, asynchronous work below."""
        from matplotlib.figure import Figure

        mine = self.events[self.events["cta"] == cta]
        roles = self.roles()
        order = [warp for warps in roles.values() for warp in warps]
        role_of = {warp: role for role, warps in roles.items() for warp in warps}
        kinds = [k for k in ("bulk copy", "async copy", "tensor") if any(
            class_of(self.opcodes[int(e["pc"])]) == k for e in mine[mine["kind"] == WORK])]
        figure = Figure(figsize=(14, 0.28 * (len(order) + len(kinds)) + 1.5))
        axes = figure.add_subplot()
        colours = {RUN: "tab:green", 0: "tab:orange", 1: "tab:red", 2: "tab:purple", 3: "tab:brown", 4: "tab:pink", 5: "tab:grey"}
        last = self.steps
        for event in mine:
            start, end = int(event["start"]), int(event["end"] or last)
            if event["kind"] == WORK:
                kind = class_of(self.opcodes[int(event["pc"])])
                if kind in kinds:
                    axes.broken_barh([(start, max(1, end - start))], (len(order) + kinds.index(kind), 0.8), color="tab:blue",
                                     alpha=0.3)
            else:
                axes.broken_barh([(start, max(1, end - start))], (order.index(int(event["warp"])), 0.8),
                                 color=colours[int(event["kind"])])
        axes.set_yticks([i + 0.4 for i in range(len(order) + len(kinds))],
                        [f"{role_of[w]} (warp {w})" for w in order] + [f"{k} in flight" for k in kinds])
        axes.invert_yaxis()
        axes.set_xlabel("emulated steps: green runs, orange waits on an mbarrier, red on a barrier, purple on the cluster")
        axes.set_title(f"{self.kernel[:90]}, CTA {cta}")
        figure.savefig(path, bbox_inches="tight")


def _spans(warps: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2,5"."""
    parts, start = [], None
    for i, warp in enumerate(warps):
        start = warp if start is None else start
        if i + 1 == len(warps) or warps[i + 1] != warp + 1:
            parts.append(f"{start}" if start == warp else f"{start}-{warp}")
            start = None
    return ",".join(parts)


def _short(opcode: str) -> str:
    """The first words of an opcode: `cp.async.bulk.tensor.4d`."""
    found = re.match(r"cp\.async\.bulk\.tensor\.\dd|cp\.(?:reduce\.)?async\.bulk|\w+\.\w+", opcode)
    return found.group() if found else opcode
