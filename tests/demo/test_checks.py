"""The summary that decides the exit status: a check must be able to fail, and a NaN must."""

import math

import pytest

from flexfa4.demo import run as demo_run
from flexfa4.demo.checks import Check, Checks
from flexfa4.demo.table import render


@pytest.mark.parametrize("relation", ["<=", ">=", "=="])
def test_nan_never_passes(relation):
    assert not Check("x", math.nan, relation, 1.0).passed
    assert not Check("x", math.nan, relation, math.nan).passed


@pytest.mark.parametrize(
    "relation, passing, failing", [("<=", (0, 1), (1.001, math.inf)), (">=", (1, 2), (0.999, -math.inf)), ("==", (1,), (0, 2))]
)
def test_each_relation_passes_and_fails(relation, passing, failing):
    assert all(Check("x", value, relation, 1).passed for value in passing)
    assert not any(Check("x", value, relation, 1).passed for value in failing)


def test_unknown_relation_is_an_error():
    with pytest.raises(ValueError, match="expected '<=', '>=' or '=='"):
        Check("x", 0, "<", 1).passed


def test_one_failure_fails_all_and_none_at_all_fails_too():
    checks = Checks()
    assert not checks.passed and "no check ran" in checks.summary()
    checks.at_most("error", 1e-6, 1e-3)
    assert checks.passed and checks.summary().endswith("1 checks, 0 failed")
    checks.equal("tokens", 63, 64)
    assert not checks.passed
    assert "FAILED  tokens" in checks.summary() and "2 checks, 1 failed" in checks.summary()


def test_table_sets_numbers_flush_right():
    assert render(("name", "n"), [("a", "5"), ("bc", "12,000")]).splitlines() == [
        "name       n",
        "----  ------",
        "a          5",
        "bc    12,000",
    ]


def section(name, value=None, error=None):
    def act(checks, folder):
        if error is not None:
            raise error
        checks.at_most(name, value, 1.0)
        return f"text of {name}"

    return name, act


@pytest.mark.parametrize(
    "parts, status",
    [
        ([("a", 0.5, None)], 0),
        ([("a", 2.0, None)], 1),
        ([("a", math.nan, None)], 1),
        ([("a", 0.5, None), ("b", None, OSError("gone"))], 1),
    ],
)
def test_exit_status_of_a_run(monkeypatch, tmp_path, capsys, parts, status):
    monkeypatch.setattr(demo_run, "SECTIONS", {name: section(name, value, error) for name, value, error in parts})
    assert demo_run.run(tuple(name for name, *_ in parts), tmp_path) == status
    printed = capsys.readouterr().out
    assert printed.strip().endswith("PASSED" if status == 0 else "FAILED")
    assert "text of a" in printed
    if len(parts) == 2:
        assert "section 'b' broke off with an error" in printed
