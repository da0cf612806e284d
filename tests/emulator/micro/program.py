"""A PTX program with inputs and expected outputs, and the two machines that run it."""

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from flexfa4 import emulator

HEAD = ".version {version}\n.target {arch}\n.address_size 64\n"
REGS = (
    ".reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<256>; .reg .b64 %rd<64>; .reg .b128 %q<4>;\n"
)


@dataclass(frozen=True, eq=False)
class Program:
    """body: statements after the register declarations; parameters arrive as %rd50, %rd51, ... (addresses of the arrays).
    arrays: inputs and outputs in order; expect: index of an array -> its wanted contents afterwards, or a function that computes
    them: collecting the tests names a thousand programs and needs none of the values. tolerance: relative error of float32
    outputs, None for equal bits.
    maps: tensor maps after the arrays, each `(array, TensorMap)`."""

    name: str
    body: str
    arrays: tuple
    expect: dict
    grid: int = 1
    block: int = 32
    cluster: int = 1
    smem: int = 0
    arch: str = "sm_90a"
    tolerance: float | None = None
    any_nan: bool = False  # float64 outputs: one NaN is as good as another
    module: str = ""  # declarations before the entry
    maps: tuple = ()
    options: dict = field(default_factory=dict)

    @property
    def ptx(self) -> str:
        version = "9.0" if self.arch == "sm_100a" else "8.7"
        params = [f".param .u64 a{i}" for i in range(len(self.arrays))]
        params += [f".param .align 64 .b8 m{i}[128]" for i in range(len(self.maps))]
        loads = "".join(f"ld.param.b64 %rd{50 + i}, [a{i}];\n" for i in range(len(self.arrays)))
        return (
            f"{HEAD.format(version=version, arch=self.arch)}{self.module}\n.visible .entry k({', '.join(params)})\n"
            f"{{\n{REGS}{loads}{self.body}\nret;\n}}\n"
        )

    def check(self, outputs: dict) -> None:
        """outputs: index -> array. Raises AssertionError that shows the first differences."""
        for i, want in self.expect.items():
            got, want = outputs[i], want() if callable(want) else want
            assert got.shape == want.shape and got.dtype == want.dtype, (got.dtype, want.dtype)
            good = self.same(got, want)
            assert good.all(), (
                f"{self.name}: {(~good).sum()} of {good.size} wrong, first at {np.argwhere(~good)[:4].tolist()}: "
                f"got {_show(got[~good][:4])} want {_show(want[~good][:4])}"
            )

    def same(self, got: np.ndarray, want: np.ndarray) -> np.ndarray:
        if self.any_nan:
            return (got == want) | (np.isnan(got.view(np.float64)) & np.isnan(want.view(np.float64)))
        if self.tolerance is None:
            return got == want
        a, b = (x.view(np.float32).astype(np.float64) for x in (got, want))
        with np.errstate(invalid="ignore"):
            close = np.abs(a - b) <= self.tolerance * np.abs(b) + 2.0**-126
        return np.where(np.isnan(b), np.isnan(a), close | (a == b))


def _show(x: np.ndarray) -> list:
    return [hex(int(v)) if np.issubdtype(x.dtype, np.unsignedinteger) else v for v in x.tolist()]


def emulate(p: Program, **options) -> dict:
    """Runs in the emulator; index -> output array."""
    arrays = [a.copy() for a in p.arrays]
    maps = [make(arrays[i].ctypes.data) for i, make in p.maps]
    emulator.run(p.ptx, p.grid, p.block, (*arrays, *maps), cluster=p.cluster, smem=p.smem, **p.options, **options)
    return {i: arrays[i] for i in p.expect}


