"""Tile kinds against a count of every element: exact for structured masks, sound for random ones."""
import pytest
import torch
from tests.sparsity.dense import check_spans, dense, kinds
from hypothesis import given, settings
from hypothesis import strategies as st

from flexfa4 import mods
from flexfa4.interpret import evaluate
from flexfa4.ir import Op
from flexfa4.sparsity import and_masks, create_block_mask, not_mask, or_masks
from flexfa4.sparsity.build import build_spans
from flexfa4.sparsity.spans import Tiling
from tests.random_graphs import cases

TILES = [(64, 64), (128, 128), (192, 128), (64, 192), (100, 37)]


def documents(total, count, seed=0, order="rising"):
    generator = torch.Generator().manual_seed(seed)
    cuts = torch.randperm(total - 1, generator=generator)[:count - 1].add(1).sort().values
    lengths = torch.diff(torch.cat([torch.tensor([0]), cuts, torch.tensor([total])]))
    labels = torch.arange(count)
    if order != "rising":
        labels = torch.randperm(count, generator=generator)
    if order == "recurring":
        labels[count // 2:] = labels[:count - count // 2].flip(0)
    return labels.repeat_interleave(lengths).int()


MASKS = {
    "causal": lambda n: mods.causal_mask,
    "bottom_right": lambda n: mods.causal_bottom_right(n, n + 77),
    "window": lambda n: mods.sliding_window(150),
    "narrow_window": lambda n: mods.sliding_window(5),
    "two_sided": lambda n: mods.two_sided_window(70, 33),
    "prefix": lambda n: mods.prefix_lm(201),
    "document": lambda n: mods.document_mask(documents(n, 9)),
    "document_causal": lambda n: mods.document_causal(documents(n, 9)),
    "document_any_order": lambda n: mods.document_causal(documents(n, 12, 1, "shuffled")),
    "document_recurring": lambda n: mods.document_causal(documents(n, 12, 2, "recurring")),
    "many_documents": lambda n: mods.document_causal(documents(n, 90, 3, "shuffled")),
    "sink_window": lambda n: mods.sink_window(4, 100),
    "dilated": lambda n: mods.dilated_window(300, 7),
    "natten": lambda n: mods.neighborhood_2d(n // 31, 31, 7),
    "block_diffusion": lambda n: mods.block_diffusion(n // 2, 24),
    "shared_prefix": lambda n: mods.shared_prefix(90, documents(n, 6)),
    "sliding_tile_3d": lambda n: mods.sliding_tile_3d((4, 4, -(-n // 128)), (2, 2, 2), (3, 1, 3)),
    "inverted": lambda n: not_mask(mods.sliding_window(150)),
    "window_or_prefix": lambda n: or_masks(mods.sliding_window(60), lambda b, h, q, kv: kv < 20),
    "document_and_window": lambda n: and_masks(mods.document_mask(documents(n, 9)), mods.sliding_window(90)),
    "strided": lambda n: lambda b, h, q, kv: (q - kv) % 64 == 5,
    "parity_blocks": lambda n: lambda b, h, q, kv: ((q // 96 + kv // 160) & 1) == 0,
    "everything": lambda n: lambda b, h, q, kv: q >= 0,
    "nothing": lambda n: lambda b, h, q, kv: kv < 0,
}


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_kinds_are_exact(name, tiles):
    n = 899
    mask_mod = MASKS[name](n)
    kv_len = n + 77 if name == "bottom_right" else n
    expected = kinds(dense(mask_mod, 1, 1, n, kv_len), *tiles)
    mask = create_block_mask(mask_mod, 1, 1, n, kv_len)
    check_spans(mask.spans(*tiles), expected)
    check_spans(mask.spans(*tiles, transposed=True), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_products_that_wrap(dtype):
    """A row of one label times a column of one: bounds of the product are not those of the numbers before they wrap."""
    labels = documents(400, 6, 5).to(dtype) * 51
    for wanted in (0, 1, 49, 102):
        def mask_mod(b, h, q, kv, wanted=wanted):
            return labels[q] * labels[kv] == labels[q] * 0 + wanted

        expected = kinds(dense(mask_mod, 1, 1, 400, 400), 16, 16)
        check_spans(create_block_mask(mask_mod, 1, 1, 400, 400).spans(16, 16), expected)


@pytest.mark.parametrize("tiles", TILES, ids=str)
def test_per_batch_and_head(tiles):
    B, H, n = 3, 4, 611
    ids = torch.stack([documents(n, 5, seed, "shuffled") for seed in range(B)])
    windows = torch.tensor([3, 90, 200, 611])

    def mask_mod(b, h, q, kv):
        return (ids[b, q] == ids[b, kv]) & (q >= kv) & (q - kv < windows[h])

    mask = create_block_mask(mask_mod, B, H, n, n)
    assert mask.mask_shape == (B, H)
    check_spans(mask.spans(*tiles), kinds(dense(mask_mod, B, H, n, n), *tiles))
    check_spans(mask.spans(*tiles, transposed=True), kinds(dense(mask_mod, B, H, n, n), *tiles))


def test_stored_once_where_an_axis_does_not_matter():
    by_head = create_block_mask(lambda b, h, q, kv: q - kv < 10 * h, 5, 3, 300, 200)
    assert (by_head.spans().Bm, by_head.spans().Hm) == (1, 3)
    neither = create_block_mask(mods.causal_mask, 5, 3, 300, 200)
    assert neither.spans().rows == 3


def test_dense_mask_as_capture():
    table = torch.rand(700, 650, generator=torch.Generator().manual_seed(0)) < 0.5
    table[100:400, 128:300] = True
    table[450:, 300:] = False

    def mask_mod(b, h, q, kv):
        return table[q, kv]

    mask = create_block_mask(mask_mod, 1, 1, 700, 650)
    check_spans(mask.spans(64, 64), kinds(table[None, None], 64, 64))
    assert torch.equal(mask.to_dense(), table[None, None])


@settings(deadline=None, max_examples=120)
@given(cases("mask", max_ops=12, in_range=True, static_operands=True), st.sampled_from([(16, 16), (5, 24), (32, 8)]),
       st.booleans())
def test_random_masks(case, tiles, transposed):
    q_len, kv_len = 41, 67
    tiling = Tiling(*tiles, q_len, kv_len, 4 if case.bound.graph.uses(Op.B) else 1, 6 if case.bound.graph.uses(Op.H) else 1)
    env = {Op.B: torch.arange(tiling.Bm)[:, None, None, None], Op.H: torch.arange(tiling.Hm)[:, None, None],
           Op.Q: torch.arange(q_len)[:, None], Op.KV: torch.arange(kv_len)}
    value = evaluate(case.bound, env).expand(tiling.Bm, tiling.Hm, q_len, kv_len)
    expected = kinds(value, *tiles)
    spans, work = build_spans(case.bound, tiling, transposed)
    check_spans(spans, expected)
    unsettled, work = build_spans(case.bound, tiling, transposed, budget=0)
    check_spans(unsettled, expected, exact=False)
    assert work.settled == 0
