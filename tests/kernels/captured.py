"""Mods that look up a captured tensor: every type, lying in memory in every way, at every kind of index that the kernels tell
apart. Values are small whole numbers, which all types hold."""

from __future__ import annotations

from typing import Callable

import torch

TYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
         torch.float32, torch.float64)  # fmt: skip
HEADS, LENGTH = 4, 460


def dense(t: torch.Tensor) -> torch.Tensor:
    return t


def every_other(t: torch.Tensor) -> torch.Tensor:
    room = torch.zeros(*t.shape[:-1], 2 * t.shape[-1], dtype=t.dtype)
    room[..., ::2] = t
    return room[..., ::2]


def offset(t: torch.Tensor) -> torch.Tensor:
    """Rows of an odd length, which begin at an odd place."""
    room = torch.zeros(*t.shape[:-1], t.shape[-1] + 3, dtype=t.dtype)
    room[..., 3:] = t
    return room[..., 3:]


def transposed(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(0, -1).contiguous().transpose(0, -1)


def one_for_all_heads(t: torch.Tensor) -> torch.Tensor:
    return t[:1].contiguous().expand(t.shape)


LAYOUTS = dense, every_other, offset, transposed, one_for_all_heads


# The index is ...


def of_key(t):
    return dict(score_mod=lambda s, b, h, q, kv: s + 0.25 * t[h, kv])


def of_distance(t):
    return dict(score_mod=lambda s, b, h, q, kv: s + 0.25 * t[h, q - kv + LENGTH])


def of_distance_in_the_middle(t):
    return dict(score_mod=lambda s, b, h, q, kv: 3.0 * torch.tanh((s + 0.25 * t[h, (2 * (q - kv) + LENGTH).clamp(0, 459)]) / 3.0))


def of_grid(t):
    return dict(score_mod=lambda s, b, h, q, kv: s + 0.25 * t[h, (kv // 20 - q // 20) * 30 + kv % 20 - q % 20 + 300])


def of_row(t):
    return dict(score_mod=lambda s, b, h, q, kv: s * (1.0 + 0.125 * t[h, q]) + 0.25 * t[h, q])


def of_two_lines(t):
    """A distance beside a key, and another distance; of int64, numbers that differ in their upper halves alone."""
    wide = t * 2**32 if t.dtype is torch.int64 else t

    def score(s, b, h, q, kv):
        return torch.where(wide[h, q - kv + LENGTH] == wide[h, kv], s * 0.5, s) + 0.25 * t[h, kv - q + LENGTH]

    return dict(score_mod=score)


def of_two_masked_lines(t):
    wide = t * 2**32 if t.dtype is torch.int64 else t
    return dict(mask_mod=lambda b, h, q, kv: (wide[h, q - kv + LENGTH] == wide[h, kv]) & (kv <= q + 100) | (kv == q))


def of_sum(t):
    return dict(score_mod=lambda s, b, h, q, kv: s + 0.25 * t[h, q + kv])


def of_both(t):
    return dict(score_mod=lambda s, b, h, q, kv: torch.where(t[h, (q * 7 + kv * kv) % 450] != 0, s * 0.5, s + 0.25 * t[h, kv]))


def of_labels(t):
    return dict(mask_mod=lambda b, h, q, kv: (t[h, q] == t[h, kv]) | (kv == q))


def of_masked_key(t):
    return dict(mask_mod=lambda b, h, q, kv: (t[h, kv] + t[h, q] != 1) | (kv == q))


def of_masked_distance(t):
    return dict(mask_mod=lambda b, h, q, kv: (t[h, q - kv + LENGTH] != 0) | (kv == q))


ROLES = (of_key, of_distance, of_distance_in_the_middle, of_grid, of_row, of_two_lines, of_two_masked_lines, of_both, of_labels,
         of_masked_key, of_masked_distance, of_sum)  # fmt: skip


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """[HEADS, 2 * LENGTH]."""
    low, high = (0, 2) if dtype is torch.bool else (0, 9) if dtype is torch.uint8 else (-4, 5)
    return torch.randint(low, high, (HEADS, 2 * LENGTH), generator=torch.Generator().manual_seed(1)).to(dtype)


# float64 values are not compared in a kernel.
COMPARING = of_two_lines, of_two_masked_lines, of_labels, of_masked_key


def every() -> list[tuple[str, dict[str, Callable]]]:
    """(name, mods) of every type in every role, one way of lying each; role by role."""
    made = []
    for i, role in enumerate(ROLES):
        for k, dtype in enumerate(TYPES[:-1] if role in COMPARING else TYPES):
            layout = LAYOUTS[(i + k) % len(LAYOUTS)]
            names = str(dtype).removeprefix("torch."), layout.__name__, role.__name__
            made.append((" ".join(names).replace("_", " "), role(layout(numbers(dtype)))))
    return made


def many(score: torch.Tensor, b, h, q, kv) -> torch.Tensor:
    """Forty captured tensors, as many numbers of every type, a hundred literals."""
    for i, (table, number) in enumerate(zip(TABLES, NUMBERS)):
        score = score + table[h if i % 2 else kv] + 0.05 * number * torch.where(kv % 2 == 0, 1.0, -1.0)
    for i in range(100):
        score = score + torch.where(kv == 3 * i, 0.01 * i + 0.005, 0.0)
    return score


TABLES = [torch.randn(LENGTH, generator=torch.Generator().manual_seed(i)) * 0.1 for i in range(40)]
NUMBERS = [torch.tensor(i % 7 - 3 * (TYPES[i % 10].is_signed), dtype=TYPES[i % 10]) for i in range(40)]
