"""torch.func over flex_attention: grad, vmap and their compositions against the dense reference; what is refused, and how."""
import pytest
import torch
from torch.autograd import forward_ad

from flexfa4 import create_block_mask, flex_attention, reference
from flexfa4.errors import UnsupportedError
from flexfa4.runtime import transforms

B, H, S, D, N = 2, 4, 24, 8, 3
BAR = 1e-11
TABLE = torch.linspace(-1, 1, H, dtype=torch.float64)
LIMITS = torch.tensor([20, 11])
BY_BATCH = create_block_mask(lambda b, h, q, kv: (kv <= q) & (kv < LIMITS[b]), B, None, S, S)
CAUSAL = create_block_mask(lambda b, h, q, kv: kv <= q, None, None, S, S)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def both(mask=CAUSAL, hook=False):
    """(flex_attention, the reference), as functions of q, k, v and a captured table."""
    def mods(table):
        def score(s, b, h, q, kv):
            return s * table[h] + 0.1 * (q - kv)
        gate = (lambda o, lse, b, h, q: o * torch.sigmoid(lse + table[h])) if hook else None
        return score, gate

    def ours(q, k, v, table):
        score, gate = mods(table)
        return flex_attention(q, k, v, score, mask, out_mod=gate, enable_gqa=True)

    def dense(q, k, v, table):
        score, gate = mods(table)
        return reference.attention(q, k, v, score, mask.mask_mod, out_mod=gate)[0]
    return ours, dense


def single():
    return [randn(B, H, S, D), randn(B, 2, S, D, seed=1), randn(B, 2, S, 5, seed=2), TABLE.clone()]


def close(got, expected):
    assert got.shape == expected.shape and (got - expected).abs().max() < BAR


@pytest.mark.parametrize("hook", [False, True])
def test_grad_of_every_input_and_capture(hook):
    ours, dense = both(hook=hook)
    inputs = single()
    weight = randn(B, H, S, 5)
    got = torch.func.grad(lambda *x: (ours(*x) * weight).sum(), argnums=(0, 1, 2, 3))(*inputs)
    leaves = [t.requires_grad_() for t in inputs]
    expected = torch.autograd.grad((dense(*leaves) * weight).sum(), leaves)
    for g, e in zip(got, expected):
        close(g, e)


@pytest.mark.parametrize("mapped", [(0, None, None, None), (0, 1, 2, None), (1, 0, 0, 0), (None, None, None, 0)])
@pytest.mark.parametrize("mask", [CAUSAL, BY_BATCH], ids=["causal", "by batch"])
def test_vmap(mapped, mask):
    """Over each combination of inputs; a mask that looks at the batch must still see the entry's own number."""
    ours, dense = both(mask)
    shapes = [t.shape for t in single()]
    inputs = [randn(*s[:d], N, *s[d:], seed=i) if d is not None else randn(*s, seed=i)
              for i, (s, d) in enumerate(zip(shapes, mapped))]
    rows = [[t if d is None else t.select(d, i) for t, d in zip(inputs, mapped)] for i in range(N)]
    close(torch.vmap(ours, in_dims=mapped)(*inputs), torch.stack([dense(*row) for row in rows]))


def test_vmap_with_one_key_batch_for_all():
    ours, dense = both()
    q, (_, k, v, table) = randn(N, B, H, S, D), single()
    k, v = k[:1], v[:1]
    close(torch.vmap(lambda q: ours(q, k, v, table))(q), torch.stack([dense(x, k, v, table) for x in q]))
    got = torch.vmap(torch.func.grad(lambda q, k: ours(q, k, v, table).sum(), argnums=(0, 1)), in_dims=(0, None))(q, k)
    for i, x in enumerate(q):
        leaves = [x.clone().requires_grad_(), k.clone().requires_grad_()]
        for g, e in zip(got, torch.autograd.grad(dense(*leaves, v, table).sum(), leaves)):
            close(g[i], e)


@pytest.mark.parametrize("mask", [CAUSAL, BY_BATCH], ids=["causal", "by batch"])
@pytest.mark.parametrize("argnums", [(0, 1, 2), (0, 3)], ids=["q k v", "q table"])
def test_gradients_of_each_example(mask, argnums):
    ours, dense = both(mask)
    inputs = [torch.stack([t, t.flip(0)]) for t in single()[:3]] + [TABLE]
    in_dims = (0, 0, 0, None)
    got = torch.vmap(torch.func.grad(lambda *x: ours(*x).square().sum(), argnums=argnums), in_dims=in_dims)(*inputs)
    for i in range(2):
        row = [t if d is None else t[i] for t, d in zip(inputs, in_dims)]
        leaves = [t.clone().requires_grad_() for t in row]
        expected = torch.autograd.grad(dense(*leaves).square().sum(), [leaves[a] for a in argnums])
        for g, e in zip(got, expected):
            close(g[i], e)


