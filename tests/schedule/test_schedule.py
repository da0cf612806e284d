"""Orders, splits and bounds, on spans made here by formula."""
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4.schedule import (FULL, PARTIAL, CostModel, Work, latest_end, lower_bound, lpt_order, make_schedule, makespan,
                              natural_order, row_costs, section_kv_heads, simulate)
from flexfa4.schedule.lpt import balanced_sections
from flexfa4.schedule.work import UNSPLIT

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import schedule as bench  # noqa: E402

COST = CostModel()


def random_kinds(rng, rows, columns):
    return rng.choice(np.array([0, 0, PARTIAL, FULL], np.int8), size=(rows, columns))


@pytest.mark.parametrize("workers", [148, 132])
@pytest.mark.parametrize("heads", [16, 1])
@pytest.mark.parametrize("name", list(bench.FAMILIES))
def test_makespan_is_within_five_tiles_of_the_even_share(name, heads, workers):
    work, per_section = bench.case(name, heads)
    schedule = make_schedule(work, workers, per_section)
    costs = work.costs(COST)
    assert schedule.makespan <= costs.sum() / workers + 5
    assert schedule.makespan <= makespan(costs, workers) + 1e-6
    check_coverage(work, schedule)


@pytest.mark.parametrize("rows, tiles, split", [(4172, 9, False), (4152, 9, True)])
def test_rows_are_split_only_where_it_saves_three_tiles(rows, tiles, split):
    """31 rounds of a window's rows and most of another, where splits save 1.7 and 3.7 tiles."""
    runs = np.tile(np.array([[0, 1, PARTIAL], [1, tiles - 1, FULL], [tiles - 1, tiles, PARTIAL]], np.int32), (rows, 1))
    schedule = make_schedule(Work(3 * np.arange(rows + 1, dtype=np.int32), runs, 1, 1, 1), 132)
    assert (schedule.parts > 0) == split


def check_coverage(work, schedule):
    """Every tile of every row exactly once; costs as the model says; parts of a row in ascending slots."""
    seen = {}
    for record, charged in zip(schedule.tiles.tolist(), schedule.costs.tolist()):
        b, h, q, begin, end, part = record
        seen.setdefault((b, h, q), []).append((begin, end, part))
        row = np.array([(b * work.heads + h) * work.q_tiles + q])
        mask_row = int(work.mask_rows(row)[0])
        runs = work.runs[work.row_ptr[mask_row]:work.row_ptr[mask_row + 1]]
        clipped = np.clip(runs[:, 1], begin, end) - np.clip(runs[:, 0], begin, end)
        expected = 2.0 + (0.5 if part != UNSPLIT else 0) + (clipped * np.where(runs[:, 2] == FULL, 1.0, 1.2)).sum()
        assert charged == pytest.approx(expected)
    assert len(seen) == work.rows
    slots = {tuple(row): range(schedule.combine_ptr[i], schedule.combine_ptr[i + 1])
             for i, row in enumerate(schedule.combine_rows.tolist())}
    for (b, h, q), pieces in seen.items():
        pieces.sort()
        mask_row = int(work.mask_rows(np.array([(b * work.heads + h) * work.q_tiles + q]))[0])
        runs = work.runs[work.row_ptr[mask_row]:work.row_ptr[mask_row + 1]]
        first, last = (runs[0, 0], runs[-1, 1]) if len(runs) else (0, 0)
        assert pieces[0][0] == first and pieces[-1][1] == last
        assert all(left[1] == right[0] for left, right in zip(pieces, pieces[1:]))
        if len(pieces) == 1:
            assert pieces[0][2] == UNSPLIT and (b, h, q) not in slots
        else:
            assert [p[2] for p in pieces] == list(slots[b, h, q])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 12), columns=st.integers(1, 60), workers=st.integers(1, 20),
       batch=st.integers(1, 2), kv_heads=st.integers(1, 3), group=st.integers(1, 3), per_head=st.booleans())
def test_any_spans_are_covered_and_never_worse_than_natural(seed, rows, columns, workers, batch, kv_heads, group, per_head):
    heads = kv_heads * group
    mask_heads = heads if per_head else 1
    row_ptr, runs = bench.spans(random_kinds(np.random.default_rng(seed), rows * mask_heads, columns))
    work = Work(row_ptr, runs, batch, heads, kv_heads, mask_heads=mask_heads)
    schedule = make_schedule(work, workers, per_section=1)
    check_coverage(work, schedule)
    assert schedule.makespan <= makespan(work.costs(COST), workers) + 1e-9
    assert schedule.makespan >= lower_bound(work.costs(COST), workers, splittable=True) - 1e-9


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 100), max_size=60), st.integers(1, 9))
def test_no_order_ends_after_its_bound(costs, workers):
    assert makespan(costs, workers) <= latest_end(np.array(costs), workers) * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.2, 3.2, 11.4, 11.4, 90.0]), st.integers(1, 80)), max_size=8), st.integers(1, 9))
def test_many_of_one_cost_end_when_each_by_itself_would(groups, workers):
    costs = np.repeat([c for c, _ in groups], [n for _, n in groups])
    assert makespan(costs, workers) == pytest.approx(simulate(costs, workers).makespan, rel=1e-12)


def test_an_order_whose_end_is_near_is_the_only_one_simulated(monkeypatch):
    """A window's rows at 131,072 tokens, of 16 heads: the last row alone is 0.8% of what a worker has."""
    runs = np.tile(np.array([[0, 1, PARTIAL], [1, 8, FULL], [8, 9, PARTIAL]], np.int32), (1024, 1))
    work = Work(3 * np.arange(1025, dtype=np.int32), runs, 1, 16, 16)
    costs = work.costs(COST)
    assert latest_end(costs, 128) > (1 + 1 / 256) * costs.sum() / 128
    asked = []
    monkeypatch.setattr("flexfa4.schedule.build.makespan", lambda *given: asked.append(given) or makespan(*given))
    schedule = make_schedule(work, 128, 16)
    assert len(asked) == 1 and schedule.makespan == pytest.approx(costs.sum() / 128) and schedule.parts == 0


