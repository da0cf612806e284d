"""Checks with a bar, and the summary that decides the exit status. A NaN never passes."""

from __future__ import annotations

from dataclasses import dataclass, field

from .table import render


@dataclass(frozen=True)
class Check:
    """One measured number against its bar: passes when measured `relation` bar, `relation` being "<=", ">=" or "==" ."""

    name: str
    measured: float
    relation: str
    bar: float

    @property
    def passed(self) -> bool:
        if self.relation == "<=":
            return self.measured <= self.bar
        if self.relation == ">=":
            return self.measured >= self.bar
        if self.relation == "==":
            return self.measured == self.bar
        raise ValueError(f"relation={self.relation!r}: expected '<=', '>=' or '=='")


@dataclass
class Checks:
    """The checks of one run, in order."""

    done: list[Check] = field(default_factory=list)

    def at_most(self, name: str, measured: float, bar: float) -> None:
        self.done.append(Check(name, measured, "<=", bar))

    def at_least(self, name: str, measured: float, bar: float) -> None:
        self.done.append(Check(name, measured, ">=", bar))

    def equal(self, name: str, measured: float, bar: float) -> None:
        self.done.append(Check(name, measured, "==", bar))

    @property
    def passed(self) -> bool:
        """True when there is at least one check and none failed."""
        return bool(self.done) and all(c.passed for c in self.done)

    def summary(self) -> str:
        """The table of all checks, and one line that counts them."""
        rows = [("ok" if c.passed else "FAILED", c.name, f"{c.measured:.6g}", f"{c.relation} {c.bar:g}") for c in self.done]
        failed = sum(not c.passed for c in self.done)
        verdict = f"{len(self.done)} checks, {failed} failed" if self.done else "no check ran: that is a failure"
        return render(("", "check", "measured", "bar"), rows) + "\n\n" + verdict
