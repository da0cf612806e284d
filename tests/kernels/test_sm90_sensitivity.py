"""Barriers of the Hopper forward on three warpgroups are needed: without one the emulator stops, reports, or gets other
numbers."""

import pytest
from own_process import printed

pytestmark = [pytest.mark.compile, pytest.mark.emulate, pytest.mark.slow]
# Seen 66 or 67 of 77; one is not executed by these launches. The others are of the compiler's making or protect what others do
# too: fences of products that follow another without a register in between, barriers after which nothing conflicts.
LEAST_SEEN = 66


@pytest.mark.parametrize("kernel", [("128", "wide")], ids=" ".join)
def test_deletions_are_seen(kernel):
    rows = printed("sm90_sensitivity.py", *kernel)
    assert {"mbarrier wait", "mbarrier arrive", "commit", "wait", "fence", "barrier"} <= {row["kind"] for row in rows}
    unseen = [row for row in rows if row["executed"] and not row["how"]]
    assert len(rows) - len(unseen) >= LEAST_SEEN
    # Two waits prove what their thread knows already.
    assert [row["kind"] for row in unseen if "mbarrier" in row["kind"]] in ([], *(["mbarrier wait"] * n for n in (1, 2)))
    assert all("the thread knows" in row["why"] for row in unseen if "mbarrier" in row["kind"]), unseen
