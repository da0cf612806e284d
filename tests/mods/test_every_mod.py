"""Every gallery mod: the traced graph, the masks and the engine agree with plainly calling the user's function."""
import math

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

import flexfa4
from flexfa4.interpret import evaluate
from flexfa4.ir import Op
from flexfa4.mods import GALLERY, causal_bottom_right, pooled_tiles
from flexfa4.trace import bind, trace

SIZES = [{}, dict(seq_len=77, heads=3, batch=1), dict(seq_len=1, heads=2, batch=2)]
CASES = [pytest.param(example(**size), id=f"{example.name}-{example(**size).seq_len}") for example in GALLERY for size in SIZES]
LEAF_NAMES = (Op.B, Op.H, Op.Q, Op.KV)


def positions(example):
    """The four index tensors b, h, q, kv, each broadcastable to [B, H, Sq, Skv]."""
    sizes = (example.batch, example.heads, example.q_len, example.kv_len)
    return [torch.arange(n).view([-1 if axis == i else 1 for axis in range(4)]) for i, n in enumerate(sizes)]


def called_mask(mask_mod, example):
    """Token mask [B, H, Sq, Skv] by calling the function on index tensors."""
    shape = (example.batch, example.heads, example.q_len, example.kv_len)
    return torch.ones(shape, dtype=torch.bool) if mask_mod is None else mask_mod(*positions(example)).expand(shape)


def inputs(example, dtype=torch.float64):
    generator = torch.Generator().manual_seed(7)
    shapes = (example.q_shape, example.kv_shape, example.kv_shape)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def dense_attention(q, k, v, entry, example):
    """Attention in float64 straight from the definition: the whole score matrix, the user's functions called on tensors."""
    group = example.heads // example.kv_heads
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    b, h, rows, columns = positions(example)
    score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if entry["score_mod"] is not None:
        score = entry["score_mod"](score, b, h, rows, columns)
    score = score.masked_fill(~called_mask(entry["mask_mod"], example), float("-inf"))
    lse = score.logsumexp(-1, keepdim=True)
    out = torch.exp(score - lse.masked_fill(lse == float("-inf"), 0)) @ v
    if entry["out_mod"] is not None:
        out = entry["out_mod"](out, lse, b, h, rows)
    return out


@pytest.mark.parametrize("example", CASES)
def test_traced_is_called(example):
    entry = example.make()
    env = dict(zip(LEAF_NAMES, positions(example)))
    shape = (example.batch, example.heads, example.q_len, example.kv_len)
    if entry["mask_mod"] is not None:
        traced = evaluate(trace(entry["mask_mod"], "mask"), env).expand(shape)
        assert torch.equal(traced, called_mask(entry["mask_mod"], example))
    if entry["score_mod"] is not None:
        score = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
        traced = evaluate(trace(entry["score_mod"], "score"), {**env, Op.SCORE: score})
        assert torch.equal(traced, entry["score_mod"](score, *positions(example)))
    if entry["out_mod"] is not None:
        b, h, rows, _ = positions(example)
        out, lse = torch.randn(example.q_shape), torch.randn(*example.q_shape[:3], 1)
        env = {Op.B: b, Op.H: h, Op.Q: rows, Op.OUT: out, Op.LSE: lse}
        assert torch.equal(evaluate(trace(entry["out_mod"], "out"), env), entry["out_mod"](out, lse, b, h, rows))


@pytest.mark.parametrize("example", CASES)
def test_mask_is_torchs(example):
    """The functions are torch mods too: torch's own vmap gives the same mask as calling them on index tensors."""
    mask_mod = example.make()["mask_mod"]
    if mask_mod is None:
        assert example.kind == "score"
        return
    dense = create_mask(mask_mod, example.batch, example.heads, example.q_len, example.kv_len, device="cpu")
    assert torch.equal(dense, called_mask(mask_mod, example))


@pytest.mark.parametrize("example", CASES)
def test_block_mask_is_the_mask(example):
    """to_dense is exact, and the spans hold every allowed position: outside them nothing, in a FULL run everything."""
    mask_mod = example.make()["mask_mod"]
    if mask_mod is None:
        return
    dense = called_mask(mask_mod, example)
    mask = flexfa4.create_block_mask(mask_mod, example.batch, example.heads, example.q_len, example.kv_len)
    assert torch.equal(mask.to_dense().expand(dense.shape), dense)
    assert_spans_cover(mask.spans(16, 32), dense, 16, 32)