def run_on_gpu(p: Program) -> dict:
    """Runs on the current CUDA device through the driver API; index -> output array."""
    import ctypes

    import torch
    from cuda.bindings import driver

    def call(result):
        error, *rest = result
        assert error == driver.CUresult.CUDA_SUCCESS, f"{p.name}: {error}"
        return rest[0] if rest else None

    torch.cuda.current_device()
    torch.zeros(1, device="cuda")
    device = [torch.from_numpy(a.copy().view(np.uint8).reshape(-1)).cuda() for a in p.arrays]
    module = call(driver.cuModuleLoadData(p.ptx.encode() + b"\0"))
    function = call(driver.cuModuleGetFunction(module, b"k"))
    if p.smem > 48 << 10:
        call(driver.cuFuncSetAttribute(
            function, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, p.smem))
    raw = [bytes(ctypes.c_uint64(t.data_ptr())) for t in device]
    # The driver refused the one-dimensional maps (invalid value); written here they work.
    raw += [m.from_driver(driver, device[i].data_ptr()) if m.array.ndim > 1 else m(device[i].data_ptr()) for i, m in p.maps]
    held = [ctypes.create_string_buffer(b + bytes(64), len(b) + 64) for b in raw]
    pointers = (ctypes.c_void_p * len(held))(*[ctypes.addressof(b) for b in held])
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = p.grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = p.block, 1, 1
    config.sharedMemBytes, config.hStream = p.smem, torch.cuda.current_stream().cuda_stream
    if p.cluster > 1:
        attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = p.cluster, 1, 1
        attribute.id, attribute.value = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value
        config.attrs, config.numAttrs = [attribute], 1
    call(driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))
    torch.cuda.synchronize()
    found = {i: device[i].cpu().numpy().view(p.arrays[i].dtype).reshape(p.arrays[i].shape) for i in p.expect}
    call(driver.cuModuleUnload(module))
    return found


# ---- one instruction on many values, a value a thread
WIDTH = {"h": 2, "i": 4, "l": 8}
DTYPE = {"h": np.uint16, "i": np.uint32, "l": np.uint64}
REGISTER = {"h": "%h", "i": "%r", "l": "%rd"}
SUFFIX = {"h": "u16", "i": "u32", "l": "u64"}


def lanewise(name: str, text: str, result: str, columns: list, scalar, *, tolerance=None, arch="sm_90a",
             any_nan=False) -> Program:
    """text: statements on {d}, {a}, {b}, {c}. result: letter of the destination's width. columns: (letter, values) of each
    source. scalar: Python function from bit patterns to the result's bit pattern."""
    n = len(columns[0][1])
    n_padded = -(-n // 128) * 128
    arrays = [np.zeros(n_padded, DTYPE[result])]
    body = "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.s32 %r0, %r1, %r2, %r0;\n"
    names = {"d": f"{REGISTER[result]}10"}
    for i, (letter, values) in enumerate(columns):
        arrays.append(np.resize(np.array(values, dtype=DTYPE[letter]), n_padded))
        names["abc"[i]] = f"{REGISTER[letter]}{11 + i}"
        body += f"mad.wide.u32 %rd{i}, %r0, {WIDTH[letter]}, %rd{51 + i};\n"
        body += f"ld.global.{SUFFIX[letter]} {names['abc'[i]]}, [%rd{i}];\n"
    body += text.format(**names) + "\n"
    body += f"mad.wide.u32 %rd5, %r0, {WIDTH[result]}, %rd50; st.global.{SUFFIX[result]} [%rd5], {names['d']};"
    mask = (1 << 8 * WIDTH[result]) - 1

    @cache
    def want() -> np.ndarray:
        return np.array([scalar(*values) & mask for values in zip(*(a.tolist() for a in arrays[1:]))], dtype=DTYPE[result])

    return Program(name, body, tuple(arrays), {0: want}, grid=n_padded // 128, block=128, tolerance=tolerance, arch=arch,
                   any_nan=any_nan)


def integers_of(bits: int, count: int, seed: int) -> list[int]:
    """Edge cases and random bit patterns."""
    rng = np.random.default_rng(seed)
    edges = [0, 1, 2, 3, 7, 31, 32, 33, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, (1 << (bits - 1)) + 1]
    return edges + [int(x) >> (64 - bits) >> int(s) % bits for x, s in
                    zip(rng.integers(0, 2**64, count - len(edges), dtype=np.uint64), rng.integers(0, 64, count))]


def pairs(values: list, other: list) -> tuple[list, list]:
    """Every edge with every edge (the first twelve of each), then the rest side by side."""
    first = [(a, b) for a in values[:12] for b in other[:12]]
    rest = list(zip(values[12:], other[12:][::-1]))
    return [a for a, _ in first + rest], [b for _, b in first + rest]
