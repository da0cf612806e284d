"""Splits PTX text into directives, scopes, labels and instructions, with their line numbers."""

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from ..errors import PtxError

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
STATEMENT = re.compile(
    r"\s*(?:"
    r"(?P<open>\{)|(?P<close>\})"
    r"|(?P<loc>\.(?:loc|file)[^\n;]*)(?:\n|\Z)"
    r"|(?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)"
    r"|(?P<text>[^;{}]*(?:\{[^{}]*\}[^;{}]*)*);)"
)
GUARD = re.compile(r"@(!?)\s*([%\w$]+)\s+")
PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)*(?:\.align\s+\d+\s+)?)?([\w$]+)(?:\[(\d+)\])?"
)
ARRAY = re.compile(r"\.(?:shared|local)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\s*(?:\[(\d*)\])?")
TYPE_BYTES = {
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "f16": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
    "b128": 16,
}


@dataclass
class Parameter:
    """One kernel parameter: byte offset in the parameter buffer, and size."""

    name: str
    offset: int
    size: int


@dataclass
class Kernel:
    """The entry point, cut out of a module but not yet decoded."""

    name: str
    body: str  # from the opening brace to the closing one, comments blanked out
    first_line: int
    parameters: list[Parameter]
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)  # reqntid, maxnreg, ...
    shared: dict[str, tuple[int, int]] = field(default_factory=dict)  # module-scope arrays: offset, bytes
    target: str = ""

    @property
    def param_bytes(self) -> int:
        return max((p.offset + p.size for p in self.parameters), default=0)


def blank_comments(text: str) -> str:
    """The text with comments removed, every line still where it was."""
    return COMMENT.sub(lambda m: "\n" * m.group().count("\n"), text.rstrip("\0"))


def _parameters(header: str) -> list[Parameter]:
    out, offset = [], 0
    for align, kind, name, count in PARAM.findall(header):
        if kind not in TYPE_BYTES:
            raise PtxError(f"parameter {name}: unknown type .{kind}")
        size = TYPE_BYTES[kind] * int(count or 1)
        step = max(int(align or 1), TYPE_BYTES[kind])
        offset = -(-offset // step) * step
        out.append(Parameter(name, offset, size))
        offset += size
    return out


def _shared(text: str) -> dict[str, tuple[int, int]]:
    """Module-scope shared arrays: the sized ones first, the dynamic block (no size) after them."""
    found, offset, dynamic = {}, 0, []
    for align, kind, name, count in ARRAY.findall(text):
        step = max(int(align or 1), TYPE_BYTES[kind])
        size = TYPE_BYTES[kind] * int(count or (0 if "[" in text[text.index(name) :][: len(name) + 2] else 1))
        if not size:
            dynamic.append((name, step))
            continue
        offset = -(-offset // step) * step
        found[name] = (offset, size)
        offset += size
    for name, step in dynamic:
        found[name] = (-(-offset // step) * step, 0)
    return found


def find_kernel(text: str, entry: str | None = None) -> Kernel:
    """The entry `entry` (or the only one) of a PTX module. Raises PtxError when there is none, or several without a name."""
    clean = blank_comments(text)
    entries = list(re.finditer(r"\.entry\s+([\w$]+)\s*", clean))
    chosen = [m for m in entries if entry is None or m.group(1) == entry]
    if len(chosen) != 1:
        raise PtxError(f"{len(chosen)} kernels fit the name {entry!r}; the module has {[m.group(1) for m in entries]}")
    start = chosen[0].start()
    open_at = clean.index("{", start)
    depth, at = 0, open_at
    for brace in re.finditer(r"[{}]", clean[open_at:]):
        depth += 1 if brace.group() == "{" else -1
        at = open_at + brace.start()
        if depth == 0:
            break
    header = clean[start:open_at]
    directives = {}
    for name, values in re.findall(
        r"\.(reqntid|maxntid|maxnreg|minnctapersm|reqnctapercluster|maxclusterrank)\s+([\d,\s]+)", header
    ):
        directives[name] = tuple(int(v) for v in values.split(",") if v.strip())
    target = re.search(r"\.target\s+(\w+)", clean)
    return Kernel(
        chosen[0].group(1),
        clean[open_at : at + 1],
        clean.count("\n", 0, open_at) + 1,
        _parameters(header),
        directives,
        _shared(clean[:start] + clean[at + 1 :]),
        target.group(1) if target else "",
    )


def statements(kernel: Kernel):
    """Yields (kind, text, line): kind is "open", "close", "label", "loc" or "text"."""
    body = kernel.body
    breaks = [m.start() for m in re.finditer("\n", body)]
    at, end = 0, len(body)
    match = STATEMENT.match
    while at < end:
        m = match(body, at)
        if not m:
            rest = body[at:].strip()
            if not rest:
                return
            raise PtxError(f"line {kernel.first_line + bisect_right(breaks, at)}: cannot parse {rest[:80]!r}")
        kind = m.lastgroup
        yield kind, m.group(kind), kernel.first_line + bisect_right(breaks, m.start(kind))
        at = m.end()
