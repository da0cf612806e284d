"""Hidden lanes stay hidden whatever they hold, and both forms of the online softmax are right for scores of any size."""
import math

import pytest
import torch

import flexfa4
from flexfa4 import reference
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
@pytest.mark.parametrize("poison", [NAN, INF, -INF, 3e38])
@pytest.mark.parametrize("rows, visible", [(64, 40), (192, 150), (5, 1)])
def test_keys_that_nobody_sees_may_hold_anything(score_mod, poison, rows, visible):
    """A cache with room to spare is not initialised: neither its keys nor its values."""
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, rows + 10, 16, generator=g) for _ in range(3))
    up = torch.randn(1, 2, rows + 10, 16, generator=g)

    def run(*tensors, **options):
        leaves = [t.clone().requires_grad_() for t in tensors]
        out, lse = flexfa4.flex_attention(*leaves, score_mod=score_mod, return_lse=True, **options)
        return [out, lse, *torch.autograd.grad((out * up).sum() + lse.sum(), leaves)]

    good = run(q, k[:, :, :visible], v[:, :, :visible])
    k[:, :, visible:], v[:, :, visible:] = poison, poison
    found = run(q, k, v, mask_mod=lambda b, h, i, j: j < visible)
    for name, a, b in zip(("out", "lse", "dq"), found, good):
        assert torch.allclose(a, b, atol=1e-4), name
    for a, b in zip(found[3:], good[3:]):
        assert torch.allclose(a[:, :, :visible], b, atol=1e-4) and not a[:, :, visible:].any()


def test_a_capture_whose_derivative_is_infinite_where_nobody_looks():
    """sqrt at 0 and the logarithm of 0, at hidden keys: 0 times infinity is in no gradient, also of an entry that others read."""
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 150, 8, generator=g, dtype=torch.float64) for _ in range(3))
    table = torch.rand(2, 150, generator=g, dtype=torch.float64)
    table[:, 90:] = 0.0
    rate = torch.tensor([0.5, 2.0], dtype=torch.float64)

    def gradients(attention, **options):
        leaves = [t.clone().requires_grad_() for t in (q, table, rate)]
        queries, roots, rates = leaves

        def edit(s, b, h, i, j):
            return s + torch.sqrt(roots[h, j]) + rates[h] * torch.log(roots[h, j] * rates[h])

        return torch.autograd.grad(attention(queries, edit, **options).cos().sum(), leaves)

    got = gradients(lambda t, edit: flexfa4.flex_attention(t, k, v, edit, mask_mod=lambda b, h, i, j: (j < 90) & (j <= i)))
    want = gradients(lambda t, edit: reference.attention(t, k[:, :, :90], v[:, :, :90], edit, lambda b, h, i, j: j <= i)[0])
    for a, b in zip(got, want):
        assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_values_reach_the_rows_that_see_them_and_no_others(poison):
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 200, 16, generator=g, dtype=torch.float64) for _ in range(3))
    v[0, 0, 130, 3] = poison
    q.requires_grad_()
    out = flexfa4.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: j <= i)
    seen = torch.arange(200)[:, None] >= torch.arange(200)
    want, _ = dense(q, k, v.nan_to_num(0.0, 0.0, 0.0), seen)
    want = want.detach().clone()
    want[0, 0, 130:, 3] = poison
    assert torch.allclose(out, want, atol=1e-12, equal_nan=True)
    (dq,) = torch.autograd.grad(out[0, 0, :130].sum() + out[0, 1].sum(), q)
    assert dq[0, 0, :130].isfinite().all() and dq[0, 1].isfinite().all()


def test_a_column_that_sees_both_infinities_is_nan():
    q = k = torch.zeros(1, 1, 4, 8)
    v = torch.ones(1, 1, 4, 8)
    v[0, 0, 1, 0], v[0, 0, 2, 0] = INF, -INF
    out = flexfa4.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: j <= i)[0, 0, :, 0]
    assert out[0] == 1 and out[1] == INF and out[2].isnan() and out[3].isnan()


def test_a_query_row_without_keys_may_hold_anything():
    """Padding of a batch: its row sees nothing and must not reach the gradient of the keys."""
    q, k, v = (torch.randn(1, 1, 40, 8) for _ in range(3))
    q[:, :, 30:] = NAN
    k.requires_grad_()
    out = flexfa4.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: (i < 30) & (j <= i))
    (dk,) = torch.autograd.grad(out.sum(), k)
    assert dk.isfinite().all() and not out[:, :, 30:].any()
