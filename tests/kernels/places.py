"""Where the calls of forward_emulated.py and kernel_grid.py are launched: in the emulator, or on the GPU. No import needs one."""
from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Callable, Iterator, Sequence

import torch
from torch import Tensor

from flexfa4 import emulator
from flexfa4.runtime import engine
from flexfa4.runtime.kernels import Crew

ARCHS = {"sm90": "sm_90a", "sm100": "sm_100a"}
COMPLETIONS = ("immediate", "random", "late")


class Emulated:
    """device: where tensors are; inputs: how many different ones a call gets."""

    device, inputs = torch.device("cpu"), 1

    def __init__(self, kernel: str):
        """Before the compiler is imported."""
        self.arch = ARCHS[kernel]
        emulator.prepare(self.arch)

    def runs(self, most: int) -> int:
        """How often a call runs with the same inputs, of as many as it may with an own interleaving each."""
        return most

    def placed(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tensors)

    def run(self, launch: Callable, seed: int, workers: int, counter: Tensor | None) -> tuple[Tensor, Tensor, dict]:
        """(out, lse) on the host of launch(crew), and how it ran: "completion", "findings"; "launches" where they are counted."""
        completion = COMPLETIONS[seed % 3]
        with emulator.device(self.arch, seed=seed, completion=completion, races=True) as dev:
            out, lse = launch(Crew(workers, counter, dev.tensor))
        return out, lse, dict(completion=completion, findings=dev.findings, launches=len(dev.launches))


class OnGpu:
    """The current CUDA device, which has the kernel; raises SystemExit where it is none. A call gets several inputs, and is
    launched twice with each: a bit that differs is a finding. What a launch allocates holds NaN before."""

    inputs = 2

    def __init__(self, kernel: str):
        if not torch.cuda.is_available():
            raise SystemExit(f"no CUDA device for {kernel}")
        self.device = torch.device("cuda", torch.cuda.current_device())
        if engine.architecture(self.device) != kernel:
            raise SystemExit(f"{torch.cuda.get_device_name(self.device)} does not run the kernel of {kernel}")

    def runs(self, most: int) -> int:
        return 1

    def placed(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Copies on the device that lie in memory as these do: strides, offsets, what several share."""
        rooms: dict[tuple, Tensor] = {}
        return tuple(self._placed(t.detach().resolve_neg(), rooms) for t in tensors)

    def _placed(self, t: Tensor, rooms: dict[tuple, Tensor]) -> Tensor:
        key = t.untyped_storage().data_ptr(), t.dtype
        if key not in rooms:
            rooms[key] = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()).to(self.device, copy=True)
        return rooms[key].as_strided(t.shape, t.stride(), t.storage_offset())

    def run(self, launch: Callable, seed: int, workers: int, counter: Tensor | None) -> tuple[Tensor, Tensor, dict]:
        ran = [self.launched(launch, seed + i, workers, counter) for i in range(2)]
        (out, lse), again = ran[0][:2], ran[1][:2]
        findings = ran[0][2]["findings"] + ran[1][2]["findings"]
        findings += [("repeated", f"{name} differs when the call is launched again")
                     for name, one, other in zip(("out", "lse"), (out, lse), again) if not torch.equal(bits(one), bits(other))]
        return out, lse, {**ran[0][2], "findings": findings}

    def launched(self, launch: Callable, seed: int, workers: int, counter: Tensor | None) -> tuple[Tensor, Tensor, dict]:
        """As `Emulated.run`; errors of the launch are raised here."""
        with filled():
            out, lse = launch(Crew(workers, counter))
        torch.cuda.synchronize(self.device)
        return out.cpu(), lse.cpu(), dict(completion="gpu", findings=[])


class Rehearsed(OnGpu):
    """What `OnGpu` does around a launch, on copies on the host, with launches in the emulator: for its tests."""

    device = Emulated.device

    def __init__(self, kernel: str):
        self.emulated = Emulated(kernel)

    def launched(self, launch: Callable, seed: int, workers: int, counter: Tensor | None) -> tuple[Tensor, Tensor, dict]:
        with filled():
            return self.emulated.run(launch, seed, workers, counter)


PLACES = {"gpu": OnGpu, "rehearsed": Rehearsed}


def place_of(kernel: str, words: Sequence[str]) -> Emulated | OnGpu:
    """The one that is named among the words, else the emulator."""
    return next((PLACES[word] for word in words if word in PLACES), Emulated)(kernel)


def placed_graphs(place: Emulated | OnGpu, bounds: Sequence) -> list:
    """Score, mask and out graphs, each a BoundGraph or None, with their captured tensors in a place."""
    return [bound and replace(bound, tensors=place.placed(bound.tensors)) for bound in bounds]


def bits(t: Tensor) -> Tensor:
    return t.contiguous().view({2: torch.int16, 4: torch.int32}[t.element_size()])


@contextlib.contextmanager
def filled() -> Iterator[None]:
    """What torch.empty and its like give holds NaN: memory that is used again may hold what the kernel should write."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
