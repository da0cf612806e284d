"""Whether a mod drew random numbers while it was traced: the states of Python's and numpy's generators before and after."""
from __future__ import annotations

import random
import types

import numpy as np
import torch

from .codes import reads

# Values that run no code of their own when a mod uses them.
_PLAIN = (torch.Tensor, bool, int, float, type(None), torch.dtype)


def generators(fn) -> tuple | None:
    """What the generators that a mod could draw from look like now; None for a mod that reaches none, as reading the states takes
    a third of a trace."""
    if not _may_draw(fn):
        return None
    return random.getstate(), np.random.get_state()


def drew(before: tuple | None) -> bool:
    """True if a generator moved since `before`, which is what `generators` said."""
    if before is None:
        return False
    (ours, theirs), (ours_now, theirs_now) = before, (random.getstate(), np.random.get_state())
    return ours != ours_now or theirs[2:4] != theirs_now[2:4] or bool((theirs[1] != theirs_now[1]).any())


def _may_draw(fn) -> bool:
    """False for a function that names no globals or modules and closes over plain values alone."""
    if type(fn) is not types.FunctionType:
        return True
    found = reads(fn.__code__)
    if found.names or found.imports or found.dynamic:
        return True
    try:
        values = [cell.cell_contents for cell in fn.__closure__ or ()]
    except ValueError:                                   # a variable without a value yet
        return True
    return not all(isinstance(x, _PLAIN) for x in (*values, *(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()))
