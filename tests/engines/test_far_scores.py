"""Rows whose scores are all huge in size: masks written as numbers; a fully masked row is the average of what it sees."""
import pytest
import torch

from flexfa4 import flex_attention
from flexfa4.mods import causal_mask

LEAST = torch.finfo(torch.float32).min
ROWS, KEYS, DIM = 100, 300, 16


def written(value):
    """A mask as a number: every other row sees nothing, so that its scores are all `value`."""
    return lambda score, b, h, q, kv: torch.where((q % 2 == 0) & (kv % 3 == 0), score, value)


def alike(value):
    """Half of the rows are far from 0, all of their keys alike."""
    return lambda score, b, h, q, kv: torch.where(q % 2 == 0, score, value)


def steep(score, b, h, q, kv):
    return 0.0 * score + 1e6 * (kv - q)


MODS = {"-1e5": written(-1e5), "-1e10": written(-1e10), "-1e30": written(-1e30), "the least number": written(LEAST),
        "1e10": alike(1e10), "1e38": alike(1e38), "steep": steep}


def dense(q, k, v, mod, keep):
    """(out, lse) in float64."""
    rows, keys = torch.arange(ROWS).view(-1, 1), torch.arange(KEYS)
    scores = mod(q @ k.mT * DIM**-0.5, 0, 0, rows, keys)
    scores = scores.masked_fill(~keep(0, 0, rows, keys), -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def everything(b, h, q, kv):
    return kv >= 0


@pytest.mark.parametrize("mask", [everything, causal_mask])
@pytest.mark.parametrize("mod", MODS.values(), ids=MODS)
def test_output_lse_and_gradients_are_those_of_float64(mod, mask):
    gen = torch.Generator().manual_seed(0)
    q, k, v, d_out = (torch.randn(1, 2, n, DIM, generator=gen) for n in (ROWS, KEYS, KEYS, ROWS))
    ours = [t.clone().requires_grad_() for t in (q, k, v)]
    theirs = [t.double().requires_grad_() for t in (q, k, v)]
    out, lse = flex_attention(*ours, score_mod=mod, mask_mod=mask, return_lse=True)
    want, want_lse = dense(*theirs, mod, mask)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-6, atol=1e-5)
    got = torch.autograd.grad(out, ours, d_out)
    for grad, expected in zip(got, torch.autograd.grad(want, theirs, d_out.double())):
        torch.testing.assert_close(grad.double(), expected, rtol=1e-4, atol=1e-4)


def test_far_scores_of_a_plain_product():
    """Queries so long that scores reach 1e10, without a score graph."""
    gen = torch.Generator().manual_seed(1)
    q, k, v, d_out = (torch.randn(1, 2, n, DIM, generator=gen) for n in (ROWS, KEYS, KEYS, ROWS))
    q[:, :, ::2], k[:, :, :, 0] = torch.tensor([2.0**34] + [0.0] * (DIM - 1)), 1.0
    ours = [t.clone().requires_grad_() for t in (q, k, v)]
    theirs = [t.double().requires_grad_() for t in (q, k, v)]
    out = flex_attention(*ours)
    want, _ = dense(*theirs, lambda score, b, h, q, kv: score, everything)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    # The gradient of the keys has the queries' 2^34 in it.
    for i in (0, 2):
        grad, = torch.autograd.grad(out, ours[i], d_out, retain_graph=True)
        expected, = torch.autograd.grad(want, theirs[i], d_out.double(), retain_graph=True)
        torch.testing.assert_close(grad.double(), expected, rtol=1e-4, atol=1e-4)


TERMS = {"a capture": lambda r, q: r[q], "a function": lambda r, q: torch.exp(r[q]) - 3.0 * r[q],
         "a product": lambda r, q: r[q] * (0.5 * q) + torch.tensor(2.0)}


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
def test_terms_of_the_row_keep_the_gradient_of_the_lse(term):
    """They leave the output as it is, and get all of their gradient through the LSE; a row that they hide gets none."""
    gen = torch.Generator().manual_seed(2)
    q, k, v, d_out = (torch.randn(1, 2, n, DIM, generator=gen) for n in (ROWS, KEYS, KEYS, ROWS))
    rows, d_lse = torch.randn(ROWS, generator=gen), torch.randn(1, 2, ROWS, generator=gen)
    ours = [t.clone().requires_grad_() for t in (q, k, v, rows)]
    theirs = [t.double().requires_grad_() for t in (q, k, v, rows)]

    def mod(r):
        return lambda score, b, h, q, kv: score + torch.where(q % 7 == 3, -torch.inf, term(r, q))

    out, lse = flex_attention(*ours[:3], score_mod=mod(ours[3]), return_lse=True)
    live = torch.arange(ROWS) % 7 != 3
    at = torch.arange(ROWS)
    scores = theirs[0] @ theirs[1].mT * DIM**-0.5
    want, want_lse = scores.softmax(-1) @ theirs[2], scores.logsumexp(-1) + term(theirs[3], at)
    assert (out[:, :, ~live] == 0).all() and (lse[:, :, ~live] == -torch.inf).all()
    torch.testing.assert_close(out[:, :, live].double(), want[:, :, live], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse[:, :, live].double(), want_lse[:, :, live], rtol=1e-6, atol=1e-5)
    got = torch.autograd.grad(((out * d_out).sum(-1) + lse * d_lse)[:, :, live].sum(), ours)
    expected = torch.autograd.grad(((want * d_out).sum(-1) + want_lse * d_lse)[:, :, live].sum(), theirs)
    for grad, right in zip(got, expected):
        torch.testing.assert_close(grad.double(), right, rtol=1e-4, atol=1e-4)
