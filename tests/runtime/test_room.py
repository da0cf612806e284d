"""Frames below `with_room` are in memory that stays."""
import resource

from flexfa4.runtime.room import with_room

CALLS = 300


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def callee(a, b, c):
    return a


def calls_from(depth: int) -> int:
    """Page faults of calls of a function from so many frames further down."""
    if depth:
        return calls_from(depth - 1)
    before = faults()
    for i in range(CALLS):
        callee(i, i, i)
    return faults() - before


def worst() -> int:
    """From every depth, at one of which the callee would be the first in a chunk of 16 KiB."""
    return max(calls_from(depth) for depth in range(300))


def test_no_depth_maps_memory_in_each_call():
    assert with_room(worst) < CALLS // 2


def test_it_passes_arguments_and_results_and_errors():
    assert with_room(callee, 1, b=2, c=3) == 1
    try:
        with_room(callee, 1)
    except TypeError as error:
        assert "missing 2 required" in str(error)
    else:
        raise AssertionError("no error")
