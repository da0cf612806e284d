"""How our objects behave in the DSL's staged loops and branches, which carry every object that the body calls a method of."""
from __future__ import annotations

from dataclasses import fields, replace

import cutlass
from cutlass.base_dsl.typing import Numeric


class Carried:
    """A frozen dataclass whose staged numbers a staged loop carries; other fields stay as they are."""

    def _staged(self) -> list[str]:
        return [f.name for f in fields(self) if isinstance(getattr(self, f.name), Numeric)]

    def __extract_mlir_values__(self) -> list:
        return [v for name in self._staged() for v in cutlass.extract_mlir_values(getattr(self, name))]

    def __new_from_mlir_values__(self, values: list):
        names = self._staged()
        return replace(self, **{n: cutlass.new_from_mlir_values(getattr(self, n), [v]) for n, v in zip(names, values)})


class Fixed:
    """An object that a staged region reads and never changes: its staged values are defined outside and stay as they are."""

    def __extract_mlir_values__(self) -> list:
        return []

    def __new_from_mlir_values__(self, values: list):
        return self
