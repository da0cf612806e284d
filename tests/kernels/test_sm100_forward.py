"""The Blackwell forward in the emulator against dense float64 attention: lengths around tile edges, head dims, the gallery's
mods, several interleavings and completion policies. `forward_emulated.py` lists the cases."""

import pytest
from own_process import printed

pytestmark = [pytest.mark.compile, pytest.mark.emulate]
SHARES = 3
QUICK = ("causal in order", "rows without keys", "many tiles", "fp16", "D=192, 128", "D=31, 17", "mod alibi", "mod document")
QUICK += ("split, parts without keys", "packed 8 x 17", "split, packed, some queries")
QUICK += ("bias on a grid", "NaN where hidden", "bias of the distance by head", "bias of key and distance", "bias inside a cap")
QUICK += ("factors and additions of rows", "factors of rows")
QUICK += ("comparisons as words", "comparisons as floats", "labels and far limits")
QUICK += ("D=192, fewer keys than queries", "D=64, 128")
QUICK += ("far below", "far above", "far slopes", "far factors", "far rows", "far column", "split, far alike")
PRECISE = ("approximate", "precise")
# Of `largest`: P and the output are rounded to the inputs' type, half a unit each.
OUT_TOLERANCE = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# The relative error of the polynomial for 2**x, of degree 3 by default, and what ex2.approx and lg2.approx add.
LSE_TOLERANCE = 7.6e-5 + 3e-6
# ex2.approx and lg2.approx of the softmax itself, on scores of size 8 in float32.
PRECISE_LSE_TOLERANCE = 2e-6


def rows_of(*words: str, kernel: str = "sm100", seconds: int = 500) -> list[dict]:
    return printed("forward_emulated.py", kernel, *words, seconds=seconds)


def check(rows: list[dict]) -> None:
    for row in rows:
        assert row["launches"] == (2 if row["case"].startswith("split") else 1) and row["findings"] == [], row
        assert row["out"] <= OUT_TOLERANCE[row["half"]] * row["largest"], row
        # Of scores far from 0 float32 keeps 22 bits.
        far = row["case"].removeprefix("split, ").startswith("far")
        assert row["lse"] <= LSE_TOLERANCE + (2.0**-22 * row["largest_lse"] if far else 0.0), row


def test_a_few_cases_agree_with_float64_and_precise_turns_approximations_off():
    rows = rows_of(*QUICK, *PRECISE)
    assert {row["case"] for row in rows} == {*QUICK, *PRECISE}
    check(rows)
    worst = {name: max(row["lse"] for row in rows if row["case"] == name) for name in PRECISE}
    assert worst["precise"] <= PRECISE_LSE_TOLERANCE < worst["approximate"], worst


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_every_other_case_agrees_with_float64(share):
    rows = rows_of(f"{share}/{SHARES}", *QUICK, *PRECISE)
    assert len(rows) >= 100
    check(rows)
