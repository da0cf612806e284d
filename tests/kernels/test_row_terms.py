"""Terms of a score graph that are the same for a whole row, whatever they are: out and LSE of both kernels, in the emulator, and
of the tiled engine are those of dense float64 (`row_terms_emulated.py`)."""

import pytest
from own_process import printed

pytestmark = [pytest.mark.compile, pytest.mark.emulate]
# Output: P and the output are rounded to bfloat16; and float32 terms of less than 2^12. LSE: ex2.approx and the polynomial.
OUT = {"sm90": 2.0**-7, "sm100": 2.0**-7, "tiled": 2.0**-10}
LSE = {"sm90": 2e-6, "sm100": 8e-5, "tiled": 1e-6}
# Kernel, and calls of keyless_emulated.py. Blackwell's leaves out what it gets wrong (NaN scores that -inf is added to, a factor
# of NaN).
KEYLESS = {"sm90": 9, "sm90-wide": 3, "sm100": 7}


@pytest.mark.parametrize("kernel", ["sm90", "sm100"])
def test_row_terms(kernel):
    rows = printed("row_terms_emulated.py", kernel)
    assert len(rows) == 16 and sum(row["infinite"] for row in rows) > 50 < sum(row["nan"] for row in rows)
    for row in rows:
        assert row["out"] <= OUT[row["engine"]] and row["lse"] <= LSE[row["engine"]], row


@pytest.mark.parametrize("kernel", KEYLESS)
def test_rows_without_keys(kernel):
    rows, arch = printed("keyless_emulated.py", kernel), kernel.split("-")[0]
    assert len(rows) == KEYLESS[kernel] and all(min(row["keyless"], row["nan"]) > 10 for row in rows)
    for row in rows:
        assert row["out"] <= OUT[arch] and row["lse"] <= LSE[arch] and not row["findings"], row
