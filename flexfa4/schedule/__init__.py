"""Which worker does what, when: work tiles with costs from spans, their order, KV splits, and a simulator. numpy only."""
from .backward import DeterministicBackward, shortest_first, simulate_deterministic
from .build import Schedule, make_schedule
from .lpt import balanced_sections, lpt_order, natural_order, section_kv_heads
from .simulate import Timeline, latest_end, lower_bound, makespan, simulate
from .work import FULL, PARTIAL, CostModel, Work, WorkTile, row_costs

__all__ = [
    "CostModel", "DeterministicBackward", "FULL", "PARTIAL", "Schedule", "Timeline", "Work", "WorkTile", "balanced_sections",
    "latest_end", "lower_bound", "lpt_order", "make_schedule", "makespan", "natural_order", "row_costs", "section_kv_heads",
    "shortest_first", "simulate", "simulate_deterministic",
]
