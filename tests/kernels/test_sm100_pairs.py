"""Pairs of CTAs in the Blackwell forward, in the emulator against dense float64 attention: the cases of the single CTA but for
those that differ by their graph alone, and rows around the edges of what a pair holds. `forward_emulated.py` lists the cases."""

import pytest
from test_sm100_forward import check, rows_of

pytestmark = [pytest.mark.compile, pytest.mark.emulate]
SHARES = 3
QUICK = ("pairs, 128, 769 x 300", "pairs, 192, 513 x 900", "pairs, scores that rise", "pairs, no keys at all", "split, pairs",
         "pairs, documents", "pairs, some without keys", "pairs, D=256")  # fmt: skip


def test_a_few_cases_agree_with_float64():
    rows = rows_of(*QUICK, kernel="sm100-pairs")
    assert {row["case"] for row in rows} == set(QUICK)
    check(rows)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_every_other_case_agrees_with_float64(share):
    rows = rows_of(f"{share}/{SHARES}", *QUICK, kernel="sm100-pairs", seconds=900)
    assert len(rows) >= 120
    check(rows)
