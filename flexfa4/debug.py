"""Attention that calls the mods as plain Python, once a position, on numbers: print shows them, breakpoint() stops on them.

`flex_attention(..., debug=True)` comes here after the ordinary call has run without complaint, so every error is the ordinary
one. It takes B * Hq * Sq * Skv calls of each mod: meant for a few dozen positions.
"""
from __future__ import annotations

import contextlib
import io
import math
import sys
from typing import Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .errors import ShapeError, TraceError
from .reference import softmax
from .trace import arity, describe, raised_at

# About a minute of calls.
MOST_POSITIONS = 2**21


class _LookupsInRange(TorchFunctionMode):
    """t[i, j] past the end of t reads its nearest edge, as engines do at positions that are masked away: the ordinary call has
    found every other."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            table, index = args
            parts = index if isinstance(index, tuple) else (index,)
            if len(parts) <= table.dim() and all(_is_position(p) for p in parts):
                inside = tuple(max(min(int(p), n - 1), -n) for p, n in zip(parts, table.shape))
                return func(table, inside) if all(table.shape[:len(parts)]) else table.new_zeros(table.shape[len(parts):])
        return func(*args, **(kwargs or {}))


def _is_position(part) -> bool:
    if isinstance(part, Tensor):
        return part.dim() == 0 and not (part.dtype.is_floating_point or part.dtype is torch.bool)
    return isinstance(part, int) and not isinstance(part, bool)


@contextlib.contextmanager
def quiet():
    """Tracing calls a mod with stand-ins for numbers; within the block its prints and breakpoints do nothing."""
    before, sys.breakpointhook = sys.breakpointhook, lambda *args, **kwargs: None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        sys.breakpointhook = before


def check_size(query: Tensor, key: Tensor) -> None:
    """Raises ShapeError where calling a mod at every position would take minutes."""
    positions = query.shape[0] * query.shape[1] * query.shape[2] * max(1, key.shape[2])
    if positions > MOST_POSITIONS:
        raise ShapeError(f"debug=True calls each mod once a position, and query {tuple(query.shape)} with key {tuple(key.shape)} "
                         f"have {positions}: pass at most {MOST_POSITIONS}, for example query[:1, :, :32] and key[:1, :, :32]")


def attention(query: Tensor, key: Tensor, value: Tensor, mods: tuple[Callable | None, Callable | None, Callable | None],
              scale: float) -> tuple[Tensor, Tensor]:
    """(out, lse) of valid arguments; mods: (score_mod, mask_mod, out_mod), which have been traced without an error.

    mask_mod is called at every position, score_mod where the mask allows, out_mod for every element of the output. Gradients are
    those of torch's autograd through these calls. Raises TraceError, naming the user's line and the position, where a mod raises.
    """
    score_mod, mask_mod, out_mod = mods
    group = query.shape[1] // key.shape[1]
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    keys, values = (t.double().repeat_interleave(group, 1).expand(query.shape[0], -1, -1, -1) for t in (key, value))
    scores = ((query.double() * scale) @ keys.transpose(-1, -2)).to(wide)
    positions = _grid(scores.shape, query.device)
    with _LookupsInRange():
        seen = [True] * len(positions) if mask_mod is None else [bool(_called(mask_mod, "mask", at)) for at in positions]
        if score_mod is not None and positions:
            hidden = scores.new_full((), -math.inf)
            edited = [_called(score_mod, "score", at, s) if shown else hidden
                      for s, shown, at in zip(scores.reshape(-1).unbind(), seen, positions)]
            scores = torch.stack([e.to(wide) for e in edited]).view(scores.shape)
        shown = torch.tensor(seen, dtype=torch.bool, device=query.device).view(scores.shape)
        out, lse = softmax(scores.double().masked_fill(~shown, -math.inf), values)
        out, lse = out.to(wide), lse.to(wide)
        if out_mod is not None and out.numel():
            column = arity(out_mod, "out") == 6
            rows = lse.unsqueeze(-1).expand(out.shape).reshape(-1).unbind()
            places = _grid(out.shape, query.device)
            out = torch.stack([_called(out_mod, "out", at if column else at[:3], o, row)
                               for o, row, at in zip(out.reshape(-1).unbind(), rows, places)]).view(out.shape)
    return out.to(query.dtype), lse


def _grid(shape, device) -> list[tuple[Tensor, ...]]:
    """Every position as four 0-d int64 tensors, row by row."""
    whole = torch.cartesian_prod(*(torch.arange(n, device=device) for n in shape))
    return [at.unbind() for at in whole.view(-1, len(shape))]


def _called(mod: Callable, kind: str, at: tuple[Tensor, ...], *lead: Tensor) -> Tensor:
    try:
        return torch.as_tensor(mod(*(x.clone() for x in (*lead, *at))), device=at[0].device)
    except Exception as error:
        *defined_at, name = describe(mod, kind)
        file, line = raised_at(error, beside=__file__) or defined_at
        names = ("b", "h", "q_idx", "kv_idx" if kind != "out" else "d_idx")
        place = ", ".join(f"{n}={int(i)}" for n, i in zip(names, at))
        raise TraceError(f"{file}:{line}: {name} raises {type(error).__name__} when it is called at {place}: {error}") from error