@pytest.mark.parametrize("name", ["causal, 32k", "window 1024, 32k"])
def test_an_order_near_the_bound_for_all_is_not_simulated(monkeypatch, name):
    work, _ = bench.case(name, 64)
    expected = makespan(work.costs(COST)[lpt_order(work, work.costs(COST), 8)], 20)
    monkeypatch.setattr("flexfa4.schedule.build.makespan", lambda *_: pytest.fail("simulated"))
    schedule = make_schedule(work, 20, 8)
    assert schedule.makespan == pytest.approx(expected, rel=1e-12)
    assert expected <= (1 + 1 / 256) * work.costs(COST).sum() / 20
    assert schedule.parts == 0 and schedule.strategy == "longest first"


def test_row_costs_count_tiles_by_kind():
    row_ptr, runs = bench.spans(np.array([[FULL, FULL, PARTIAL, 0, FULL], [0, 0, 0, 0, 0], [PARTIAL, 0, 0, 0, PARTIAL]], np.int8))
    assert runs.tolist() == [[0, 2, FULL], [2, 3, PARTIAL], [4, 5, FULL], [0, 1, PARTIAL], [4, 5, PARTIAL]]
    assert row_costs(row_ptr, runs, COST).tolist() == pytest.approx([2 + 3 + 1.2, 2, 2 + 2.4])


def test_makespan_agrees_with_a_scan_over_workers():
    costs = np.random.default_rng(3).random(200)
    free = np.zeros(7)
    for c in costs:
        free[free.argmin()] += c
    assert makespan(costs, 7) == pytest.approx(free.max())
    line = simulate(costs, 7)
    assert line.makespan == pytest.approx(free.max())
    ptr, items = line.static_lists()
    for w in range(7):
        mine = items[ptr[w]:ptr[w + 1]]
        assert (line.worker[mine] == w).all()
        assert np.allclose(line.start[mine][1:], line.end[mine][:-1])


def test_lpt_descends_inside_sections_and_keeps_groups_together():
    work = Work(*bench.spans(bench.causal(2048)), batch=2, heads=8, kv_heads=4)
    costs = work.costs(COST)
    order = lpt_order(work, costs, per_section=2)
    assert sorted(order.tolist()) == natural_order(work).tolist()
    b, h, q = work.coordinates(order)
    kv_head = b * 4 + h // 2
    section = balanced_sections(8, 2)[kv_head]
    assert (np.diff(section) >= 0).all()
    for s in range(4):
        assert (np.diff(costs[order][section == s]) <= 0).all()
    # Both query heads of a KV head stand next to each other at every q_tile.
    assert (kv_head.reshape(-1, 2)[:, 0] == kv_head.reshape(-1, 2)[:, 1]).all()
    assert (q.reshape(-1, 2)[:, 0] == q.reshape(-1, 2)[:, 1]).all()


def test_sections_are_balanced_and_sized_by_cache():
    assert np.bincount(balanced_sections(16, 3)).tolist() == [3, 3, 3, 3, 2, 2] or \
        sorted(np.bincount(balanced_sections(16, 3)).tolist()) == [2, 2, 3, 3, 3, 3]
    assert section_kv_heads(32768, 128, 128, 2) == 3           # 16.8 MB a head in half of 126 MB
    assert section_kv_heads(1 << 22, 128, 128, 2) == 1


def test_one_long_row_is_spread_over_every_worker():
    work = Work(np.array([0, 1], np.int32), np.array([[0, 8192, FULL]], np.int32), batch=1, heads=2, kv_heads=2)
    schedule = make_schedule(work, 148)
    assert schedule.strategy.endswith("split")
    assert schedule.makespan <= 2 * 8194 / 148 + 5
    check_coverage(work, schedule)
    whole = make_schedule(work, 148, split=False)
    assert whole.makespan == 8194 and whole.parts == 0


def test_orders_131k_tokens_by_16_heads_in_milliseconds():
    import time
    work = Work(*bench.spans(bench.causal(131072)), batch=1, heads=16, kv_heads=4)
    best = {"order": 1.0, "all": 1.0}
    for _ in range(5):
        began = time.perf_counter()
        lpt_order(work, work.costs(COST), 4)
        between = time.perf_counter()
        make_schedule(work, 148, 4)
        best["order"] = min(best["order"], between - began)
        best["all"] = min(best["all"], time.perf_counter() - between)
    # Ten times what one idle core needs, so that a loaded machine does not fail it.
    assert best["order"] < 0.005
    assert best["all"] < 0.15


@pytest.mark.parametrize("change, message", [
    ({"kv_heads": 3}, "8 heads are no multiple of 3 KV heads"),
    ({"mask_heads": 4}, "do not broadcast to 1 x 8"),
    ({"mask_heads": 8}, "do not divide by mask batch 1 x heads 8"),
])
def test_counts_that_do_not_fit_are_refused(change, message):
    row_ptr, runs = bench.spans(np.full((4, 4), FULL, np.int8))
    with pytest.raises(ValueError, match=message):
        Work(row_ptr, runs, **{"batch": 1, "heads": 8, "kv_heads": 8, **change})


def test_empty_work():
    work = Work(np.zeros(1, np.int32), np.zeros((0, 3), np.int32), batch=1, heads=4, kv_heads=4)
    schedule = make_schedule(work, 132)
    assert len(schedule) == 0 and schedule.makespan == 0 and schedule.parts == 0
