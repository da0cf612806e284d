"""flex_attention over a FixedMask in CUDA graphs: replayed with other labels, against dense float64 attention of those labels."""
import gc

import pytest
import torch
from one_size import NEEDS_A_KERNEL

from flexfa4 import create_block_mask, flex_attention, mods
from flexfa4.errors import ShapeError, UnsupportedError
from flexfa4.runtime import kernels, lists, repeat, spans_cache
from tests.sparsity.test_exact import documents

pytestmark = [pytest.mark.gpu, NEEDS_A_KERNEL]

# P and the output are rounded to bfloat16, half a unit each, of averages of normal numbers below 5.
OUT, LSE = 2.0**-8 * 5, 1e-5


def inputs(length, heads=(2, 2), dim=128, batch=1):
    g = torch.Generator(device="cuda").manual_seed(0)
    return [torch.randn(batch, n, length, dim, generator=g, device="cuda").bfloat16() for n in (heads[0], heads[1], heads[1])]


def exactly(tensors, labels, rows: slice):
    """(out, lse) of some queries under causal documents, float64."""
    q, k, v = (t.double() for t in tensors)
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    at = torch.arange(k.shape[2], device="cuda")
    seen = (labels[:, rows, None] == labels[:, None]) & (at[rows, None] >= at)
    scores = (q[:, :, rows] @ k.mT * q.shape[3] ** -0.5).masked_fill(~seen[:, None], float("-inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def check(out, lse, tensors, labels) -> None:
    """labels: [B, S] on the GPU."""
    for first in range(0, out.shape[2], 2048):
        rows = slice(first, first + 2048)
        out64, lse64 = exactly(tensors, labels, rows)
        of_out, of_lse = (out[:, :, rows] - out64).abs().max().item(), (lse[:, :, rows] - lse64).abs().max().item()
        assert of_out < OUT and of_lse < LSE, (first, of_out, of_lse)


def captured(mask, fixed, tensors, **given):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mask.rebuild_into(fixed)
        found = flex_attention(*tensors, block_mask=fixed, return_lse=True, enable_gqa=True, **given)
    return graph, found


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("capacity", [None, 129])
def test_replays_at_16k_tokens(warm, capacity):
    """129 runs overflow in all contents: the results are the same, and the overflow is reported."""
    length = 16384
    labels = torch.zeros(length, dtype=torch.int64, device="cuda")
    mask = create_block_mask(mods.document_causal(labels), None, None, length, length)
    fixed, tensors = mask.reserve(capacity), inputs(length)
    if warm:
        flex_attention(*tensors, block_mask=fixed, enable_gqa=True)
    graph, (out, lse) = captured(mask, fixed, tensors)
    compiled = kernels.compile_count()
    orders = [documents(length, 40, 5, order) for order in ("rising", "shuffled", "recurring")]
    for content in (torch.zeros(length).long(), *orders):
        labels.copy_(content)
        graph.replay()
        check(out, lse, tensors, labels[None])
        if capacity is None:
            fixed.check()
        else:
            with pytest.raises(ShapeError, match="capacity=129, and the mask of"):
                fixed.check()
    assert kernels.compile_count() == compiled


@pytest.mark.parametrize("heads, dim, batch, length", [((4, 2), 64, 2, 1000), ((8, 1), 128, 1, 500)])
def test_replays_of_other_shapes(heads, dim, batch, length):
    """Labels of each batch, packed heads, and lengths that no tile divides."""
    labels = torch.zeros(batch, length, dtype=torch.int32, device="cuda")
    mask = create_block_mask(lambda b, h, q, kv: (labels[b, q] == labels[b, kv]) & (q >= kv), batch, heads[0], length, length)
    fixed, tensors = mask.reserve(), inputs(length, heads, dim, batch)
    graph, (out, lse) = captured(mask, fixed, tensors)
    for seed in range(3):
        labels.copy_(torch.stack([documents(length, 9, seed + i, "shuffled") for i in range(batch)]))
        graph.replay()
        check(out, lse, tensors, labels)


def test_a_capture_without_a_rebuild_rebuilds_and_calls_between_replays_are_right():
    length = 2000
    labels = documents(length, 9, 0).cuda()
    mask = create_block_mask(mods.document_causal(labels), None, None, length, length)
    fixed, tensors = mask.reserve(), inputs(length)
    flex_attention(*tensors, block_mask=fixed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = flex_attention(*tensors, block_mask=fixed, return_lse=True)
        labels.add_(1)                                          # the same documents
        again, _ = flex_attention(*tensors, block_mask=fixed, return_lse=True)
    for seed in range(3):
        labels.copy_(documents(length, 9 + seed, seed, "shuffled"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, again)
        check(out, lse, tensors, labels[None])
        labels.copy_(documents(length, 5, seed + 9))
        eager, lse_now = flex_attention(*tensors, block_mask=fixed, return_lse=True)
        check(eager, lse_now, tensors, labels[None])


def test_a_hundred_replays_allocate_nothing_and_outlive_what_made_them():
    length = 4096
    labels = documents(length, 20, 0).cuda()
    mask = create_block_mask(mods.document_causal(labels), None, None, length, length)
    fixed, tensors = mask.reserve(), inputs(length)
    flex_attention(*tensors, block_mask=fixed)
    graph, (out, lse) = captured(mask, fixed, tensors)
    del mask, fixed
    for table in (spans_cache._entries, repeat._known, repeat._ready, repeat._hints, lists._made):
        table.clear()
    gc.collect()
    contents = [documents(length, n, 3, "shuffled").cuda() for n in (3, 50)]
    junk = [torch.full((n,), 1 << 30, dtype=torch.int32, device="cuda") for n in (1, 8, 64, 128, 512, 4096) for _ in range(64)]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for i in range(100):
        labels.copy_(contents[i % 2])
        graph.replay()
    torch.cuda.synchronize()
    assert before == (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) and len(junk)
    check(out, lse, tensors, labels[None])


def test_gradients_in_and_outside_a_capture():
    length = 700
    labels = documents(length, 9, 0).cuda()
    mask = create_block_mask(mods.document_causal(labels), None, None, length, length)
    fixed, tensors = mask.reserve(), [t.requires_grad_() for t in inputs(length)]
    with pytest.raises(UnsupportedError, match="a CUDA graph is being captured: .*wants a gradient.*torch.no_grad"):
        captured(mask, fixed, tensors)
    torch.cuda.synchronize()
    for seed in range(2):
        labels.copy_(documents(length, 9, seed, "shuffled"))
        grads = torch.autograd.grad(flex_attention(*tensors, block_mask=fixed).float().square().sum(), tensors)
        doubles = [t.detach().double().requires_grad_() for t in tensors]
        right = torch.autograd.grad(exactly(doubles, labels[None], slice(0, length))[0].square().sum(), doubles)
        for a, b in zip(grads, right):
            assert (a - b).abs().max() < 2.0**-6 * b.abs().max()
    wide = [t.detach().float() for t in tensors]
    with pytest.raises(UnsupportedError, match="the tiled engine takes this call .the kernels take float16 and bfloat16, not"):
        captured(mask, fixed, wide)
