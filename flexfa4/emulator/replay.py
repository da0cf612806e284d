"""Launches kept with the memory they found and left, so that they can be run again: with other options, or with other PTX."""

import ctypes
from dataclasses import dataclass, field

from . import native


@dataclass
class Recorded:
    """One launch of a kernel. before, after: the bytes of each range of host memory that kernels may touch."""

    ptx: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem: int
    params: bytes
    ranges: list[tuple[int, int]]
    before: list[bytes]
    after: list[bytes] = field(default_factory=list)
    keep: list = field(default_factory=list)  # owners of that memory

    @property
    def kernel(self) -> str:
        return native.load(self.ptx).program.kernel.name


def memory(ranges: list[tuple[int, int]]) -> list[bytes]:
    """The present bytes of host ranges (begin, end)."""
    return [ctypes.string_at(begin, end - begin) for begin, end in ranges]


def parameters(raw: bytes):
    """A 64-byte aligned copy of a parameter buffer: (address, bytes, the object that owns it)."""
    owner = ctypes.create_string_buffer(max(64, len(raw)) + 128)
    base = (ctypes.addressof(owner) + 63) & ~63
    ctypes.memmove(base, raw, len(raw))
    return base, len(raw), owner
