"""The checks of a trace as one function: straight lines of Python that are compiled once.

A list of closures takes 0.1 us for each, which is most of what a mod costs in a repeated call. Values that were read are in
registers (r0, r1, ...; r0 is the callable), objects that lines compare with in the function's globals; a line is a template with
the register as {v} and the objects by name.
"""
from __future__ import annotations

from functools import cache
from typing import Callable

# Of a state that is not what it was: a cell without a value, an attribute that is gone, ...
_ABSENT = (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError)


class Lines:
    """Lines that share registers and objects. Those of `code` are written so far."""

    def __init__(self, objects: dict[str, object] | None = None):
        self.code: list[str] = []
        self._objects = {"_absent": _ABSENT} if objects is None else objects
        self.registers = 1

    def beside(self) -> "Lines":
        """Other lines over the same registers and objects."""
        return Lines(self._objects)

    def filled(self, template: str, at: int, **objects) -> str:
        names = {}
        for name, value in objects.items():
            names[name] = found = f"c{len(self._objects)}"
            self._objects[found] = value
        return template.format(v=f"r{at}", **names)

    def take(self, at: int, template: str, **objects) -> int:
        """The register of what `template` reads of register `at`."""
        target = self.registers
        self.registers += 1
        self.code.append(f"r{target} = {self.filled(template, at, **objects)}")
        return target

    def demand(self, at: int, template: str, **objects) -> None:
        """The check fails unless this holds."""
        self.code.append(f"if not ({self.filled(template, at, **objects)}): return None")

    def check(self, results: list[int], *more: "Lines") -> Callable:
        """The function of a callable that gives the registers `results`, a tuple, or None where a line of these or of `more`
        fails."""
        lines = [*self.code, *(line for others in more for line in others.code)]
        body = "".join(f"        {line}\n" for line in lines)
        given = "".join(f"r{at}, " for at in results)
        source = f"def check(r0):\n    try:\n{body}        return ({given})\n    except _absent:\n        return None\n"
        home = dict(self._objects)
        exec(compile(source, "<checks of a trace>", "exec"), home)
        return home["check"]


@cache
def referents(count: int) -> Callable[[tuple, tuple], bool]:
    """Whether as many weak references are to the very objects of a tuple: a loop over both takes twice as long."""
    return eval(f"lambda refs, found: {' and '.join(f'refs[{i}]() is found[{i}]' for i in range(count)) or True}")
