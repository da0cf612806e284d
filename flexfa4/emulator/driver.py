"""Launches of compiled CuTe DSL kernels on CPU tensors: the host function runs unmodified, its launches reach the emulator.

`prepare(arch)` must run before `cutlass` is imported: the DSL reads its environment once."""

import atexit
import ctypes
import importlib
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from . import build, native, replay
from .clocks import Clocks
from .errors import EmulatorError
from .timeline import Timeline

_ATTRIBUTE_CLUSTER = 4  # cudaLaunchAttributeClusterDimension
_ATTRIBUTE_EARLY = 6  # cudaLaunchAttributeProgrammaticStreamSerialization
_compiled: list = []  # (cubin bytes, PTX text, weak reference) of every compiled function seen
_state: dict = {"shim": None, "device": None, "callback": None}


class _Config(ctypes.Structure):  # cudaLaunchConfig_t
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("smem", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("attrs", ctypes.c_void_p),
        ("nattrs", ctypes.c_uint32),
    ]


class _Attribute(ctypes.Structure):  # cudaLaunchAttribute
    _fields_ = [("id", ctypes.c_int32), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint32 * 16)]


class _Kernel(ctypes.Structure):
    _fields_ = [("code", ctypes.c_void_p), ("name", ctypes.c_char_p)]


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Config), ctypes.POINTER(_Kernel), ctypes.POINTER(ctypes.c_void_p))


def prepare(arch: str) -> None:
    """Points the DSL at the launch shim and asks it to keep PTX. arch: "sm_90a" or "sm_100a". Call before importing cutlass.

    Machine code of the process is then barely optimised, unless CUTE_DSL_COMPILER_OPT says what to do."""
    if arch not in ("sm_90a", "sm_100a"):
        raise EmulatorError(f"arch {arch!r}: the emulator models sm_90a and sm_100a", "arch")
    shim = str(build.shim_library())
    want = {"CUTE_DSL_LIBS": shim, "CUTE_DSL_ARCH": arch}
    if "cutlass" in sys.modules and any(os.environ.get(k) != v for k, v in want.items()):
        raise EmulatorError(
            f"emulator.prepare({arch!r}) came after `import cutlass`: the DSL has read its environment already. "
            "Call it first, in a fresh process for each arch.",
            "arch",
        )
    os.environ.update(want)
    os.environ["CUTE_DSL_KEEP"] = "ptx,cubin"
    # The machine code is never run, and the PTX it is made of is the same: 0.05 to 0.15 s a kernel.
    os.environ.setdefault("CUTE_DSL_COMPILER_OPT", "ptx-options=-O1")
    if "CUTE_DSL_DUMP_DIR" not in os.environ:
        os.environ["CUTE_DSL_DUMP_DIR"] = room = tempfile.mkdtemp(prefix="flexfa4-emulator-")
        atexit.register(shutil.rmtree, room, ignore_errors=True)
    if _state["shim"] is None:
        _state["shim"] = ctypes.CDLL(shim)


def register(compiled):
    """Makes a compiled function's PTX known; returns it. `device` does this for functions compiled by `cute.compile` inside
    it."""
    ptx, cubin = getattr(compiled, "__ptx__", None), getattr(compiled, "__cubin__", None)
    if not ptx:
        raise EmulatorError(
            "the compiled function keeps no PTX: call emulator.prepare(arch) before importing cutlass, "
            "or compile with options='--keep-ptx --keep-cubin'",
            "ptx",
        )
    if not any(ref() is compiled for _, _, ref in _compiled):
        _compiled.append((bytes(cubin or b""), ptx, weakref.ref(compiled)))
    return compiled


def _ptx_of(kernel: _Kernel) -> str:
    """The PTX behind a launch, found by the binary that the host function loaded (two kernels may share a name)."""
    name = kernel.name.decode()
    named = [(cubin, ptx) for cubin, ptx, _ in _compiled if f".entry {name}(" in ptx.replace(" (", "(") or name in ptx]
    if not named:
        raise EmulatorError(f"no PTX is known for kernel {name}: register(compiled) it", "ptx")
    texts = {ptx for _, ptx in named}
    if len(texts) == 1:
        return texts.pop()
    size = ctypes.c_uint64.from_address(kernel.code + 8).value  # fatbin: magic, version, header size, then the payload size
    image = ctypes.string_at(kernel.code, size + 16)
    found = {ptx for cubin, ptx in named if cubin and cubin.rstrip(b"\0") in image}
    if len(found) != 1:
        raise EmulatorError(
            f"{len(texts)} different kernels are named {name} and {len(found)} of their binaries match the one loaded", "ptx"
        )
    return found.pop()


