"""How long it takes to trace a mod, and to find that an unchanged one need not be traced.

Bars: a ten-op mod traces in under 1 ms; an unchanged mod is recognised in under 5 us. Best of several rounds, one thread.

    python benchmarks/trace_time.py
"""
from __future__ import annotations

import functools
import sys
import time
from pathlib import Path

import torch
from torch.nn.attention.flex_attention import and_masks

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from flexfa4.trace import bind, fingerprint, trace  # noqa: E402

TRACE_BAR_US, BIND_BAR_US = 1000.0, 5.0
LENGTH, HEADS = 128, 8


def microseconds(call, rounds: int = 7, seconds: float = 0.05) -> float:
    """Best mean time of one call over several rounds."""
    call()
    start = time.perf_counter()
    call()
    repeat = max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        best = min(best, (time.perf_counter() - start) / repeat)
    return best * 1e6


class Band:
    def __init__(self, low: torch.Tensor, high: int):
        self.low, self.high = low, high

    def __call__(self, b, h, q, k):
        return (q - k >= self.low[h]) & (q - k < self.high)


def mods() -> dict[str, tuple]:
    """name -> (kind, mod), from the plainest to a ten-op mod."""
    document = torch.arange(LENGTH) // 20
    bias = torch.randn(HEADS, 2 * LENGTH)
    window = 33

    def causal(b, h, q, k):
        return q >= k

    def same_document(b, h, q, k):
        return document[q] == document[k]

    def ten_ops(score, b, h, q, k):
        biased = score * 2.5 + bias[h, q - k + LENGTH]
        near = ((q - k).abs() < window) & (document[q] == document[k])
        return torch.where(near, torch.tanh(biased), biased)

    def windowed(b, h, q, k, *, width):
        return q - k < width

    return {
        "causal": ("mask", causal),
        "and_masks(causal, document)": ("mask", and_masks(causal, same_document)),
        "partial": ("mask", functools.partial(windowed, width=9)),
        "callable object": ("mask", Band(torch.zeros(HEADS, dtype=torch.long), 40)),
        "ten ops": ("score", ten_ops),
    }


def main() -> int:
    torch.set_num_threads(1)
    print(f"{'mod':<30}{'trace us':>10}{'unchanged us':>14}{'fingerprint us':>16}")
    worst = {}
    for name, (kind, mod) in mods().items():
        held = bind(mod, kind)
        row = (microseconds(lambda m=mod, k=kind: trace(m, k)), microseconds(lambda m=mod, k=kind: bind(m, k)),
               microseconds(lambda m=mod, k=kind: fingerprint(m, k)))
        assert bind(mod, kind) is held
        worst[name] = row
        print(f"{name:<30}{row[0]:>10.0f}{row[1]:>14.2f}{row[2]:>16.2f}")
    slow_trace = max(r[0] for r in worst.values())
    slow_bind = max(r[1] for r in worst.values())
    print(f"trace: worst {slow_trace:.0f} us, bar {TRACE_BAR_US:.0f} us: {'met' if slow_trace < TRACE_BAR_US else 'MISSED'}")
    print(f"unchanged: worst {slow_bind:.2f} us, bar {BIND_BAR_US:.0f} us: {'met' if slow_bind < BIND_BAR_US else 'MISSED'}")
    return 0 if slow_trace < TRACE_BAR_US and slow_bind < BIND_BAR_US else 1


if __name__ == "__main__":
    from command_line import check

    check(__doc__)
    sys.exit(main())
