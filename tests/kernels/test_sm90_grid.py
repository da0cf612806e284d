"""The Hopper forward in the emulator on the grid of the Blackwell one: situations of tests/cases, lengths and head dims, random
graphs, captures of every type, heads that share tiles. `kernel_grid.py` makes the calls."""

import pytest
from test_sm100_grid import QUICK, check, rows_of

pytestmark = [pytest.mark.compile, pytest.mark.emulate]


@pytest.mark.parametrize("part, calls", [(("cases", *QUICK[:2]), 2), (("scores", "2", "1"), 2)], ids=lambda p: str(p)[:20])
def test_some_calls_agree_with_float64(part, calls):
    rows = rows_of(*part, kernel="sm90")
    assert len({row["case"] for row in rows}) >= calls
    check(rows)


@pytest.mark.slow
@pytest.mark.parametrize("part, calls", [
    (("graphs", "2", "1"), 2), (("captures", "1/20"), 6), (("packed", "0/8"), 7), (("lengths", "6/36"), 12),
], ids=lambda p: "-".join(p).replace("/", "of") if isinstance(p, tuple) else str(p))
def test_more_calls_agree_with_float64(part, calls):
    rows = rows_of(*part, kernel="sm90")
    assert len({row["case"] for row in rows}) >= calls
    check(rows)