def assert_spans_cover(spans, dense, q_tile, kv_tile):
    batch, heads, q_len, kv_len = dense.shape
    q_tiles = -(-q_len // q_tile)
    row_ptr, runs = spans.row_ptr.tolist(), spans.runs.tolist()
    for b in range(batch):
        for h in range(heads):
            for tile in range(q_tiles):
                row = ((b % spans.Bm) * spans.Hm + h % spans.Hm) * q_tiles + tile
                rows = dense[b, h, tile * q_tile:(tile + 1) * q_tile].clone()
                for begin, end, kind in runs[row_ptr[row]:row_ptr[row + 1]]:
                    part = rows[:, begin * kv_tile:end * kv_tile]
                    assert kind == 1 or part.all(), "a FULL run forbids a position"
                    part.fill_(False)
                assert not rows.any(), "an allowed position lies outside the spans"


@pytest.mark.parametrize("example", CASES)
def test_engine_is_dense_attention(example):
    """Output and every gradient in float64, against the whole score matrix."""
    entry = example.make(dtype=torch.float64)
    wanted = [*inputs(example), *entry["captures"].values()]
    q, k, v = wanted[:3]
    mask = None
    if entry["mask_mod"] is not None:
        mask = flexfa4.create_block_mask(entry["mask_mod"], example.batch, example.heads, example.q_len, example.kv_len)
    out = flexfa4.flex_attention(q, k, v, score_mod=entry["score_mod"], block_mask=mask, out_mod=entry["out_mod"],
                                 enable_gqa=True)
    reference = dense_attention(q, k, v, entry, example)
    torch.testing.assert_close(out, reference, rtol=1e-9, atol=1e-9)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=out.dtype)
    ours = torch.autograd.grad((out * direction).sum(), wanted)
    right = torch.autograd.grad((reference * direction).sum(), wanted)
    for name, got, expected in zip(["q", "k", "v", *entry["captures"]], ours, right):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9, msg=lambda text, name=name: f"grad of {name}: {text}")


@pytest.mark.parametrize("example", [pytest.param(e, id=e.name) for e in GALLERY])
def test_a_new_size_is_no_new_program(example):
    """Numbers are run-time scalars: the graph of a mod at another length is the same object, except where a length is an
    operand of // or %, or the rule has another number of terms."""
    static = {"neighborhood_2d", "sliding_tile_3d", "block_diffusion", "relative_bias_2d"}
    entry, other = example.make(), example(seq_len=2 * example.seq_len).make()
    for kind in ("mask", "score", "out"):
        if entry[f"{kind}_mod"] is not None:
            same = bind(entry[f"{kind}_mod"], kind).graph == bind(other[f"{kind}_mod"], kind).graph
            assert same or example.name in static


@pytest.mark.parametrize("q_len, kv_len", [(160, 160), (75, 203)])
def test_pooled_prefill_end_to_end(q_len, kv_len):
    """Chosen tiles and-ed with the causal rule, grouped heads: the dense softmax over exactly those positions."""
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2, heads, length, 16, generator=generator, dtype=torch.float64)
               for heads, length in ((4, q_len), (2, kv_len), (2, kv_len)))
    causal, tile = causal_bottom_right(q_len, kv_len), 16
    tiles = pooled_tiles(q, k, tile=tile, keep=0.7)
    mask = flexfa4.block_mask_from_tiles(tiles, q_len, kv_len, tile=tile, mask_mod=causal)
    b, h, rows, columns = (torch.arange(n).view([-1 if i == axis else 1 for axis in range(4)])
                           for i, n in enumerate((2, 4, q_len, kv_len)))
    allowed = tiles[b, h, rows // tile, columns // tile] & causal(b, h, rows, columns)
    share = allowed.sum() / causal(b, h, rows, columns).expand(allowed.shape).sum()
    assert torch.equal(mask.to_dense(), allowed) and 0.2 < share < 0.95
    score = (q @ k.repeat_interleave(2, 1).mT / 4).masked_fill(~allowed, float("-inf"))
    right = torch.softmax(score, -1) @ v.repeat_interleave(2, 1)
    out = flexfa4.flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    torch.testing.assert_close(out, right, rtol=1e-9, atol=1e-9)


def test_names_are_unique_and_kinds_complete():
    assert len({e.name for e in GALLERY}) == len(GALLERY) == 21
    for example in GALLERY:
        entry = example.make()
        assert entry[f"{example.kind}_mod"] is not None
        assert all(t.requires_grad for t in entry["captures"].values())
