"""Resource figures of a compiled kernel, read from its cubin (an ELF file). Standard library only, no CUDA tools.

The compiler records attributes per function in `.nv.info` sections: u8 format, u8 attribute, u16 size or value; format 4 is
followed by `size` bytes. The numbers of the attributes were found by comparing kernels with known figures.
"""
from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass

_REGISTERS, _FRAME, _MIN_STACK = 0x2F, 0x11, 0x12
_SIZED = 4


@dataclass(frozen=True)
class KernelFacts:
    """registers a thread; frame_bytes is the stack frame (0: nothing spilled, no local memory); code_bytes of machine code."""

    name: str
    registers: int
    frame_bytes: int
    stack_bytes: int
    code_bytes: int


def kernel_facts(cubin: bytes) -> list[KernelFacts]:
    """Figures of every kernel in the cubin. Raises ValueError where the bytes are no ELF file."""
    if cubin[:4] != b"\x7fELF":
        raise ValueError(f"not an ELF file: it begins with {cubin[:4]!r}")
    sections = _sections(cubin)
    symbols = _symbols(cubin, sections)
    figures: dict[str, dict[int, int]] = {}
    for attribute, payload in _attributes(sections[".nv.info"][0]):
        if attribute in (_REGISTERS, _FRAME, _MIN_STACK):
            symbol, value = struct.unpack("<II", payload)
            figures.setdefault(symbols[symbol], {})[attribute] = value
    return [KernelFacts(name, f.get(_REGISTERS, 0), f.get(_FRAME, 0), f.get(_MIN_STACK, 0), len(sections[f".text.{name}"][0]))
            for name, f in figures.items() if f".text.{name}" in sections]


def _sections(elf: bytes) -> dict[str, tuple[bytes, int]]:
    """name -> (contents, index of the linked section)."""
    (offset,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * entry_size) for i in range(count)]
    names = headers[names_index][4]
    # Type 8 (NOBITS) occupies no bytes in the file.
    return {_string(elf, names + h[0]): (b"" if h[1] == 8 else elf[h[4]:h[4] + h[5]], h[6]) for h in headers}


def _symbols(elf: bytes, sections: dict[str, tuple[bytes, int]]) -> list[str]:
    table, strings = sections[".symtab"][0], sections[".strtab"][0]
    return [_string(strings, struct.unpack_from("<I", table, i)[0]) for i in range(0, len(table), 24)]


def _string(data: bytes, start: int) -> str:
    return data[start:data.index(b"\0", start)].decode()


def _attributes(data: bytes):
    """(attribute, payload) of the records that carry bytes."""
    position = 0
    while position + 4 <= len(data):
        kind, attribute, size = struct.unpack_from("<BBH", data, position)
        position += 4
        if kind == _SIZED:
            yield attribute, data[position:position + size]
            position += size


_INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*(?:\.[A-Za-z0-9_:]+)*)[\s;]")


def ptx_counts(ptx: str) -> Counter[str]:
    """How often each PTX instruction (with its suffixes) occurs in the text."""
    return Counter(m[1] for line in ptx.splitlines() if not line.lstrip().startswith(".") and (m := _INSTRUCTION.match(line)))
