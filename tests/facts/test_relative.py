"""Masks of q - kv are recognised, and nothing else is."""
import pytest
import torch

from flexfa4.facts.relative import is_relative, small_literals
from flexfa4.trace import bind

table = torch.arange(64) % 3 == 0
offset = 7

RELATIVE = [
    lambda b, h, q, kv: q >= kv,
    lambda b, h, q, kv: (q >= kv) & (q - kv < 256),
    lambda b, h, q, kv: (q - kv).abs() <= 5,
    lambda b, h, q, kv: q + offset >= kv - 3,
    lambda b, h, q, kv: (q - kv) % 4 == 0,
    lambda b, h, q, kv: q - kv < 16 * (h + 1),
    lambda b, h, q, kv: ~(kv > q) | (kv - q == 40),
    lambda b, h, q, kv: torch.where(h == 0, q >= kv, kv >= q),
]
ABSOLUTE = [
    lambda b, h, q, kv: kv < 100,
    lambda b, h, q, kv: (q >= kv) | (kv < 4),
    lambda b, h, q, kv: q + kv > 10,
    lambda b, h, q, kv: q // 4 >= kv // 4,
    lambda b, h, q, kv: 2 * q >= kv,
    lambda b, h, q, kv: table[q] == table[kv],
    lambda b, h, q, kv: q % 2 == kv % 2,
    lambda b, h, q, kv: q * q >= kv * kv,
    lambda b, h, q, kv: (q ^ kv) < 8,
    lambda b, h, q, kv: q.to(torch.int8) >= kv.to(torch.int8),
]


def values(mask, shift):
    at = torch.arange(48) + shift
    return mask(torch.tensor(0), torch.tensor(1), at[:, None], at[None]).broadcast_to(48, 48)


@pytest.mark.parametrize("mask", RELATIVE)
def test_relative(mask):
    assert is_relative(bind(mask, "mask").graph)
    assert torch.equal(values(mask, 0), values(mask, 13))


@pytest.mark.parametrize("mask", ABSOLUTE)
def test_absolute(mask):
    assert not is_relative(bind(mask, "mask").graph)


def test_absolute_ones_change_with_the_position():
    """All but the parity, which is relative without being recognised, and squares, which are so for positions."""
    steady = ABSOLUTE[6:8]
    for mask in ABSOLUTE:
        changed = any(not torch.equal(values(mask, 0), values(mask, shift)) for shift in (1, 4, 90))
        assert changed or mask in steady


@pytest.mark.parametrize("n, small", [(256, True), (-(2**39), True), (2**62, False), (True, True), (float("inf"), False),
                                      (float("nan"), False)])
def test_small_literals(n, small):
    assert small_literals((1, n)) is small
