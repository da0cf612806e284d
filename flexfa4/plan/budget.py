"""What the machines have, and the sums that must fit. Sizes from the CUDA programming guide (compute capability 9.0 and 10.0)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

from flexfa4.errors import FlexError

SMEM_BYTES = 227 * 1024  # of the 228 KiB of an SM, what one CTA may ask for
SMEM_ALIGNMENT = 1024  # of a tile under the 128-byte swizzle
TMEM_COLUMNS = 512  # 128 lanes of 32 bits each
REGISTERS = 64 * 1024  # 32-bit registers of an SM
MBARRIER_BYTES = 8
WARP = 32
WARPS_PER_GROUP = 4


class BudgetError(FlexError, ValueError):
    """A plan that does not fit the machine, or whose parts do not fit each other."""


@dataclass(frozen=True)
class Buffer:
    """A piece of shared memory: `count` buffers of `bytes` each. `aliases` names the buffer whose place it takes over later."""

    name: str
    bytes: int
    count: int = 1
    aliases: str = ""

    @property
    def total(self) -> int:
        return 0 if self.aliases else -(-self.bytes * self.count // 16) * 16


@dataclass(frozen=True)
class Columns:
    """A range of tensor memory columns; `aliases` names the range that it lies in."""

    name: str
    first: int
    count: int
    aliases: str = ""

    @property
    def end(self) -> int:
        return self.first + self.count


def require(condition: bool, message: str) -> None:
    if not condition:
        raise BudgetError(message)


def check_smem(buffers: Iterable[Buffer]) -> int:
    """Total bytes; raises BudgetError with the whole sum where they do not fit, or where an alias is larger than its host: each
    of its buffers lies in one of the host's, the others of which may be in use."""
    buffers = tuple(buffers)
    hosts = {b.name: b for b in buffers}
    for b in buffers:
        if b.aliases:
            host = hosts[b.aliases]
            require(
                b.bytes <= host.bytes and b.count <= host.count,
                f"{b.name} ({b.count} x {b.bytes} bytes) does not fit over {b.aliases} ({host.count} x {host.bytes} bytes)",
            )
    total = sum(b.total for b in buffers)
    parts = ", ".join(f"{b.name} {b.count} x {b.bytes}" for b in buffers if not b.aliases)
    require(total <= SMEM_BYTES, f"{total} bytes of shared memory, {SMEM_BYTES} exist: {parts}")
    return total


def check_tmem(regions: Iterable[Columns]) -> int:
    """Columns to allocate (a power of two); raises BudgetError where regions overlap without saying so or do not fit."""
    regions = tuple(regions)
    own = sorted((r for r in regions if not r.aliases), key=lambda r: r.first)
    for left, right in zip(own, own[1:]):
        require(
            left.end <= right.first,
            f"tensor memory of {left.name} ({left.first}..{left.end}) runs into {right.name} ({right.first}..)",
        )
    hosts = {r.name: r for r in own}
    for r in regions:
        if r.aliases:
            host = hosts[r.aliases]
            require(
                host.first <= r.first and r.end <= host.end,
                f"{r.name} ({r.first}..{r.end}) does not lie in {host.name} ({host.first}..{host.end})",
            )
    parts = ", ".join(f"{r.name} {r.count}" for r in own)
    require(own[-1].end <= TMEM_COLUMNS, f"{own[-1].end} columns of tensor memory, {TMEM_COLUMNS} exist: {parts}")
    return max(32, 1 << (own[-1].end - 1).bit_length())


def check_registers(per_role: Iterable[tuple[str, int, int]]) -> int:
    """Total registers of (role, warps, registers a thread); setmaxnreg takes 24 to 256 in steps of 8."""
    per_role = tuple(per_role)
    for role, warps, registers in per_role:
        require(
            24 <= registers <= 256 and registers % 8 == 0,
            f"{registers} registers for {role}: setmaxnreg takes 24 to 256 in steps of 8",
        )
    total = sum(warps * WARP * registers for _, warps, registers in per_role)
    parts = ", ".join(f"{role} {warps} warps x 32 x {registers}" for role, warps, registers in per_role)
    require(total <= REGISTERS, f"{total} registers, {REGISTERS} exist: {parts}")
    return total
