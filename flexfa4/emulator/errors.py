"""What the emulator raises. `kind` is the class of the finding, the message names the PTX line and the instruction."""


class EmulatorError(RuntimeError):
    """Base. kind: bounds, alignment, address, descriptor, operand, barrier, mbarrier, registers, tmem, divergence, race, trap,
    steps, ..."""

    kind = "emulator"

    def __init__(self, message: str, kind: str | None = None):
        super().__init__(message)
        self.kind = kind or self.kind


class BuildError(EmulatorError):
    """The C++ core or the launch shim could not be compiled on this machine."""

    kind = "build"


class PtxError(EmulatorError):
    """PTX text that cannot be parsed: the message quotes the line."""

    kind = "ptx"


class UnknownInstruction(PtxError):
    """An instruction, or an operand form of it, that the handler table does not hold."""

    kind = "unknown-instruction"


class Deadlock(EmulatorError):
    """No warp can go on and no asynchronous work is left. The message lists every waiting warp and what it waits for."""

    kind = "deadlock"


class RaceError(EmulatorError):
    """Memory was touched while asynchronous work on it could still be in flight."""

    kind = "race"


BY_KIND = {"deadlock": Deadlock, "race": RaceError}


def from_report(text: str) -> EmulatorError:
    """The exception for a "kind<TAB>message" report of the core."""
    kind, _, message = text.partition("\t")
    return BY_KIND.get(kind, EmulatorError)(message, kind)
