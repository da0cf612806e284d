"""A functional emulator of one small GPU for the PTX that CuTe DSL emits for sm_90a and sm_100a. See docs/emulator.md.

It knows nothing of flexfa4 and needs neither a GPU nor the DSL (bare PTX); `device` runs compiled CuTe DSL functions on CPU
tensors."""

from .bare import run
from .clocks import BLACKWELL_CLOCKS, HOPPER_CLOCKS, Clocks, Cost
from .driver import Device, DeviceTensor, device, prepare, register
from .errors import BuildError, Deadlock, EmulatorError, PtxError, RaceError, UnknownInstruction
from .native import Launch
from .timeline import Timeline
from .timing import BLACKWELL, HOPPER, Rates, ThroughputModel
from .trace import Trace

__all__ = [
    "BLACKWELL",
    "BLACKWELL_CLOCKS",
    "BuildError",
    "Clocks",
    "Cost",
    "Deadlock",
    "Device",
    "DeviceTensor",
    "EmulatorError",
    "HOPPER",
    "HOPPER_CLOCKS",
    "Launch",
    "PtxError",
    "RaceError",
    "Rates",
    "ThroughputModel",
    "Timeline",
    "Trace",
    "UnknownInstruction",
    "device",
    "prepare",
    "register",
    "run",
]
