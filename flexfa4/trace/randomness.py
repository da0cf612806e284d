"""Whether a mod drew random numbers while it was traced: every generator that its code can name is compared with itself before.

torch's random functions are refused as they are called (`mode`); numpy's and Python's announce nothing.
"""
from __future__ import annotations

import functools
import random
import types

import numpy as np
import torch

from .codes import reads

_KINDS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random, torch.Generator)
# Each makes a generator, whose numbers no comparison with a former state would show.
MAKERS = frozenset({"default_rng", "RandomState", "SystemRandom", "Random", "Generator"})
# Values that run no code of their own when a mod uses them.
_PLAIN = (torch.Tensor, bool, int, float, type(None), torch.dtype)
_DEPTH, _ITEMS = 5, 64


def draws(fn) -> Draws | None:
    """What to ask after a trace of `fn`; None for a function that names no globals or modules and closes over plain values alone,
    as most do: reading the states takes a third of a trace."""
    if type(fn) is not types.FunctionType:
        return Draws(fn)
    found = reads(fn.__code__)
    cells = [None if _empty(c) else c.cell_contents for c in fn.__closure__ or ()]
    values = (*cells, *(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    plain = not (found.names or found.imports or found.dynamic) and all(isinstance(x, _PLAIN) for x in values)
    return None if plain else Draws(fn)


class Draws:
    """The state of the module-level generators and of those that `fn` reaches, at the time of making."""

    def __init__(self, fn):
        self._generators: list = []
        self._makes: set[str] = set()
        self._seen: set[int] = set()
        self._visit(fn, _DEPTH)
        self._before = self._states()

    def found(self) -> str | None:
        """What was drawn from since, in words for a refusal; None if nothing was."""
        for generator, before, now in zip((None, None, *self._generators), self._before, self._states()):
            if before != now:
                return "Python's or numpy's random module" if generator is None else f"a {type(generator).__name__}"
        return f"a generator that it makes by {min(self._makes)}" if self._makes else None

    def _states(self) -> list:
        return [random.getstate(), _words(np.random.get_state()), *map(_state, self._generators)]

    def _visit(self, value, depth: int) -> None:
        if depth == 0 or id(value) in self._seen or isinstance(value, torch.Tensor):
            return
        self._seen.add(id(value))
        if isinstance(value, _KINDS):
            self._generators.append(value)
            return
        for inner in list(self._inside(value))[:_ITEMS]:
            self._visit(inner, depth - 1)

    def _inside(self, value):
        """What the code of `value` can reach through it."""
        if isinstance(value, types.FunctionType):
            if (value.__module__ or "").split(".", 1)[0] not in ("torch", "numpy", "random"):
                yield from self._of_function(value)
        elif isinstance(value, types.MethodType):
            yield from (value.__func__, value.__self__)
        elif isinstance(value, functools.partial):
            yield from (value.func, *value.args, *value.keywords.values())
        elif isinstance(value, (tuple, list)):
            yield from value
        elif isinstance(value, dict):
            yield from value.values()
        elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, (types.ModuleType, type)):
            yield from value.__dict__.values()
            yield from (getattr(type(value), name, None) for name in ("__call__", "forward"))

    def _of_function(self, fn: types.FunctionType):
        found = reads(fn.__code__)
        self._makes |= MAKERS & (found.attributes | set(found.names))
        yield from (c.cell_contents for c in fn.__closure__ or () if not _empty(c))
        yield from (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        for name in found.names:
            value = fn.__globals__.get(name)
            yield value
            if isinstance(value, types.ModuleType) and value.__name__.split(".", 1)[0] not in ("torch", "numpy", "random"):
                yield from (value.__dict__.get(a) for a in found.attributes)


def _empty(cell) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return True
    return False


def _state(generator):
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.BitGenerator):
        return repr(generator.state)
    if isinstance(generator, np.random.RandomState):
        return _words(generator.get_state())
    return generator.get_state().tolist() if isinstance(generator, torch.Generator) else generator.getstate()


def _words(state: tuple) -> tuple:
    return tuple(x.tobytes() if isinstance(x, np.ndarray) else x for x in state)
