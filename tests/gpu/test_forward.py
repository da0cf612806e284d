"""flex_attention on a GPU with a kernel: values against dense float64, gradients through the op, torch.compile, CUDA graphs,
streams, other devices, and that calls which differ in numbers only compile nothing."""
import pytest
import torch
from one_size import NEEDS_A_KERNEL

from flexfa4 import create_block_mask, flex_attention, mods, reference
from flexfa4.runtime import engine

pytestmark = [pytest.mark.gpu, NEEDS_A_KERNEL]

# Of the largest output: P and the output are rounded to the inputs' type, each by at most 2^-8 (2^-11) of its value.
ROUNDING = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


def inputs(q_len=300, kv_len=300, heads=4, kv_heads=2, dims=(128, 128), batch=2, dtype=torch.bfloat16, seed=0):
    g = torch.Generator(device="cuda").manual_seed(seed)

    def make(h, s, d):
        return torch.randn(batch, h, s, d, generator=g, device="cuda").to(dtype)

    return make(heads, q_len, dims[0]), make(kv_heads, kv_len, dims[0]), make(kv_heads, kv_len, dims[1])


def check(q, k, v, **made):
    out, lse = flex_attention(q, k, v, enable_gqa=True, return_lse=True, **made)
    again = flex_attention(q, k, v, enable_gqa=True, return_lse=True, **made)     # found by one look-up, launched alike
    assert torch.equal(out, again[0]) and torch.equal(lse, again[1])
    mask_mod = made.pop("block_mask").mask_mod if "block_mask" in made else made.pop("mask_mod", None)
    want, want_lse = reference.attention(q, k, v, mask_mod=mask_mod, **made)
    assert out.dtype is q.dtype and not out.isnan().any()
    assert (out.double() - want).abs().max() <= ROUNDING[q.dtype] * want.abs().max()
    difference = (lse.double() - want_lse).abs().masked_fill(lse.double() == want_lse, 0)
    assert difference.max() <= 2e-3 if made.get("score_mod") else difference.max() <= 5e-6


@pytest.mark.parametrize("dims", [(128, 128), (64, 64), (96, 96), (192, 128), (256, 256), (40, 40), (31, 17), (64, 128),
                                  (128, 192), (16, 256)])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 700), (127, 129), (512, 512), (1000, 1333)])
def test_shapes(dims, lengths):
    check(*inputs(*lengths, dims=dims))
    if lengths[0] == lengths[1]:
        check(*inputs(*lengths, dims=dims, dtype=torch.float16), mask_mod=mods.causal_mask)


@pytest.mark.parametrize("example", mods.GALLERY, ids=lambda e: e.name)
@pytest.mark.parametrize("seq_len", [330, 1100])
def test_gallery(example, seq_len):
    example = example(seq_len=seq_len, heads=4, kv_heads=2, batch=2)
    made = {name: mod for name, mod in example.make("cuda").items() if name.endswith("_mod") and mod is not None}
    q, k, v = inputs(example.q_len, example.kv_len)
    check(q, k, v, **made)
    mask_mod = made.pop("mask_mod", None)
    if mask_mod is not None:
        check(q, k, v, block_mask=create_block_mask(mask_mod, 2, 4, example.q_len, example.kv_len, device="cuda"), **made)


def packed(lengths: list[int], order=None) -> torch.Tensor:
    names = torch.arange(len(lengths)) if order is None else torch.tensor(order)
    return torch.repeat_interleave(names, torch.tensor(lengths)).cuda()


@pytest.mark.parametrize("order", [None, [3, 3, 1, 0, 2, 7, 1]], ids=["each once", "labels that come back"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 1)])
def test_documents_begin_anywhere(heads, order):
    ids = packed([1, 128, 129, 517, 3, 300, 122], order)
    mods_of_mask = {
        "whole": lambda b, h, q, kv: ids[q] == ids[kv],
        "causal": lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv),
        "window": lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv) & (q - kv < 100),
    }
    tensors = inputs(1200, 1200, *heads)
    for mask_mod in mods_of_mask.values():
        mask = create_block_mask(mask_mod, None, None, 1200, 1200, device="cuda")
        check(*tensors, block_mask=mask)
        check(*tensors, mask_mod=mask_mod, score_mod=mods.alibi_bias(mods.alibi_slopes(4, device="cuda")))


def test_gradients_of_documents():
    ids = packed([100, 37, 163])
    q, k, v = (t.requires_grad_() for t in inputs(300, 300, dims=(64, 64)))
    mask = create_block_mask(lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv), None, None, 300, 300, device="cuda")
    flex_attention(q, k, v, block_mask=mask, enable_gqa=True).float().square().sum().backward()
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    reference.attention(*wide, mask_mod=mask.mask_mod)[0].square().sum().backward()
    for mine, want in zip((q, k, v), wide):
        assert (mine.grad.double() - want.grad).abs().max() <= 2.0**-6 * want.grad.abs().max()


def test_rows_without_keys():
    q, k, v = inputs()
    out, lse = flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i < j - 150, enable_gqa=True, return_lse=True)
    check(q, k, v, mask_mod=lambda b, h, i, j: i < j - 150)
    assert (out[:, :, 149:] == 0).all() and (lse[:, :, 149:] == -torch.inf).all()


@pytest.mark.parametrize("view", [
    lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    lambda t: torch.cat([t, t], -1)[..., :t.shape[3]],
    lambda t: torch.cat([t, t], 2)[:, :, 3:3 + t.shape[2]],
    lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    lambda t: torch.cat([t[..., :1], t], -1)[..., 1:],
    lambda t: t[:1].expand(2, -1, -1, -1),
], ids=["bshd", "half a row", "cut length", "columns first", "odd base", "expanded batch"])
def test_views(view):
    q, k, v = map(view, inputs())
    check(q, k, v, mask_mod=mods.causal_mask)


