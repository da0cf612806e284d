"""A functional emulator of one small GPU for the PTX that CuTe DSL emits for sm_90a and sm_100a. See docs/emulator.md.

It knows nothing of flexfa4 and needs neither a GPU nor the DSL (bare PTX); `device` runs compiled CuTe DSL functions on CPU
tensors."""

from .bare import run
from .driver import Device, DeviceTensor, device, prepare, register
from .errors import BuildError, Deadlock, EmulatorError, PtxError, RaceError, UnknownInstruction
from .native import Launch
from .timing import BLACKWELL, HOPPER, Rates, ThroughputModel
from .trace import Trace

__all__ = [
    "BLACKWELL",
    "BuildError",
    "Deadlock",
    "Device",
    "DeviceTensor",
    "EmulatorError",
    "HOPPER",
    "Launch",
    "PtxError",
    "RaceError",
    "Rates",
    "ThroughputModel",
    "Trace",
    "UnknownInstruction",
    "device",
    "prepare",
    "register",
    "run",
]
