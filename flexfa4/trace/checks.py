"""The checks of a trace as one function: straight lines of Python that are compiled once.

A list of closures takes 0.1 us for each, which is most of what a mod costs in a repeated call. Values that were read are in
registers (r0, r1, ...; r0 is the callable), objects that lines compare with in the function's globals; a line is a template with
the register as {v} and the objects by name.
"""
from __future__ import annotations

import types
from functools import cache, lru_cache
from typing import Callable

# Of a state that is not what it was: a cell without a value, an attribute that is gone, ...
_ABSENT = (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError)


class Lines:
    """Lines and the objects that they compare with, in the order in which the lines name them."""

    def __init__(self):
        self.lines: list[tuple[str, str, int, tuple[str, ...]]] = []      # what is done with a template's value, and the template
        self.objects: list[object] = []
        self.registers = 1

    def take(self, at: int, template: str, **objects) -> int:
        """The register of what `template` reads of register `at`."""
        target = self.registers
        self.registers += 1
        self.lines.append((f"r{target} = %s", template, at, tuple(objects)))
        self.objects += objects.values()
        return target

    def demand(self, at: int, template: str, **objects) -> None:
        """The check fails unless this holds."""
        self.lines.append(("if not (%s): return None", template, at, tuple(objects)))
        self.objects += objects.values()

    def check(self, results: list[int], *more: "Lines") -> Callable:
        """The function of a callable that gives the registers `results`, a tuple, or None where a line of these or of `more`
        fails."""
        lines, objects = self.lines, self.objects
        for others in more:
            lines, objects = lines + others.lines, objects + others.objects
        code, names = _compiled(tuple(lines), tuple(results))
        home = dict(zip(names, objects), _absent=_ABSENT)
        exec(code, home)
        return home["check"]


@lru_cache(maxsize=1024)
def _compiled(lines: tuple, results: tuple[int, ...]) -> tuple[types.CodeType, tuple[str, ...]]:
    """(code, names of the objects in it) of a check. Mods that are checked alike share it: to write and compile it takes as long
    as tracing."""
    body, count = "", 0
    for form, template, at, names in lines:
        body += f"        {form % template.format(v=f'r{at}', **{name: f'c{count + i}' for i, name in enumerate(names)})}\n"
        count += len(names)
    given = "".join(f"r{at}, " for at in results)
    source = f"def check(r0):\n    try:\n{body}        return ({given})\n    except _absent:\n        return None\n"
    return compile(source, "<checks of a trace>", "exec"), tuple(f"c{i}" for i in range(count))


@cache
def referents(count: int) -> Callable[[tuple, tuple], bool]:
    """Whether as many weak references are to the very objects of a tuple: a loop over both takes twice as long."""
    return eval(f"lambda refs, found: {' and '.join(f'refs[{i}]() is found[{i}]' for i in range(count)) or True}")