def test_gradients_equal_those_of_dense_attention():
    q, k, v = (t.requires_grad_() for t in inputs(200, 200, dims=(64, 64)))
    flex_attention(q, k, v, mask_mod=mods.causal_mask, enable_gqa=True).float().square().sum().backward()
    got = [t.grad.double() for t in (q, k, v)]
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    reference.attention(*wide, mask_mod=mods.causal_mask)[0].square().sum().backward()
    for mine, want in zip(got, (t.grad for t in wide)):
        assert (mine - want).abs().max() <= 2.0**-6 * want.abs().max()


def test_other_numbers_compile_nothing():
    from flexfa4.runtime import kernels
    check(*inputs(256, 256), mask_mod=mods.sliding_window(50))
    before = kernels.compile_count()
    check(*inputs(700, 700, heads=6, kv_heads=3, batch=1), mask_mod=mods.sliding_window(77))
    assert kernels.compile_count() == before


def test_cuda_graph_replays_with_new_inputs():
    q, k, v = inputs(512, 512)
    mask = create_block_mask(mods.causal_mask, None, None, 512, 512, device="cuda")
    flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    q.copy_(torch.randn_like(q))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, flex_attention(q, k, v, block_mask=mask, enable_gqa=True))


def test_side_stream():
    q, k, v = inputs(512, 512)
    want = flex_attention(q, k, v, enable_gqa=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        late = q * 1
        got = flex_attention(late, k, v, enable_gqa=True)
    side.synchronize()
    assert torch.equal(got, want)


def test_torch_compile():
    q, k, v = inputs(512, 512)

    def attend(q, k, v):
        return flex_attention(q * 2, k, v, mask_mod=mods.causal_mask, enable_gqa=True) + 1

    with torch.no_grad():
        assert torch.allclose(torch.compile(attend, fullgraph=True)(q, k, v), attend(q, k, v), rtol=0.02, atol=0.02)


def test_second_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    q, k, v = (t.to("cuda:1") for t in inputs())
    check(q, k, v, mask_mod=mods.causal_mask)


def test_a_call_without_a_kernel_says_so():
    engine.announce.cache_clear()
    q, k, v = (t.float() for t in inputs())
    with pytest.warns(UserWarning, match="float32"):
        out = flex_attention(q, k, v, enable_gqa=True)
    assert (out.double() - reference.attention(q, k, v)[0]).abs().max() < 1e-4




def test_few_long_rows_are_split_over_keys():
    q, k, v = inputs(1, 20000, heads=8, kv_heads=2)
    check(q, k, v)
    check(q, k, v, mask_mod=mods.causal_bottom_right(1, 20000))
    check(q, k, v, out_mod=lambda out, lse, b, h, i: out * (1 + 0.1 * h) - 0.01 * lse)
    q, k, v = inputs(300, 9000, heads=2, kv_heads=1, batch=1)
    check(q, k, v, mask_mod=mods.causal_bottom_right(300, 9000), score_mod=mods.tanh_softcap(20.0))


@pytest.mark.parametrize("group", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("q_len", [1, 17, 64, 130])
def test_heads_that_share_query_tiles(group, q_len):
    gate = torch.linspace(0.5, 1.5, 2 * group, device="cuda")
    slopes = mods.alibi_slopes(2 * group, device="cuda")
    q, k, v = inputs(q_len, 700, heads=2 * group, kv_heads=2)
    check(q, k, v)
    check(q, k, v, mask_mod=mods.causal_bottom_right(q_len, 700))
    check(q, k, v, mask_mod=mods.sliding_window(90), score_mod=mods.alibi_bias(slopes))
    check(q, k, v, out_mod=lambda out, lse, b, h, i: out * gate[h])


def test_long_rows_of_heads_that_share_query_tiles():
    q, k, v = inputs(2000, 2000, heads=8, kv_heads=1)
    check(q, k, v, mask_mod=mods.sliding_window(300))
    check(q, k, v, mask_mod=lambda b, h, i, j: i >= j + h)
    q, k, v = inputs(1, 50000, heads=6, kv_heads=1, batch=1)
    check(q, k, v)


def consumers(q, k, v, mask_mod=None) -> int:
    """Warpgroups that work on a tile of the call."""
    mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, q.shape[2], k.shape[2], device=q.device)
    choice = engine.choose("sm90", q, k, v, 0.1, (None, mask and mask.bound, None))
    plan = choice.plan
    if mask is not None:
        plan, _ = choice.settled(lambda plan: mask.work_spans(plan.q_tile, plan.tiles.kv_tile))
    return plan.tiles.consumers


@pytest.mark.parametrize("dims", [(128, 128), (96, 96), (64, 128)])
def test_long_rows_take_three_warpgroups(dims):
    """Masks of thousands of keys a row, grouped heads, rows that fill no tile; and calls without a mask that come out even."""
    ids = packed([100, 7777, 23])
    long = inputs(7900, 7900, dims=dims, batch=1)
    for mask_mod in (mods.causal_mask, lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv), mods.sliding_window(6000)):
        assert consumers(*long, mask_mod) == 3
        check(*long, block_mask=create_block_mask(mask_mod, None, None, 7900, 7900, device="cuda"))
        check(*long, mask_mod=mask_mod)
    even = inputs(1150, 1333, batch=33, dims=dims)
    assert consumers(*even) == 3
    check(*even)
    check(*even, score_mod=mods.alibi_bias(mods.alibi_slopes(4, device="cuda")))
