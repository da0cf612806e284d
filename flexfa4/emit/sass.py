"""Reads machine code: loops of a kernel, what each warp role executes for one KV tile, and instructions by class.

Needs nvdisasm (the package nvidia-cuda-nvdisasm, or one on the path). A loop is a stretch that a branch jumps back over; the
repeated part of a wait for a barrier lies outside of it."""

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*)$")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")

# First match wins. Pipes as in the paper on FlashAttention-4 (section 3): special functions, FMA, the rest of the vector ALU.
CLASSES = (
    ("MUFU", r"MUFU"),
    ("FMA", r"FFMA|FMUL|FADD|IMAD|HFMA2"),
    ("convert", r"F2FP|F2F|I2F|F2I"),
    ("tensor memory", r"LDTM|STTM|UTCATOM|FENCE\.VIEW"),
    ("memory", r"LDG|STG|LDS|STS|LDC|LDL|STL|ATOM|RED"),
    ("barrier", r"SYNCS|BAR|WARPSYNC|ELECT|MEMBAR|FENCE|UTCBAR|NOP|DEPBAR|VOTE"),
    ("tensor core, TMA", r"UTCHMMA|UTMA|UBLK"),
    ("uniform", r"U[A-Z]|R2UR|S2UR|VOTEU"),
    ("branch", r"BRA|EXIT|CALL|RET|BSSY|BSYNC|BREAK"),
    ("ALU", r""),
)


@dataclass(frozen=True)
class Instruction:
    opcode: str
    rest: str
    guarded: bool

    @property
    def conditional(self) -> bool:
        """Of a branch: whether it may fall through."""
        return self.guarded or re.match(r"!?U?P\d", self.rest) is not None

    @property
    def kind(self) -> str:
        return next(name for name, pattern in CLASSES if re.match(pattern, self.opcode))


def nvdisasm() -> str:
    """Path of the disassembler. Raises FileNotFoundError where there is none."""
    found = sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/nvdisasm")) or [shutil.which("nvdisasm")]
    if found[0] is None:
        raise FileNotFoundError("nvdisasm is not found: pip install nvidia-cuda-nvdisasm")
    return str(found[0])


