"""The mbarriers of the kernel under their names in the Plan's table: what has become true, waited for or announced."""

from __future__ import annotations

from typing import Iterable

import cutlass.cute as cute
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import tcgen05

from flexfa4.plan import Barrier

from ..barriers import barrier_pointers
from ..carried import Fixed


# Barriers that order accesses to tensor memory: PTX asks for a tcgen05.fence on each side of such a barrier ("tcgen05 memory
# consistency model"). A commit needs none before it.
TENSOR_MEMORY = frozenset({"s_full", "p_ready", "p_full", "scale_full", "o_full", "tmem_free"})


class Mbarriers(Fixed):
    """One row of the table. tensor: in TENSOR_MEMORY. Who waits counts phases: phase n has parity n & 1, and a wait for parity 1
    passes at once on a barrier that has completed no phase."""

    def __init__(self, first: cute.Pointer, tensor: bool):
        self.first, self.tensor = first, tensor

    def pointer(self, index) -> cute.Pointer:
        return self.first + index

    def wait(self, index, parity) -> None:
        cute.arch.mbarrier_wait(self.pointer(index), parity)
        if self.tensor:
            nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)

    def arrive(self, index) -> None:
        """One arrival for this warp, after all its lanes have come here."""
        if self.tensor:
            nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.pointer(index))

    def expect(self, index, size: int) -> None:
        """The arrival of the load warp: `size` bytes are on their way."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.pointer(index), size)

    def commit(self, index) -> None:
        """An arrival as soon as every product that this warp has issued is done."""
        with cute.arch.elect_one():
            tcgen05.commit(self.pointer(index))


class Barriers(Fixed):
    """Every row of a table, as an attribute of its name."""

    def __init__(self, table: Iterable[Barrier], storage: cute.Pointer):
        self.table = tuple(table)
        self.pointers = barrier_pointers(self.table, storage)

    def __getattr__(self, name: str) -> Mbarriers:
        pointers = self.__dict__.get("pointers", {})
        if name not in pointers:
            raise AttributeError(f"no barrier {name!r} in the plan's table: {', '.join(pointers)}")
        return Mbarriers(pointers[name], name in TENSOR_MEMORY)
