"""Which CUDA graph is being captured."""
from __future__ import annotations

import ctypes
from functools import cache

import torch

_ACTIVE = 1                            # CU_STREAM_CAPTURE_STATUS_ACTIVE of cuda.h


def capture_on(device: torch.device) -> object:
    """None while the current stream of a device is not captured; else the number of the capture, equal within one and never
    again. Where the driver does not tell it, an object that is equal to nothing."""
    if device.type != "cuda" or not torch._C._cuda_isCurrentStreamCapturing():
        return None
    status, number = ctypes.c_int(), ctypes.c_uint64()
    stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
    ask = _asks_the_driver()
    if ask is None or ask(stream, ctypes.byref(status), ctypes.byref(number)) != 0 or status.value != _ACTIVE:
        return object()
    return number.value


@cache
def _asks_the_driver():
    try:
        return ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo
    except (OSError, AttributeError):
        return None
