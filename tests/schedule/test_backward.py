"""Shortest first for the deterministic backward, and the picture of a schedule."""

import sys
from pathlib import Path

import numpy as np
import pytest

from flexfa4.schedule import CostModel, FULL, Work, lpt_order, make_schedule, makespan, shortest_first, simulate_deterministic

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import schedule as bench  # noqa: E402

COST = CostModel()


def causal_backward(heads):
    return Work(*bench.spans(bench.causal(8192).T.copy()), batch=1, heads=heads, kv_heads=heads)


def slow_simulation(work, order, workers, descending):
    """The same machine, one tile at a time."""
    free, gate, last = np.zeros(workers), {}, 0.0
    for row in order:
        b, h, _ = (int(x[0]) for x in work.coordinates(np.array([row])))
        mask_row = int(work.mask_rows(np.array([row]))[0])
        tiles = [
            (t, 1.0 if kind == FULL else 1.2)
            for begin, end, kind in work.runs[work.row_ptr[mask_row] : work.row_ptr[mask_row + 1]].tolist()
            for t in range(begin, end)
        ]
        worker = free.argmin()
        now = free[worker] + 2.0
        for t, rate in reversed(tiles) if descending else tiles:
            now = max(now, gate.get((b, h, t), 0.0)) + rate
            gate[b, h, t] = now
        free[worker] = now
        last = max(last, now)
    return last


@pytest.mark.parametrize("descending", [False, True])
def test_the_simulation_agrees_with_one_tile_at_a_time(descending):
    work = causal_backward(2)
    for order in (shortest_first(work, work.costs(COST), 1), lpt_order(work, work.costs(COST), 2)):
        fast = simulate_deterministic(work, order, 20, descending=descending)
        assert fast.makespan == pytest.approx(slow_simulation(work, order, 20, descending))


@pytest.mark.parametrize("heads", [1, 8])
def test_shortest_first_does_not_stall_on_a_causal_mask(heads):
    work = causal_backward(heads)
    costs = work.costs(COST)
    order = shortest_first(work, costs, per_section=4)
    assert sorted(order.tolist()) == list(range(work.rows))
    good = simulate_deterministic(work, order, 132)
    bad = simulate_deterministic(work, lpt_order(work, costs, 4), 132)
    assert good.stalled < 0.01 < bad.stalled
    assert good.makespan < bad.makespan
    assert good.makespan == pytest.approx(makespan(costs[order], 132), rel=0.02)


def test_gantt_draws_a_file(tmp_path):
    pytest.importorskip("matplotlib")
    from flexfa4.schedule.gantt import gantt

    work, per_section = bench.case("causal, 32k", 1)
    path = gantt(make_schedule(work, 132, per_section), tmp_path / "schedule.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
