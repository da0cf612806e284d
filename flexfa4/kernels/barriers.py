"""Device code: mbarriers made from a Plan's barrier table, and the turn of a role in a ring of stages."""
from __future__ import annotations

from dataclasses import dataclass, replace

import cutlass.cute as cute
from cutlass import Int32

from flexfa4.emit.values import select
from flexfa4.plan import Barrier

from .carried import Carried, Fixed


def barrier_pointers(table: tuple[Barrier, ...], base: cute.Pointer) -> dict[str, cute.Pointer]:
    """The first mbarrier of each row of the table; row i takes `count` words of 8 bytes from `base` (int64, shared memory)."""
    found, offset = {}, 0
    for barrier in table:
        found[barrier.name] = base + offset
        offset += barrier.count
    return found


def initialise(table: tuple[Barrier, ...], pointers: dict[str, cute.Pointer]) -> None:
    """By one thread of the CTA, which then fences and synchronises with the others."""
    for barrier in table:
        for stage in range(barrier.count):
            cute.arch.mbarrier_init(pointers[barrier.name] + stage, barrier.arrivals)


@dataclass(frozen=True)
class Turn(Carried):
    """Stage and phase of one role in a ring. A reader waits for `phase`, a writer for the opposite one: stages start empty."""

    stages: int
    index: Int32
    phase: Int32

    @staticmethod
    def first(stages: int) -> "Turn":
        return Turn(stages, Int32(0), Int32(0))

    def next(self) -> "Turn":
        if self.stages == 1:
            return replace(self, phase=self.phase ^ 1)
        index = self.index + 1
        wrapped = index == self.stages
        return replace(self, index=select(wrapped, Int32(0), index, Int32),
                       phase=select(wrapped, self.phase ^ 1, self.phase, Int32))


    def before(self) -> "Turn":
        """The turn that `next` made this one of."""
        if self.stages == 1:
            return replace(self, phase=self.phase ^ 1)
        first = self.index == 0
        return replace(self, index=select(first, Int32(self.stages - 1), self.index - 1, Int32),
                       phase=select(first, self.phase ^ 1, self.phase, Int32))


@dataclass(frozen=True)
class Ring(Fixed):
    """Stages handed between a writer (TMA) and readers, by the pair of mbarriers `name_full` and `name_empty`."""

    full: cute.Pointer
    empty: cute.Pointer
    bytes: int

    @staticmethod
    def of(pointers: dict[str, cute.Pointer], name: str, bytes: int) -> "Ring":
        """bytes: of the TMA copies that fill one stage."""
        return Ring(pointers[f"{name}_full"], pointers[f"{name}_empty"], bytes)

    def wait_empty(self, turn: Turn) -> None:
        """Writer."""
        cute.arch.mbarrier_wait(self.empty + turn.index, turn.phase ^ 1)

    def wait_read(self, turn: Turn) -> None:
        """Writer: until what was put there at `turn`, if anything, has been read."""
        cute.arch.mbarrier_wait(self.empty + turn.index, turn.phase)

    def acquire(self, turn: Turn) -> cute.Pointer:
        """Writer, a whole warp: waits until the stage is empty and announces its bytes. Returns the mbarrier for TMA."""
        self.wait_empty(turn)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.full + turn.index, self.bytes)
        return self.full + turn.index

    def wait(self, turn: Turn) -> None:
        """Reader."""
        cute.arch.mbarrier_wait(self.full + turn.index, turn.phase)

    def release(self, turn: Turn) -> None:
        """Reader, a whole warp whose reads are done: one arrival."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.empty + turn.index)
