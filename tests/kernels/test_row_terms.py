"""Terms of a score graph that are the same for a whole row, whatever they are: out and LSE of both kernels, in the emulator, and
of the tiled engine are those of dense float64 (`row_terms_emulated.py`); in rows without keys too (`keyless_emulated.py`)."""

import pytest
from own_process import printed

pytestmark = [pytest.mark.compile, pytest.mark.emulate]
# Output: P and the output are rounded to bfloat16; and float32 terms of less than 2^12. LSE: ex2.approx and the polynomial.
OUT = {"sm90": 2.0**-7, "sm100": 2.0**-7, "tiled": 2.0**-10}
LSE = {"sm90": 2e-6, "sm100": 8e-5, "tiled": 1e-6}
# Kernel, and calls of keyless_emulated.py. Blackwell's leaves out what it gets wrong (NaN scores that -inf is added to, a factor
# of NaN).
KEYLESS = {"sm90": 9, "sm100": 7}
# All but few rows and D=256 are on three warpgroups.
WIDE = {"a row", "a row, late", "a row, split", "a head and a row", "a slope", "scores of NaN", "a factor"}


@pytest.mark.parametrize("kernel", KEYLESS)
def test_terms_of_rows_with_and_without_keys(kernel):
    found = printed("keyless_emulated.py", kernel)
    rows = found["terms"]
    assert len(rows) == 16 and sum(row["infinite"] for row in rows) > 50 < sum(row["nan"] for row in rows)
    for row in rows:
        assert row["out"] <= OUT[row["engine"]] and row["lse"] <= LSE[row["engine"]], row
    rows = found["keyless"]
    assert len(rows) == KEYLESS[kernel] and all(min(row["keyless"], row["nan"]) > 10 for row in rows)
    assert kernel != "sm90" or WIDE == {row["case"] for row in rows if row["warpgroups"] == 3}
    for row in rows:
        assert row["out"] <= OUT[kernel] and row["lse"] <= LSE[kernel] and not row["findings"], row
