"""A hook for timing models, and the simplest one: how many cycles each unit of an SM needs at least for what a launch did.

`emulator.device(arch, timing=model)` calls `model(launch)` after each launch and keeps the answer as `launch.timing`. A model
reads `launch.trace`: counts by role and class, waits, and asynchronous work with its bytes and
multiply-adds."""

from dataclasses import dataclass

from .trace import class_of


@dataclass(frozen=True)
class Rates:
    """What one SM does in a cycle. issue, float, special, integer: warp-instructions. shared: bytes. tensor: multiply-adds
    of 16-bit operands. copy: bytes between global and shared memory."""

    name: str
    issue: float = 4.0
    float: float = 4.0
    special: float = 0.5
    integer: float = 2.0
    shared: float = 128.0
    tensor: float = 2048.0
    copy: float = 64.0


# From the vendors' tables for 16-bit operands without sparsity (H200: 989 TFLOP/s on 132 SMs at 1.83 GHz; B200: 2.25 PFLOP/s on
# 148 SMs at 1.85 GHz), 4 schedulers, 128 float32 lanes and 16 special-function lanes an SM. Replace them by measured ones.
HOPPER = Rates("sm_90a")
BLACKWELL = Rates("sm_100a", tensor=4096.0)
UNITS = {"float": "float", "special function": "special", "integer": "integer", "conversion": "integer"}


@dataclass(frozen=True)
class Bound:
    """cycles: unit -> least cycles of one SM, had it done the whole launch. limit: the unit that needs most."""

    cycles: dict[str, float]

    @property
    def limit(self) -> str:
        return max(self.cycles, key=self.cycles.get)


class ThroughputModel:
    """Least cycles by unit, each on its own: no latency, no dependence. Divide by the number of SMs for a balanced launch."""

    def __init__(self, rates: Rates):
        self.rates = rates

    def __call__(self, launch) -> Bound:
        trace, rates = launch.trace, self.rates
        cycles = {"issue": float(trace.counts.sum()) / rates.issue}
        for classes in trace.by_class().values():
            for kind, n in classes.items():
                if kind in UNITS:
                    unit = UNITS[kind]
                    cycles[unit] = cycles.get(unit, 0.0) + n / getattr(rates, unit)
                elif kind == "shared memory":
                    cycles["shared"] = cycles.get("shared", 0.0) + n * 128 / rates.shared  # at least 4 bytes a lane
        work = trace.work()
        cycles["tensor"] = float(work["work"].sum()) / rates.tensor
        moved = sum(int(e["object"]) for e in work if class_of(trace.opcodes[int(e["pc"])]) in ("bulk copy", "async copy"))
        cycles["copy"] = moved / rates.copy
        return Bound(cycles)
