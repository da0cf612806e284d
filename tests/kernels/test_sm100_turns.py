"""The softmax warpgroups of the Blackwell forward out of step: turns neither deadlock nor race, whatever is skipped, split or
empty (`forward_emulated.py`), and in modelled time the exponentials are apart with them, or by the order of the products alone
(`sm100_timeline.py`). That each statement of them is needed is in test_sm100_sensitivity.py."""

import pytest
from own_process import printed
from test_sm100_forward import check, rows_of

pytestmark = [pytest.mark.compile, pytest.mark.emulate]
SHARES = 2
# Query tiles that skip apart, work items without tiles, queries in the output's place, both dynamic schedulers, parts of rows.
QUICK = ("causal in order", "rows without keys", "D=192, rows without keys", "clc, rows without keys", "counter, in order",
         "split, parts without keys")  # fmt: skip


def modelled(*words) -> list[dict]:
    return printed("sm100_timeline.py", *words)


def test_turns_agree_with_float64():
    rows = rows_of(*QUICK, kernel="sm100-turns")
    assert {row["case"] for row in rows} == set(QUICK)
    check(rows)


def test_turns_keep_exponentials_apart_in_modelled_time():
    (free,), (turns,) = (modelled(96, 96, "plain", columns, "usual") for columns in (0, 120))
    assert free["share"] > 0.15 and turns["share"] < 0.1 and turns["tile"] < 0.95 * free["tile"]
    assert all(row["error"] <= 2.0**-8 * row["largest"] for row in (free, turns))


@pytest.mark.slow
@pytest.mark.parametrize("dims", [(128, 128), (192, 128)])
def test_the_order_of_products_keeps_them_apart_where_products_are_long(dims):
    (row,) = modelled(*dims, "plain", 0, "usual")
    assert row["share"] < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_every_other_case_agrees_with_float64(share):
    rows = rows_of(f"{share}/{SHARES}", *QUICK, kernel="sm100-turns")
    assert len(rows) >= 80
    check(rows)


@pytest.mark.slow
def test_pairs_with_turns_agree_with_float64():
    names = ("pairs, 128, 769 x 300", "pairs, scores that rise", "pairs, no keys at all", "split, pairs", "pairs, documents")
    rows = rows_of(*names, kernel="sm100-pairs-turns")
    assert {row["case"] for row in rows} == set(names)
    check(rows)
