"""A picture of a schedule: one bar a work tile, one line a worker (needs matplotlib)."""
from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from .build import Schedule
from .work import UNSPLIT


def gantt(schedule: Schedule, path: str | Path, title: str = "") -> Path:
    """Draw the timeline to `path` (PNG, SVG or PDF by its suffix) and return it. Colour is the head; split pieces are hatched;
    the dashed line is the work shared evenly, the solid one the makespan."""
    line = schedule.timeline
    figure = Figure(figsize=(11, 1.5 + 0.028 * schedule.workers), layout="constrained")
    axes = figure.add_subplot()
    heads = schedule.tiles[:, 0].astype(np.int64) * (schedule.tiles[:, 1].max(initial=0) + 1) + schedule.tiles[:, 1]
    colours = matplotlib.colormaps["viridis"](heads / max(1, int(heads.max(initial=0))))
    split = schedule.tiles[:, 5] != UNSPLIT
    for chosen, style in ((~split, {"edgecolor": "white", "linewidth": 0.2}),
                          (split, {"edgecolor": "crimson", "linewidth": 0.6, "hatch": "////"})):
        axes.barh(line.worker[chosen], (line.end - line.start)[chosen], left=line.start[chosen], height=0.9,
                  color=colours[chosen], **style)
    axes.axvline(schedule.bound, color="black", linestyle="--", linewidth=1, label=f"total / P = {schedule.bound:.1f}")
    axes.axvline(schedule.makespan, color="black", linewidth=1, label=f"makespan = {schedule.makespan:.1f}")
    axes.set_xlabel("time, in full tiles")
    axes.set_ylabel("worker")
    axes.set_ylim(-1, schedule.workers)
    axes.set_title(title or f"{schedule.strategy}: {len(schedule)} work tiles on {schedule.workers} workers")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    return Path(path)
