"""That lookups stay in range is proven once for the same tensors at the same version, and again where anything changed."""
import pytest
import torch

from flexfa4 import flex_attention
from flexfa4.engines.tiled import lookups
from flexfa4.errors import LookupOutOfRange


@pytest.fixture
def proofs(monkeypatch):
    made = []
    real = lookups.bounds
    monkeypatch.setattr(lookups, "bounds", lambda *args: made.append(1) or real(*args))
    lookups._proven.clear()
    return made


def test_once_until_a_table_a_number_or_a_length_changes(proofs):
    q = torch.randn(1, 1, 8, 4)
    which, table = torch.arange(8) % 3, torch.randn(3)
    shift = 0

    def mod(score, b, h, i, j):
        return score + table[which[j] + shift]

    for _ in range(3):
        flex_attention(q, q, q, mod)
    assert len(proofs) == 1
    flex_attention(q[:, :, :5], q, q, mod)
    assert len(proofs) == 2
    which[7] = 3                                     # in place: the same tensor at another version
    with pytest.raises(LookupOutOfRange, match="table"):
        flex_attention(q, q, q, mod)
    which[7] = 2
    flex_attention(q, q, q, mod)
    shift = 1
    with pytest.raises(LookupOutOfRange, match="table"):
        flex_attention(q, q, q, mod)
    shift, table = 0, torch.randn(2)
    with pytest.raises(LookupOutOfRange, match="table"):
        flex_attention(q, q, q, mod)


def test_tensors_without_a_version_are_proven_at_every_call(proofs):
    with torch.inference_mode():
        q, table = torch.randn(1, 1, 8, 4), torch.randn(8)
        for _ in range(2):
            flex_attention(q, q, q, lambda s, b, h, i, j: s + table[j])
    assert len(proofs) == 2


def test_many_calls_keep_few_proofs(proofs, monkeypatch):
    monkeypatch.setattr(lookups, "_KEPT", 4)
    q = torch.randn(1, 1, 4, 4)
    for n in range(4, 12):
        table = torch.randn(n)
        flex_attention(q, q, q, lambda s, b, h, i, j, t=table: s + t[j])
    assert len(lookups._proven) <= 4