# ---- CPU tensors that say they are on a GPU
class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class DeviceTensor:
    """A CPU tensor whose DLPack face claims CUDA device 0. `.t` is the tensor."""

    def __init__(self, t):
        self.t = t

    def __dlpack_device__(self):
        return (2, 0)  # kDLCUDA

    def __dlpack__(self, **_):
        capsule = self.t.detach().__dlpack__()
        ctypes.cast(
            ctypes.pythonapi.PyCapsule_GetPointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)
        ).contents.device_type = 2
        return capsule


@dataclass
class Options:
    """How launches are run; see `device`."""

    sms: int = 2
    seed: int = 0
    completion: str = "random"
    checks: bool = True
    max_steps: int = 2_000_000_000
    races: bool | str = False
    trace: bool = False
    timing: Callable[[native.Launch], object] | Clocks | None = None


class Device:
    """What `with device(...)` gives. `.launches`: one `Launch` for each kernel that ran. `.error`: what stopped one, if any.
    `.recorded`: None, or a list that receives a `replay.Recorded` for each launch."""

    def __init__(self, arch: str, options: Options):
        self.arch, self.options = arch, options
        self.launches: list[native.Launch] = []
        self.error: BaseException | None = None
        self.recorded: list[replay.Recorded] | None = None
        self._ranges: list[tuple[int, int]] = []
        self._keep: list = []

    def tensor(self, t) -> DeviceTensor:
        """A CPU torch tensor as an argument for a compiled function. Once a tensor was passed so, kernels may only touch such
        tensors."""
        storage = t.untyped_storage()
        self._ranges.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        self._keep.append(t)
        return DeviceTensor(t)

    @property
    def findings(self) -> list[tuple[str, str]]:
        """(kind, message) of every launch: what is suspicious but did not stop it."""
        return [f for launch in self.launches for f in launch.findings]

    def check(self) -> None:
        """Raises the error of the last stopped launch, if there is one."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _launch(self, config, kernel, args) -> int:
        # The host function is always told that the launch went well: its error path expects a CUDA runtime to describe the error.
        if self.error is not None:
            return 0
        try:
            loaded = native.load(_ptx_of(kernel.contents))
            c = config.contents
            attrs = ctypes.cast(c.attrs, ctypes.POINTER(_Attribute))
            given = {attrs[i].id: tuple(attrs[i].value[:3]) for i in range(c.nattrs)}
            cluster = given.get(_ATTRIBUTE_CLUSTER, (1, 1, 1))
            params = parameter_buffer(loaded.program.kernel, args)
            shape = (tuple(c.grid), tuple(c.block), cluster, c.smem)
            record = self._record(loaded, shape, params) if self.recorded is not None else None
            launch = run_loaded(loaded, *shape, params, self.options, self._ranges)
            self.launches.append(launch)
            if given.get(_ATTRIBUTE_EARLY, (0,))[0] and not launch.by_opcode().get("griddepcontrol.wait"):
                launch.findings.append(("early", f"{launch.kernel} may start before the launch before it has ended (programmatic "
                                                 "stream serialization), and never waits for it (griddepcontrol.wait)"))
            if record:
                record.after = replay.memory(record.ranges)
                self.recorded.append(record)
        except BaseException as e:  # an exception cannot cross the C frames: `check` and `__exit__` raise it
            self.error = e
        return 0

    def _record(self, loaded, shape, params) -> replay.Recorded:
        ranges = sorted(set(self._ranges))
        raw = ctypes.string_at(params[0], params[1])
        return replay.Recorded(loaded.ptx, *shape, raw, ranges, replay.memory(ranges), keep=list(self._keep))


def parameter_buffer(kernel, args):
    """Copies parameter i from args[i] to its place in a 64-byte aligned buffer. Returns (address, bytes, the object that owns
    it)."""
    size = max(64, kernel.param_bytes)
    raw = ctypes.create_string_buffer(size + 128)
    base = (ctypes.addressof(raw) + 63) & ~63
    for i, p in enumerate(kernel.parameters):
        ctypes.memmove(base + p.offset, args[i], p.size)
    return base, kernel.param_bytes, raw


def run_loaded(loaded, grid, block, cluster, smem, params, options: Options, ranges) -> native.Launch:
    """One launch of a decoded kernel. params: what parameter_buffer returns. ranges: (begin, end) host addresses, [] for no
    check."""
    native.check_block(loaded, block)
    if any(g % c for g, c in zip(grid, cluster)):
        raise EmulatorError(f"grid {grid} is not a multiple of the cluster {cluster}", "launch")
    merged = sorted(set(ranges))
    if merged:
        merged = sorted([*merged, (params[0], params[0] + params[1])])
    flat = (ctypes.c_uint64 * max(1, 2 * len(merged)))(*[x for pair in merged for x in pair])
    config = native.Config()
    config.grid[:], config.block[:], config.cluster[:] = grid, block, cluster
    config.smem_dynamic, config.sms, config.completion = smem, options.sms, native.COMPLETION[options.completion]
    config.checks, config.seed, config.max_steps = int(options.checks), options.seed, options.max_steps
    config.races, config.trace = native.RACES[options.races], int(options.trace or options.timing is not None)
    config.params, config.param_bytes = params[0], params[1]
    config.ranges, config.nranges = ctypes.addressof(flat), len(merged)
    timed = isinstance(options.timing, Clocks)
    if timed:
        costs, pace = options.timing.costs(loaded.program.names), options.timing.pace()
        config.costs, config.pace, config.trace = costs.ctypes.data, pace.ctypes.data, 1
        config.seed, config.completion = 0, native.COMPLETION["random"]
    launch = loaded.launch(config)
    if options.timing is not None:
        launch.timing = Timeline(launch.trace) if timed else options.timing(launch)
    return launch


def run_recorded(record: replay.Recorded, ptx: str | None = None, **options) -> tuple[native.Launch, list[bytes]]:
    """Runs a recorded launch again from the memory it found, perhaps with other PTX of the same parameters. options: those of
    `device`. Returns the launch and the bytes it left; raises what a launch raises."""
    for (begin, end), content in zip(record.ranges, record.before):
        ctypes.memmove(begin, content, end - begin)
    loaded = native.load(record.ptx if ptx is None else ptx)
    shape = (record.grid, record.block, record.cluster, record.smem)
    launch = run_loaded(loaded, *shape, replay.parameters(record.params), Options(**options), record.ranges)
    return launch, replay.memory(record.ranges)


class _Compile:
    """`cute.compile` that registers what it returns."""

    def __init__(self, original):
        self.original = original

    def __getitem__(self, options):
        return _Compile(self.original[options])

    def __call__(self, *args, **kwargs):
        return register(self.original(*args, **kwargs))


class device:
    """`with device("sm_100a", sms=2, seed=0) as dev: compiled(...)`: launches run in the emulator.

    sms: CTAs resident at once (at least one cluster). seed: 0 runs warps in long turns; others interleave them finely, in one of
    three styles. completion: when asynchronous work finishes: "immediate", "random" (by seed) or "late" (only when all warps
    wait).
    checks: watch generic/asynchronous proxy ordering of shared memory. races: False, True (happens-before by vector clocks, and
    the ordering rules of docs/emulator.md) or "strict" (also rules that kernels known to be right break). A stopped launch raises
    on leaving the block. timing: called with each launch for its `timing`; or `Clocks`, to run it in modelled time instead of by
    seed and completion, which gives a `Timeline`."""

    def __init__(
        self,
        arch: str,
        sms: int = 2,
        seed: int = 0,
        completion: str = "random",
        checks: bool = True,
        max_steps: int = 2_000_000_000,
        races: bool | str = False,
        trace: bool = False,
        timing: Callable[[native.Launch], object] | Clocks | None = None,
    ):
        if completion not in native.COMPLETION:
            raise EmulatorError(f"completion {completion!r}: one of {sorted(native.COMPLETION)}", "options")
        prepare(arch)
        self.device = Device(arch, Options(sms, seed, completion, checks, max_steps, races, trace, timing))

    def __enter__(self) -> Device:
        if _state["device"] is not None:
            raise EmulatorError("another emulated device is active", "options")
        _state["device"], _state["callback"] = self.device, _CALLBACK(self.device._launch)
        _state["shim"].flexfa4_set_callback(_state["callback"])
        # Imported here where it was not yet: a function may be compiled, and its PTX be known, only now.
        self.cute = importlib.import_module("cutlass.cute") if find_spec("cutlass") is not None else None
        if self.cute is not None:
            self.compile, self.cute.compile = self.cute.compile, _Compile(self.cute.compile)
        return self.device

    def __exit__(self, kind, error, trace) -> None:
        _state["shim"].flexfa4_set_callback(ctypes.cast(None, _CALLBACK))
        _state["shim"].flexfa4_take_error()
        _state["device"] = None
        if self.cute is not None:
            self.cute.compile = self.compile
        if self.device.error is not None:
            raise self.device.error from error
