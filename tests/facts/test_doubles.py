"""Which mods need more digits than float32 has: those go to the tiled engine, which has float64, and say so."""
import pytest
import torch

from flexfa4.facts.doubles import needs_doubles
from flexfa4.runtime import engine
from flexfa4.trace import bind

STAMPS = 1.7e9 + 0.01 * torch.arange(64, dtype=torch.float64)
SINGLE = torch.arange(64.0)
RATE = torch.tensor(0.5, dtype=torch.float64)

NEEDED = [
    ("mask", lambda b, h, q, kv: STAMPS[q] >= STAMPS[kv]),
    ("mask", lambda b, h, q, kv: (STAMPS[q] - STAMPS[kv]).float() < 0.1),
    ("mask", lambda b, h, q, kv: STAMPS[kv] < 1.7e9 + 3),
    ("mask", lambda b, h, q, kv: STAMPS[q].long() == STAMPS[kv].long()),
    ("mask", lambda b, h, q, kv: STAMPS[q] // 60 == STAMPS[kv] // 60),
    ("mask", lambda b, h, q, kv: kv.double() * 1e-9 <= q.double() * 1e-9),
    ("score", lambda s, b, h, q, kv: s - RATE * (STAMPS[q] - STAMPS[kv])),
    ("score", lambda s, b, h, q, kv: s + (-STAMPS[q] + STAMPS[kv])),
    ("score", lambda s, b, h, q, kv: s + torch.sin(STAMPS[kv])),
    ("score", lambda s, b, h, q, kv: torch.where(torch.floor(STAMPS[q]) == 0, s, -s)),
    ("out", lambda out, lse, b, h, q: torch.where(STAMPS[q] < 2e9, out, lse)),
]
ENOUGH = [
    ("mask", lambda b, h, q, kv: SINGLE[q] - SINGLE[kv] < 1e-9),
    ("mask", lambda b, h, q, kv: STAMPS[kv] != 0),
    ("mask", lambda b, h, q, kv: SINGLE[q].double() >= SINGLE[kv].double()),
    ("score", lambda s, b, h, q, kv: s * RATE - STAMPS[kv] * (q - kv)),
    ("score", lambda s, b, h, q, kv: torch.where(s * RATE > 1, s, torch.floor(s + STAMPS[kv]))),
    ("score", lambda s, b, h, q, kv: s + torch.exp(-RATE * (q - kv))),
]


@pytest.mark.parametrize("kind, mod", NEEDED)
def test_needed(kind, mod):
    bound = bind(mod, kind)
    assert needs_doubles(bound.graph)
    tensors = [torch.empty(1, 2, 64, 64, dtype=torch.bfloat16)] * 3
    choice = engine.choose("sm90", *tensors, 0.1, (bound,))
    assert choice.plan is None and "test_doubles.py:" in choice.reason and "float64" in choice.reason


@pytest.mark.parametrize("kind, mod", ENOUGH)
def test_not_needed(kind, mod):
    assert not needs_doubles(bind(mod, kind).graph)
