"""What is written in several parts because none may import the others agrees: the kinds of runs, which the schedule and the tiled
engine know as arrays only, and the cost of a work tile."""
from flexfa4.engines.tiled import tiles
from flexfa4.schedule import CostModel, work
from flexfa4.sparsity import documents
from flexfa4.sparsity.spans import Kind


def test_kinds_are_the_same_numbers():
    assert (work.PARTIAL, work.FULL) == (tiles.PARTIAL, tiles.FULL) == (Kind.PARTIAL, Kind.FULL)


def test_a_work_tile_costs_the_same_beside_its_tiles():
    assert documents._FIXED == CostModel().fixed
