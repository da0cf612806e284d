"""Every barrier of the Blackwell forward is needed: without any one wait, arrival, commit or proxy fence the emulator stops,
reports, or gets other numbers."""

import pytest
from own_process import printed

pytestmark = [pytest.mark.compile, pytest.mark.emulate]


# Scheduler, head dims, CTAs that work together; whether spans tell the two query tiles apart, a bias of the distance, turns. A
# process a group: starting one takes as long as a dozen deletions.
GROUPS = [["static 128 128 1", "clc 128 128 1"], ["counter 128 128 2", "static 128 128 1 halves", "static 192 128 1 halves"]]
SLOW = [
    ["static 256 256 2", "static 256 256 1", "static 64 64 1", "static 64 64 1 halves"],
    ["counter 192 128 2", "counter 192 128 1", "clc 192 128 1", "static 192 128 1"],
    ["static 128 128 2", "static 128 128 1 bias", "static 128 128 1 halves bias", "counter 128 128 1"],
    ["counter 128 128 1 halves", "clc 128 128 1 halves"],
    ["static 96 96 1 turns", "static 96 96 1 halves turns", "clc 96 96 1 halves turns"],
]


@pytest.mark.parametrize("group", [*GROUPS, *(pytest.param(group, marks=pytest.mark.slow) for group in SLOW)], ids=", ".join)
def test_every_deletion_is_seen(group):
    found = printed("sm100_sensitivity.py", *group, seconds=900)
    assert list(found) == group
    for kernel, rows in found.items():
        kinds = {row["kind"] for row in rows}
        assert {"mbarrier wait", "mbarrier arrive", "commit", "wait", "fence", "barrier"} <= kinds, kernel
        assert [row for row in rows if not row["executed"]] == [], kernel
        assert [row for row in rows if not row["how"]] == [], kernel
