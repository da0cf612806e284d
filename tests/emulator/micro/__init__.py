"""One small program for each family of instructions, with expected values that do not come from the emulator.

Programs for sm_90a also run on an H200 (tests/gpu/test_micro_on_hardware.py). `ALL` names every program."""

from . import asynchronous, clusters, conversions, floating, halves, integers, matrices, memory, tensor, warps

ALL = {
    program.name: program
    for module in (integers, floating, halves, conversions, warps, memory, asynchronous, clusters, matrices, tensor)
    for program in module.programs()
}
