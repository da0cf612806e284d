"""Bare PTX on CPU arrays, without the DSL."""

import ctypes

from . import native
from .driver import Options, run_loaded
from .errors import EmulatorError

_INT = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


def _bytes(value, size: int, ranges: list) -> bytes:
    """One argument as the bytes of its parameter."""
    if hasattr(value, "data_ptr"):  # torch tensor
        storage = value.untyped_storage()
        ranges.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        value = value.data_ptr()
    elif hasattr(value, "ctypes"):  # numpy array
        ranges.append((value.ctypes.data, value.ctypes.data + value.nbytes))
        value = value.ctypes.data
    if isinstance(value, (bytes, bytearray)):
        if len(value) != size:
            raise EmulatorError(f"an argument of {len(value)} bytes for a parameter of {size}", "launch")
        return bytes(value)
    if isinstance(value, float):
        return bytes(ctypes.c_float(value) if size == 4 else ctypes.c_double(value))
    return bytes(_INT[size](int(value)))


def prepare_arguments(loaded, args):
    """The parameter buffer of a launch, (address, bytes, owner), and the host ranges that its arrays span."""
    kernel = loaded.program.kernel
    if len(args) != len(kernel.parameters):
        raise EmulatorError(
            f"kernel {kernel.name} has {len(kernel.parameters)} parameters, {len(args)} arguments were given", "launch"
        )
    ranges: list = []
    raw = ctypes.create_string_buffer(max(64, kernel.param_bytes) + 128)
    base = (ctypes.addressof(raw) + 63) & ~63
    for p, value in zip(kernel.parameters, args):
        ctypes.memmove(base + p.offset, _bytes(value, p.size, ranges), p.size)
    return (base, kernel.param_bytes, raw), ranges


def run(ptx: str, grid, block, args=(), *, cluster=(1, 1, 1), smem: int = 0, entry: str | None = None,
        **options) -> native.Launch:
    """Runs one kernel of a PTX module.

    grid, block, cluster: 3-tuples (or an int). args: torch tensors or numpy arrays (their address is passed), ints, floats, or
    bytes of the parameter's size. smem: bytes of dynamic shared memory. options: those of `device` (sms, seed, completion,
    checks, max_steps, races). Returns a `Launch`; raises the errors of errors.py. Kernels may touch the arrays passed here only.
    """
    grid, block, cluster = [
        (x, 1, 1) if isinstance(x, int) else tuple(x) + (1,) * (3 - len(tuple(x))) for x in (grid, block, cluster)
    ]
    loaded = native.load(ptx, entry)
    params, ranges = prepare_arguments(loaded, args)
    return run_loaded(
        loaded,
        grid,
        block,
        cluster,
        smem,
        params,
        Options(**options),
        ranges,
    )
