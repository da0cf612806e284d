"""flex_attention with the Blackwell kernel under it, in the emulator: gradients of inputs, captures and the LSE, first and
repeated calls, and views that TMA reads or that are copied. `calls_emulated.py` makes the calls."""

import pytest
from own_process import printed

pytestmark = [pytest.mark.compile, pytest.mark.emulate]
# Of the largest value: P, the output and gradients of inputs are rounded to bfloat16, some of them after others.
TOLERANCE = {"lse": 2e-5}
ROUNDING = 2.0**-7
READ_IN_PLACE = {"rows first", "half a row", "cut length", "one batch entry for all", "one row for all"}
GRADIENTS = "gradients", "gradients of rows without keys", "gradients through an output graph"


def made(*names: str) -> dict:
    found = printed("calls_emulated.py", *names)
    assert found.pop("findings") == []
    return found


def check(errors: dict) -> None:
    assert all(error <= TOLERANCE.get(name, ROUNDING) for name, error in errors.items()), errors


def test_gradients_of_first_and_repeated_calls():
    found = made(*GRADIENTS)
    assert set(found) == set(GRADIENTS)
    for row in found.values():
        assert (row["launches"], row["compiled"]) == (2, 1)
        check(row["errors"])
    assert {"out", "lse", "query", "key", "value", "lifts", "slopes", "bias"} == set(found["gradients"]["errors"])


def test_views_are_read_in_place_or_copied_once():
    found = made("views")["views"]
    copied = dict(found.pop("copied"))
    assert {name for name, count in copied.items() if count == 0} == READ_IN_PLACE
    assert {copied[name] for name in copied.keys() - READ_IN_PLACE} == {3} and len(copied) == 9
    for row in found.values():
        check(row["errors"])
    # Strides are arguments: one kernel takes all.
    assert sum(row["compiled"] for row in found.values()) == 1