def disassemble(cubin: bytes) -> tuple[list[Instruction], dict[str, int]]:
    """(instructions, label -> index of the instruction after it)."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([nvdisasm(), "-c", file.name], capture_output=True, text=True, check=True).stdout
    instructions, labels = [], {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _LINE.match(line):
            instructions.append(Instruction(found[2], found[3], found[1] is not None))
    return instructions, labels


def loops(instructions: list[Instruction], labels: dict[str, int]) -> list[tuple[int, int]]:
    """(first, one past last) of every loop, innermost last; those over an EXIT are jumps back from out of line."""
    found = set()
    for i, instruction in enumerate(instructions):
        target = _TARGET.search(instruction.rest) if instruction.opcode.startswith("BRA") else None
        if target and labels[target[1]] <= i:
            first = labels[target[1]]
            if not any(x.opcode in ("EXIT", "USETMAXREG.DEALLOC.CTAPOOL") for x in instructions[first:i]):
                found.add((first, i + 1))
    return sorted(found, key=lambda span: span[0] - span[1])


def shortest_path(instructions: list[Instruction], labels: dict[str, int], span: tuple[int, int]) -> list[Instruction]:
    """What one pass through a loop executes at least: rare branches left out, waits not repeated, inner loops once."""
    first, end = span
    reached = max(i for i in _ways(instructions, labels, first, end) if instructions[i].opcode.startswith("BRA"))
    return _way(instructions, labels, span, first, reached)


def _ways(instructions: list[Instruction], labels: dict[str, int], first: int, end: int) -> dict[int, int]:
    """Instruction -> the one before it on the shortest way from `first`, for those before `end` that are reached."""
    best, before = {first: 0}, {first: first}
    for i in range(first, end):
        if i not in best:
            continue
        instruction = instructions[i]
        branch = instruction.opcode.startswith("BRA")
        following = [] if branch and not instruction.conditional else [i + 1]
        target = _TARGET.search(instruction.rest) if branch else None
        if target:
            following.append(labels[target[1]])
        for j in following:
            if i < j < end and best[i] + 1 < best.get(j, 1 << 30):
                best[j], before[j] = best[i] + 1, i
    return before


def _way(instructions, labels, span: tuple[int, int], start: int, goal: int) -> list[Instruction]:
    """From one instruction of a loop to another further down."""
    before, path = _ways(instructions, labels, start, span[1]), [goal]
    while path[-1] != start:
        path.append(before[path[-1]])
    return [instructions[i] for i in reversed(path)]


def count(stretch: list[Instruction], opcode: str) -> int:
    return sum(x.opcode.startswith(opcode) for x in stretch)


def softmax_path(code: tuple[list[Instruction], dict[str, int]]) -> list[Instruction]:
    """One KV tile of one softmax warp, without masks: the shortest way through the shortest of its loops."""
    instructions, labels = code
    paths = [shortest_path(instructions, labels, s) for s in loops(*code)]
    return min((p for p in paths if count(p, "MUFU.EX2") >= 64 and count(p, "STTM")), key=len)


def masked_path(code: tuple[list[Instruction], dict[str, int]], kv_tile: int = 128) -> list[Instruction]:
    """The same for a tile with hidden keys: through the load from tensor memory that the way without them leaves out, the loop
    around it (if it is one) as often as it loads columns of the tile. Where such tiles have a loop of their own, the way through
    that; where there is one kind of tile, `softmax_path`."""
    instructions, labels = code
    bodies = {s: instructions[slice(*s)] for s in loops(*code)}
    tile_loops = [s for s, body in bodies.items() if count(body, "MUFU.EX2") >= 64 and count(body, "STTM")]
    inner = [s for s in tile_loops if not any(s != t and s[0] <= t[0] and t[1] <= s[1] for t in tile_loops)]
    paths = {s: shortest_path(instructions, labels, s) for s in inner}
    span = min(inner, key=lambda s: len(paths[s]))
    taken = {id(x) for x in paths[span]}
    aside = [i for i in range(*span) if instructions[i].opcode.startswith("LDTM") and id(instructions[i]) not in taken]
    if not aside:
        return max(paths.values(), key=len)
    last = max(i for i in _ways(instructions, labels, *span) if instructions[i].opcode.startswith("BRA"))
    path = _way(instructions, labels, span, span[0], aside[0])[:-1] + _way(instructions, labels, span, aside[0], last)
    around = [s for s in loops(*code) if span[0] < s[0] <= aside[0] < s[1] < span[1]]
    if around:
        columns = int(re.search(r"x(\d+)", instructions[aside[0]].opcode + instructions[aside[0]].rest)[1])
        path += shortest_path(instructions, labels, around[-1]) * (kv_tile // columns - 1)
    return path


def role_path(code: tuple[list[Instruction], dict[str, int]], opcode: str, times: int) -> list[Instruction]:
    """One KV tile of the warp that executes `opcode` so many times for it, other branches left out. Where it does half of them in
    each pass of an inner loop, over the query tiles, both passes are there. Raises ValueError where no loop fits."""
    paths = {s: shortest_path(*code, s) for s in loops(*code)}
    whole = [p for p in paths.values() if count(p, opcode) == times and not count(p, "MUFU")]
    half = [p for p in paths.values() if 2 * count(p, opcode) == times and not count(p, "MUFU")]
    if whole or half:
        return min(whole, key=len) if whole else max(half, key=len) + min(half, key=len)
    # Where a query tile may be left out, the shortest way leaves it out.
    for of in (times, times // 2):
        ways = {s: p for s in paths if (p := _path_with(*code, s, opcode, of)) and not count(p, "MUFU")}
        if of == times:
            # A loop around one that does half of them is that over work items.
            ways = {s: p for s, p in ways.items() if not any(
                t != s and s[0] <= t[0] and t[1] <= s[1] and _path_with(*code, t, opcode, times // 2) for t in paths)}
        if ways:
            inner = min(ways, key=lambda s: len(ways[s]))
            around = [p for s, p in ways.items() if s[0] <= inner[0] and inner[1] <= s[1] and s != inner]
            return ways[inner] if of == times else ways[inner] + min(around, key=len)
    raise ValueError(f"no loop executes {opcode} {times} times")


def _path_with(instructions: list[Instruction], labels: dict[str, int], span: tuple[int, int], opcode: str,
               times: int) -> list[Instruction]:
    """As `shortest_path`, of the ways that execute `opcode` so often; [] where there is none."""
    first, end = span
    start = first, int(instructions[first].opcode.startswith(opcode))
    best, before, reached = {start: 0}, {}, None
    for i in range(first, end):
        here = [n for n in range(times + 1) if (i, n) in best]
        instruction = instructions[i]
        branch = instruction.opcode.startswith("BRA")
        if branch and times in here:
            reached = i, times
        following = [] if branch and not instruction.conditional else [i + 1]
        target = _TARGET.search(instruction.rest) if branch else None
        following += [labels[target[1]]] if target else []
        for j in following:
            if i < j < end:
                more = instructions[j].opcode.startswith(opcode)
                for n in here:
                    if best[i, n] + 1 < best.get((j, n + more), 1 << 30):
                        best[j, n + more], before[j, n + more] = best[i, n] + 1, (i, n)
    path = [reached] if reached else []
    while path and path[-1] != start:
        path.append(before[path[-1]])
    return [instructions[i] for i, _ in reversed(path)]


def register_limits(code: tuple[list[Instruction], dict[str, int]]) -> list[int]:
    """What warp roles set their registers to, most first."""
    found = {int(x.rest.split()[-2], 16) for x in code[0] if x.opcode.startswith("USETMAXREG")}
    return sorted(found, reverse=True)


def by_class(stretch: list[Instruction]) -> Counter:
    return Counter(x.kind for x in stretch)


def consumer_path(code: tuple[list[Instruction], dict[str, int]]) -> list[Instruction]:
    """One KV tile of one Hopper consumer warp, without masks: the shortest way through the shortest loop with a tile's
    exponentials and products."""
    instructions, labels = code
    paths = [shortest_path(instructions, labels, s) for s in loops(*code)]
    return min((p for p in paths if count(p, "MUFU.EX2") >= 32 and count(p, "HGMMA")), key=len)


def with_repeats(code: tuple[list[Instruction], dict[str, int]], path: list[Instruction], kv_tile: int) -> list[Instruction]:
    """A way through a tile with the loops inside of it that load a part of the columns of the tile from tensor memory as often
    as they run; `shortest_path` has them once."""
    instructions, labels = code
    taken, found = {id(x) for x in path}, list(path)
    for first, end in loops(*code):
        inside = id(instructions[first]) in taken and id(instructions[end - 1]) in taken and instructions[first] is not path[0]
        loads = [x for x in instructions[first:end] if x.opcode.startswith("LDTM")]
        if inside and loads:
            columns = int(re.search(r"x(\d+)", loads[0].opcode + loads[0].rest)[1])
            found += shortest_path(instructions, labels, (first, end)) * (kv_tile // columns - 1)
    return found


def tile_ways(code: tuple[list[Instruction], dict[str, int]], kv_tile: int) -> list[list[Instruction]]:
    """The ways of a Blackwell softmax warp through one KV tile, shortest first: through each load from tensor memory in its loops
    over tiles, inner loops as often as they run. The shortest is a tile without hidden keys, the longest one with them."""
    instructions, labels = code
    found = []
    for span in loops(*code):
        body = instructions[slice(*span)]
        if count(body, "MUFU.EX2") < 64 or not count(body, "STTM"):
            continue
        reached = _ways(instructions, labels, *span)
        ends = [i for i in reached if instructions[i].opcode.startswith("BRA")]
        for i in range(*span):
            if instructions[i].opcode.startswith("LDTM") and i in reached and ends and max(ends) > i:
                path = _way(instructions, labels, span, span[0], i)[:-1] + _way(instructions, labels, span, i, max(ends))
                if count(path, "MUFU.EX2") >= 64:
                    found.append(with_repeats(code, path, kv_tile))
    least = min(count(path, "MUFU.EX2") for path in found)          # of one tile; a way through two kinds of tile has two
    return sorted((path for path in found if count(path, "MUFU.EX2") == least), key=len)
