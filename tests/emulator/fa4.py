"""Runs flash-attn-4's public Python path (a test dependency from PyPI) on CPU tensors, its kernels in the emulator.

Only what asks for a GPU is replaced: `Tensor.is_cuda`, device queries, and tensor arguments of compiled functions."""

import os
import sys
from contextlib import contextmanager

from flexfa4 import emulator


def setup(arch: str, sms: int = 8) -> None:
    """Before anything imports cutlass. arch: "sm_90a" or "sm_100a"; one per process. sms: persistent kernels size
    themselves by it."""
    sys.argv = sys.argv[:1]  # the DSL parses the options of the process
    emulator.prepare(arch)
    os.environ["FLASH_ATTENTION_ARCH"] = arch.rstrip("a")
    os.environ["FLASH_ATTENTION_NUM_SMS"] = str(sms)
    import cutlass.cute as cute
    import cutlass.cute.runtime as runtime
    import cutlass.utils as utils
    import torch

    torch.set_num_threads(1)

    class HardwareInfo:
        def __init__(self, *_, **__):
            pass

        def get_device_multiprocessor_count(self):
            return sms

        def get_max_active_clusters(self, cluster_size=1, **_):
            return max(1, sms // cluster_size)

    utils.HardwareInfo = HardwareInfo
    utils.hardware_info.HardwareInfo = HardwareInfo
    original, from_dlpack = cute.compile, runtime.from_dlpack
    runtime.from_dlpack = lambda t, *a, **k: from_dlpack(emulator.DeviceTensor(t) if isinstance(t, torch.Tensor) else t, *a, **k)

    class Compile:
        def __getitem__(self, options):
            self.with_options = original[options]
            return self

        def __call__(self, *args, **kwargs):
            return Call(emulator.register(original(*args, **kwargs)))

    cute.compile = Compile()
    torch.Tensor.is_cuda = property(lambda self: True)
    torch.cuda.get_device_capability = lambda *_: (int(arch[3:-2]), 0)


_device: list = []


def _wrap(x):
    import torch

    if isinstance(x, torch.Tensor):
        return _device[-1].tensor(x)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*map(_wrap, x))
    if isinstance(x, (tuple, list)):
        return type(x)(map(_wrap, x))
    return x


class Call:
    """A compiled function that takes torch CPU tensors."""

    def __init__(self, compiled):
        self.compiled = compiled

    def __call__(self, *args, **kwargs):
        result = self.compiled(*map(_wrap, args), **{k: _wrap(v) for k, v in kwargs.items()})
        _device[-1].check()
        return result

    def __getattr__(self, name):
        return getattr(self.compiled, name)


@contextmanager
def device(arch: str, **options):
    """`emulator.device` that the calls above launch on."""
    with emulator.device(arch, **options) as dev:
        _device.append(dev)
        try:
            yield dev
        finally:
            _device.pop()


def inputs(batch, seq_q, seq_k, heads, kv_heads, dim, dim_v=None, seed=0, scale=1.0):
    """q, k, v in bfloat16, layout (batch, seq, heads, dim)."""
    import torch

    g = torch.Generator().manual_seed(seed)

    def make(s, h, d):
        return (torch.randn(batch, s, h, d, generator=g) * scale).bfloat16()

    return make(seq_q, heads, dim), make(seq_k, kv_heads, dim), make(seq_k, kv_heads, dim_v or dim)


def reference(q, k, v, causal=False, window=(None, None)):
    """float64 attention of (batch, seq, heads, dim) tensors: out, and lse (batch, heads, seq), natural logarithm."""
    import torch

    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    row = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    col = torch.arange(k.shape[2])[None]
    allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        allowed &= col <= row
    if window[0] is not None:
        allowed &= col >= row - window[0]
    if window[1] is not None:
        allowed &= col <= row + window[1]
    scores = scores.masked_fill(~allowed, float("-inf"))
    return (torch.softmax(scores, -1) @ v).transpose(1, 2), torch.logsumexp(scores, -1)
