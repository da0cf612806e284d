"""The grid of the emulator's tests on a GPU: a few calls of each part of benchmarks/kernel_grid.py, a process a part, side by
side."""
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from one_size import NEEDS_A_KERNEL

from flexfa4.runtime import engine

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import kernel_grid  # noqa: E402

pytestmark = [pytest.mark.gpu, NEEDS_A_KERNEL]
# Part -> the words of its process, and how many calls they are.
SHARES = {
    "cases": (("kernel_grid.py", "cases", "case04_three_heads_per_kv_short", "case19_bit_packed_table",
               "case43_state_changes_between_calls", "case59_q_k_v_same_tensor"), 5),
    "lengths": (("kernel_grid.py", "lengths", "6/36"), 12),
    "graphs": (("kernel_grid.py", "graphs", "2", "1"), 2),
    "scores": (("kernel_grid.py", "scores", "2", "1"), 2),
    "captures": (("kernel_grid.py", "captures", "1/30"), 4),
    "packed": (("kernel_grid.py", "packed", "0/14"), 4),
    "forward": (("forward_emulated.py", "plain", "D=256, documents", "split, parts without keys", "packed 3 x 17",
                 "clc, in order", "bias on a grid"), 6),
}


def wrong_in(place: str) -> dict[str, list]:
    """What each part has against the shares, run in a place as forward_emulated.py names it; empty lists where all is well."""
    with ThreadPoolExecutor(min(len(SHARES), len(os.sched_getaffinity(0)))) as pool:
        ran = dict(zip(SHARES, pool.map(lambda share: kernel_grid.rows_of(place, *share[0]), SHARES.values())))
    wrong = {}
    for part, rows in ran.items():
        if isinstance(rows, kernel_grid.Failed):
            wrong[part] = [rows.message]
            continue
        calls = kernel_grid.each(rows)
        wrong[part] = [(call, row) for call, row in calls.items() if not kernel_grid.within(row, kernel_grid.MOST)]
        wrong[part] += [f"{len(calls)} calls"] * (len(calls) != SHARES[part][1])
    return wrong


def test_calls_of_every_part_agree_with_float64():
    kernel = engine.architecture(torch.device("cuda", torch.cuda.current_device()))
    wrong = wrong_in(f"{kernel}-gpu")
    assert wrong.keys() == kernel_grid.PARTS.keys() and not any(wrong.values()), wrong
