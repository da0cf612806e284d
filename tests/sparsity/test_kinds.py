"""The three places that read a run's kind agree: the schedule and the tiled engine know spans as arrays only."""
from flexfa4.engines.tiled import tiles
from flexfa4.schedule import work
from flexfa4.sparsity.spans import Kind


def test_kinds_are_the_same_numbers():
    assert (work.PARTIAL, work.FULL) == (tiles.PARTIAL, tiles.FULL) == (Kind.PARTIAL, Kind.FULL)