def test_gradient_of_a_vmap_and_jacrev():
    ours, dense = both()
    q, k, v, table = single()
    weights = randn(N, B, H, S, D)

    def loss(f):
        return lambda t: torch.stack([f(q * w, k, v, t).square().sum() for w in weights]).sum()

    mapped = torch.func.grad(lambda t: torch.vmap(lambda w: ours(q * w, k, v, t).square().sum())(weights).sum())(table)
    leaf = table.clone().requires_grad_()
    close(mapped, torch.autograd.grad(loss(dense)(leaf), leaf)[0])
    few = q[:1, :1, :3], k[:1, :1], v[:1, :1]
    plain = torch.func.jacrev(lambda x: flex_attention(x, *few[1:]))(few[0])
    close(plain, torch.autograd.functional.jacobian(lambda x: reference.attention(x, *few[1:])[0], few[0]))


def test_mask_over_a_mapped_table():
    table = torch.tensor([3, 9, 24])
    q, k, v, _ = single()

    def one(limit):
        mask = create_block_mask(lambda b, h, i, j: j < limit, None, None, S, S)
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    expected = [reference.attention(q, k, v, mask_mod=lambda b, h, i, j, n=n: j < n)[0] for n in (3, 9, 24)]
    close(torch.vmap(one)(table), torch.stack(expected))


def test_many_gradients_at_once():
    """Maps over the backward pass alone."""
    ours, dense = both()
    inputs, weights = single(), randn(N, B, H, S, 5)
    got = torch.vmap(torch.func.vjp(ours, *inputs)[1])(weights)
    leaves = [t.requires_grad_() for t in inputs]
    for i, w in enumerate(weights):
        for g, e in zip(got, torch.autograd.grad(dense(*leaves), leaves, w)):
            close(g[i], e)
    with pytest.raises(UnsupportedError, match="torch.vmap over torch.func.vjp"):
        torch.autograd.grad(ours(*leaves), leaves, weights, is_grads_batched=True)


def test_a_mapped_axis_becomes_part_of_the_batch(monkeypatch):
    """One call of the op for the whole axis, where nothing captured is mapped and nothing looks at the batch."""
    def refuse(*_):
        raise AssertionError("one call an entry")
    monkeypatch.setattr(transforms, "_one_by_one", refuse)
    q, k, v, table = single()
    ours, _ = both()
    torch.vmap(torch.func.grad(lambda x: ours(x, k, v, table).sum()))(torch.stack([q, q]))
    with pytest.raises(AssertionError, match="one call an entry"):
        torch.vmap(lambda x: both(BY_BATCH)[0](x, k, v, table))(torch.stack([q, q]))


INPUTS = single()


def forward(change):
    q, k, v, table = single()
    with forward_ad.dual_level():
        return both()[0](*change(q, k, v, table))


REFUSED = {
    "dual query": lambda: forward(lambda q, k, v, t: (forward_ad.make_dual(q, q), k, v, t)),
    "dual value": lambda: forward(lambda q, k, v, t: (q, k, forward_ad.make_dual(v, v), t)),
    "dual capture": lambda: forward(lambda q, k, v, t: (q, k, v, forward_ad.make_dual(t, t))),
    "dual leaf": lambda: forward(lambda q, k, v, t: (forward_ad.make_dual(q.requires_grad_(), q), k, v, t)),
    "jvp": lambda: torch.func.jvp(lambda q: both()[0](q, *INPUTS[1:]), (INPUTS[0],), (INPUTS[0],)),
    "jacfwd": lambda: torch.func.jacfwd(lambda t: both()[0](*INPUTS[:3], t))(TABLE),
    "hessian": lambda: torch.func.hessian(lambda t: both()[0](*INPUTS[:3], t).sum())(TABLE),
}


@pytest.mark.parametrize("case", REFUSED)
def test_forward_mode_is_refused(case):
    with pytest.raises(UnsupportedError, match="no forward-mode derivative.*reverse mode"):
        REFUSED[case]()


def test_second_derivatives_are_refused_here_too():
    ours, _ = both()
    q, *rest = single()
    with pytest.raises(UnsupportedError, match="no second derivative"):
        torch.func.grad(lambda x: torch.func.grad(lambda y: ours(y, *rest).square().sum())(x).sum())(q)
    assert torch.func.grad(lambda x: ours(x, *rest).sum())(q).isfinite().all()
