"""Room on Python's stack of frames."""
from __future__ import annotations

from typing import Callable

# Slots of 8 bytes. The frame of such a size gets a chunk of twice that, of which the deeper frames have the rest.
_SLOTS = (1 << 16) + 64


def with_room(function: Callable, *args, **kwargs):
    """function(*args, **kwargs), its frames and all deeper ones in one piece of memory of 512 KiB.

    Python keeps frames in chunks of 16 KiB, which it maps when the first frame enters and unmaps when it leaves (`push_chunk`,
    `_PyThreadState_PopFrame` of CPython 3.11 and later). A frame whose callees are the first ones of a chunk maps, touches and
    unmaps memory in each of its calls."""
    return function(*args, **kwargs)


with_room.__code__ = with_room.__code__.replace(co_stacksize=_SLOTS)
