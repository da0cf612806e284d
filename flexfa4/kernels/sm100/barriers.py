"""The mbarriers of the kernel under their names in the Plan's table: what has become true, waited for or announced."""

from __future__ import annotations

from typing import Iterable

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import tcgen05

from flexfa4.plan import Barrier, Reach

from ..barriers import barrier_pointers
from ..carried import Fixed


# Barriers that order accesses to tensor memory: PTX asks for a tcgen05.fence on each side of such a barrier ("tcgen05 memory
# consistency model"). A commit needs none before it.
TENSOR_MEMORY = frozenset({"s_full", "p_ready", "p_full", "scale_full", "o_full", "tmem_free"})
PAIR = (0, 1)  # ranks
BOTH_CTAS = 0b11


class Mbarriers(Fixed):
    """One row of the table. tensor: in TENSOR_MEMORY; rank: of this CTA in its pair, None for a CTA by itself. Who waits counts
    phases: phase n has parity n & 1, and a wait for parity 1 passes at once on a barrier that has completed no phase."""

    def __init__(self, first: cute.Pointer, tensor: bool, reach: Reach, rank: Int32 | None):
        self.first, self.tensor, self.rank = first, tensor, rank
        self.reach = Reach.OWN if rank is None else reach

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
            for rank in {Reach.OWN: (None,), Reach.FIRST: PAIR[:1], Reach.BOTH: PAIR}[self.reach]:
                cute.arch.mbarrier_arrive(self.pointer(index), rank)

    @cute.jit
    def expect(self, index, size: cutlass.Constexpr):
        """The arrival of the load warp: `size` bytes are on their way. Of a pair, the first CTA expects those of both."""
        if cutlass.const_expr(self.rank is None):
            self._expect(index, size)
        elif self.rank == 0:
            self._expect(index, size)

    def _expect(self, index, size: int) -> None:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.pointer(index), size)

    def commit(self, index) -> None:
        """An arrival as soon as every product that this warp has issued is done."""
        with cute.arch.elect_one():
            self.commit_by_one(index)

    def commit_by_one(self, index) -> None:
        """`commit` where one thread has been elected."""
        if self.rank is None:
            tcgen05.commit(self.pointer(index))
        else:
            tcgen05.commit(self.pointer(index), BOTH_CTAS, tcgen05.CtaGroup.TWO)


class Barriers(Fixed):
    """Every row of a table, as an attribute of its name. rank: as `Mbarriers`'."""

    def __init__(self, table: Iterable[Barrier], storage: cute.Pointer, rank: Int32 | None):
        self.table = tuple(table)
        self.pointers = barrier_pointers(self.table, storage)
        self.rank = rank

    def __getattr__(self, name: str) -> Mbarriers:
        rows = {row.name: row for row in self.__dict__.get("table", ())}
        if name not in rows:
            raise AttributeError(f"no barrier {name!r} in the plan's table: {', '.join(rows)}")
        return Mbarriers(self.pointers[name], name in TENSOR_MEMORY, rows[name].reach, self.rank)
