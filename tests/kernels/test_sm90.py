"""The Hopper forward in the emulator against dense float64 attention: lengths around tile edges, head dims, the gallery's mods,
several interleavings and completion policies. `forward_emulated.py` lists the cases."""

import pytest
from own_process import printed

pytestmark = [pytest.mark.compile, pytest.mark.emulate, pytest.mark.slow]
SHARES = 3
# On three warpgroups, which the plan chooses for rows of thousands of keys; rows of other warpgroups see their tiles or none.
WIDE = ("plain, few CTAs", "causal in order", "rows without keys", "a row more than a tile", "D=96", "scores that fall",
        "one key far above", "comparisons as words", "documents, causal", "split, documents", "split, parts without keys",
        "packed, long rows")
# Of `largest`: P and the output are rounded to the inputs' type, half a unit each.
OUT_TOLERANCE = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# A logarithm from ex2.approx and lg2.approx over scores of size 8; of a large one float32 keeps 24 bits, once in log2 and once
# more in its own unit, and of scores far from 0, where biases cancel, 22.
LSE_TOLERANCE = 5e-6


def rows_of(*words: str) -> list[dict]:
    return printed("forward_emulated.py", *words)


@pytest.mark.parametrize("share", range(SHARES))
def test_forward_agrees_with_float64(share):
    rows = rows_of("sm90", f"{share}/{SHARES}")
    assert len(rows) >= 100
    check(rows)


def test_three_warpgroups_agree_with_float64():
    rows = rows_of("sm90-wide", *WIDE)
    assert {row["case"] for row in rows} == set(WIDE)
    check(rows)


def test_half_of_a_query_tile_passes_over_what_it_does_not_see():
    """At D=256: of five causal items, of 26 tiles of 80 keys for two halves, all but the last begin with one that holds nothing
    for the upper half."""
    for row in printed("passed_emulated.py"):
        assert (row["tile"], row["tiles"]) == (80, 2 * 26 - 4) and row["findings"] == [], row


def check(rows: list[dict]) -> None:
    for row in rows:
        assert row["launches"] == (2 if row["case"].startswith("split") else 1) and row["findings"] == [], row
        lse = LSE_TOLERANCE + 2.0**(-22 if row["case"].removeprefix("split, ").startswith("far") else -24) * row["largest_lse"]
        assert row["out"] <= OUT_TOLERANCE[row["half"]] * row["largest"] and row["lse"] <= lse, row
