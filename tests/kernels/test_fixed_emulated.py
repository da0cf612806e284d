"""Both kernels with lists that are rebuilt in place between launches: `fixed_emulated.py` lists the cases."""

import pytest
from own_process import printed

pytestmark = [pytest.mark.compile, pytest.mark.emulate]
# Of LSE: ex2.approx and lg2.approx, and Blackwell's polynomial of degree 3 for 2**x.
LSE_TOLERANCE = {"sm90": 5e-6, "sm100": 7.6e-5 + 3e-6}


@pytest.mark.parametrize("kernel", LSE_TOLERANCE)
def test_launches_see_the_labels_as_they_are(kernel):
    rows = printed("fixed_emulated.py", kernel)
    assert len(rows) == 16
    for row in rows:
        assert row["launches"] == 1 and row["findings"] == [], row
        # P and the output are rounded to bfloat16, half a unit each.
        assert row["out"] <= 2.0**-8 * row["largest"] and row["lse"] <= LSE_TOLERANCE[kernel], row
