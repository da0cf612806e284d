"""Values of distances go through shared memory that other warps write factors to: what orders the two is needed."""

import pytest
from own_process import printed

pytestmark = [pytest.mark.compile, pytest.mark.emulate]


def findings(*words: str) -> list:
    return printed("lookups_unordered.py", *words, seconds=300)


def test_the_barrier_after_reading_is_needed():
    assert findings("ordered") == []
    assert {kind for kind, _ in findings()} == {"race"}
