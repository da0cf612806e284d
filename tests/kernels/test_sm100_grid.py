"""The Blackwell forward in the emulator on the situations of tests/cases, on many lengths and head dims, and on random graphs.
`kernel_grid.py` makes the calls; `benchmarks/kernel_grid.py` runs all of them and keeps the table."""

import pytest
from own_process import printed
from test_sm100_forward import LSE_TOLERANCE, OUT_TOLERANCE

pytestmark = [pytest.mark.compile, pytest.mark.emulate]
QUICK = ("case04_three_heads_per_kv_short", "case17_negative_floordiv_and_mod", "case19_bit_packed_table",
         "case31_draft_blocks_from_anchors", "case35_head_dim_31_and_v_17", "case43_state_changes_between_calls")  # fmt: skip


def rows_of(*words: str, kernel: str = "sm100") -> list[dict]:
    return printed("kernel_grid.py", kernel, *words, seconds=900)


def check(rows: list[dict]) -> None:
    for row in rows:
        assert row["launches"] == 1 and row["findings"] == [], row
        assert row["out"] <= OUT_TOLERANCE[row["half"]] * row["largest"], row
        # Of a long sum float32 keeps 22 bits.
        assert row["lse"] <= LSE_TOLERANCE + 2.0**-22 * row["largest_lse"], row


def test_some_situations_agree_with_float64():
    rows = rows_of("cases", *QUICK)
    assert {row["case"].split(",")[0] for row in rows} == set(QUICK)
    check(rows)


def test_random_graphs_agree_with_the_interpreter():
    rows = rows_of("graphs", "3", "1")
    assert len({row["case"] for row in rows}) == 3
    check(rows)


def test_random_score_graphs_agree_with_float64():
    """Beyond what their arithmetic explains (`conditioning.py`)."""
    rows = rows_of("scores", "4", "1")
    assert len({row["case"] for row in rows}) == 4
    check(rows)


def test_captures_of_every_type_agree_with_float64():
    """A kind of index, an own way of lying in memory and a type each; the rest is in the benchmark."""
    rows = rows_of("captures", "0/11")
    assert len({row["case"] for row in rows}) == 11
    check(rows)


@pytest.mark.slow
def test_heads_that_share_tiles_agree_with_float64():
    rows = rows_of("packed", "0/8")
    assert len({row["case"] for row in rows}) == 7
    check(rows)


@pytest.mark.slow
def test_every_other_situation_agrees_with_float64():
    rows = rows_of("others", *QUICK)
    assert len({row["case"] for row in rows}) > 34
    check(rows)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(0, 36, 12))
def test_lengths_around_tile_edges_agree_with_float64(share):
    """A combination of head dims, type and mask each; all 36 are in the benchmark."""
    rows = rows_of("lengths", f"{share}/36")
    assert len(rows) == 36
    check(rows)
