"""Hidden lanes stay hidden whatever they hold, and both forms of the online softmax are right for scores of any size."""
import math

import pytest
import torch

import flexfa4
from flexfa4.engines.tiled.hiding import Hidden, Lanes, clear, hide

INF, NAN = math.inf, math.nan


def tile_and_hidden():
    tile = torch.tensor([[1.0, NAN, 3.0, INF], [NAN, 2.0, -INF, 4.0], [5.0, INF, 6.0, 7.0]])
    lanes = torch.tensor([[False, True, False], [True, False, True], [False, True, False]])
    return tile, [Hidden(slice(0, 3), Lanes(lanes, torch.float32))]


def test_hide():
    tile, hidden = tile_and_hidden()
    hide(tile, hidden)
    want = torch.tensor([[1.0, -INF, 3.0, INF], [-INF, 2.0, -INF, 4.0], [5.0, -INF, 6.0, 7.0]])
    assert torch.equal(tile, want)


def test_hide_keeps_a_nan_that_is_seen():
    tile, hidden = tile_and_hidden()
    tile[2, 2] = NAN
    hide(tile, hidden)
    assert tile.isnan().sum() == 1 and tile[2, 2].isnan()


def test_clear():
    tile, hidden = tile_and_hidden()
    tile = torch.where(torch.isfinite(tile), tile, NAN)
    tile[1, 2] = 0.0
    clear(tile, hidden)
    want = torch.tensor([[1.0, 0.0, 3.0, NAN], [0.0, 2.0, 0.0, 4.0], [5.0, 0.0, 6.0, 7.0]])
    assert torch.equal(tile.nan_to_num(-1.0), want.nan_to_num(-1.0))


def dense(q, k, v, seen):
    scores = (q.double() @ k.double().mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -INF)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return weights @ v.double(), torch.logsumexp(scores, -1)


@pytest.mark.parametrize("rows", [5, 200])
@pytest.mark.parametrize("size", [1.0, 60.0])
def test_scores_of_any_size(rows, size):
    """Norms of 8 and less take the form without a maximum where there are 64 rows; 60 times as long ones cannot."""
    g = torch.Generator().manual_seed(rows)
    q, k, v = (torch.randn(2, 3, n, 32, generator=g, requires_grad=True) for n in (rows, 300, 300))
    seen = torch.arange(rows)[:, None] + 40 >= torch.arange(300)[None]
    seen[3] = False
    scaled = q * size
    out, lse = flexfa4.flex_attention(scaled, k, v, mask_mod=lambda b, h, i, j: (i + 40 >= j) & (i != 3), return_lse=True)
    want, want_lse = dense(scaled, k, v, seen)
    assert torch.allclose(out.double(), want, atol=2e-5 * size, rtol=1e-5)
    assert torch.equal(lse == -INF, want_lse == -INF)
    finite = want_lse > -INF
    assert torch.allclose(lse[finite].double(), want_lse[finite], atol=1e-5 * size, rtol=1e-6)
    up = torch.randn(out.shape, generator=g)
    got = torch.autograd.grad(out, (q, k, v), up, retain_graph=True)
    for a, b in zip(got, torch.autograd.grad(want, (q, k, v), up.double())):
        assert torch.allclose(a, b, atol=3e-4 * size, rtol=1e-4)


@pytest.mark.parametrize("score_mod", [None, lambda s, b, h, i, j: s * 2.0])
@pytest.mark.parametrize("poison", [NAN, INF, 3e38])
def test_keys_that_nobody_sees_may_hold_anything(score_mod, poison):
    """A cache with room to spare is not initialised; position 150 on is hidden from every row."""
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 192, 16, generator=g) for _ in range(3))
    good = flexfa4.flex_attention(q, k[:, :, :150], v[:, :, :150], score_mod=score_mod)
    k[:, :, 150:] = poison
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out = flexfa4.flex_attention(*leaves, score_mod=score_mod, mask_mod=lambda b, h, i, j: j < 150)
    assert torch.allclose(out, good, atol=1e-5)
    dv = torch.autograd.grad(out.sum(), leaves[2])[0]
    assert dv[:, :, 150:].abs().max() == 0 and dv.isfinite().all()
