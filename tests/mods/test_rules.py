"""Each mod against its rule in words: loops, counts and hand-made values, written without the mod's own formula."""
import math

import pytest
import torch

from flexfa4 import mods


def table(mask_mod, q_len, kv_len, b=0, h=0):
    """[q_len][kv_len] of bools by calling the mod on one pair of positions at a time."""
    at = [torch.tensor(i) for i in range(max(q_len, kv_len))]
    return torch.tensor([[bool(mask_mod(torch.tensor(b), torch.tensor(h), at[i], at[j])) for j in range(kv_len)]
                         for i in range(q_len)])


def sees(mask_mod, q, kv_len):
    return table(mask_mod, q + 1, kv_len)[q].nonzero().flatten().tolist()


def test_windows_by_counting():
    assert sees(mods.sliding_window(3), 9, 12) == [7, 8, 9]
    assert sees(mods.two_sided_window(2, 1), 5, 12) == [3, 4, 5, 6]
    assert sees(mods.sink_window(2, 3), 9, 12) == [0, 1, 7, 8, 9]
    assert sees(mods.dilated_window(2, 3), 7, 16) == [1, 4, 7, 10, 13]
    assert sees(mods.causal_mask, 3, 6) == [0, 1, 2, 3]


def test_bottom_right_last_query_sees_every_key():
    assert table(mods.causal_bottom_right(2, 5), 2, 5).tolist() == [[True] * 4 + [False], [True] * 5]
    more_queries = table(mods.causal_bottom_right(4, 2), 4, 2)
    assert more_queries.tolist() == [[False, False], [False, False], [True, False], [True, True]]


def test_prefix_as_number_and_per_batch():
    assert sees(mods.prefix_lm(4), 1, 6) == [0, 1, 2, 3]
    per_batch = mods.prefix_lm(torch.tensor([1, 3]))
    assert table(per_batch, 1, 5, b=0)[0].tolist() == [True, False, False, False, False]
    assert table(per_batch, 1, 5, b=1)[0].tolist() == [True, True, True, False, False]


def test_documents_shared_and_per_batch():
    labels = torch.tensor([5, 5, 2, 5, 2])
    assert sees(mods.document_mask(labels), 3, 5) == [0, 1, 3]
    assert sees(mods.document_causal(labels), 1, 5) == [0, 1]
    two = torch.stack([labels, labels.flip(0)])
    assert torch.equal(table(mods.document_mask(two), 5, 5, b=1), table(mods.document_mask(labels), 5, 5).flip(0, 1))
    causal = table(mods.document_causal(two), 5, 5, b=1)
    assert torch.equal(causal, table(mods.document_mask(two), 5, 5, b=1).tril())


def test_shared_prefix_branches_do_not_meet():
    mask = mods.shared_prefix(2, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert sees(mask, 3, 6) == [0, 1, 2, 3]
    assert sees(mask, 5, 6) == [0, 1, 4, 5]


@pytest.mark.parametrize("height, width, kernel", [(5, 7, 3), (6, 4, 4), (3, 3, 3)])
def test_neighbourhood_has_kernel_squared_nearest_pixels(height, width, kernel):
    mask = table(mods.neighborhood_2d(height, width, kernel), height * width, height * width).view(height, width, height, width)
    assert (mask.sum((2, 3)) == kernel ** 2).all()
    inner = mask[height // 2, width // 2].nonzero()
    if kernel % 2 and kernel < min(height, width):
        assert (inner - torch.tensor([height // 2, width // 2])).abs().max() == kernel // 2
    assert mask[0, 0, :kernel, :kernel].all() and mask[-1, -1, -kernel:, -kernel:].all()


def test_neighbourhood_and_tiles_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="kernel=9 does not fit a grid of 8 x 16"):
        mods.neighborhood_2d(8, 16, 9)
    with pytest.raises(ValueError, match=r"window=\(3, 1, 1\) does not fit a grid of \(2, 4, 4\) tiles"):
        mods.sliding_tile_3d((2, 4, 4), (1, 1, 1), (3, 1, 1))


def test_sliding_tiles_are_whole_and_centred():
    grid, tile, window = (3, 4, 2), (1, 2, 1), (1, 3, 1)
    length = math.prod(grid) * math.prod(tile)
    mask = table(mods.sliding_tile_3d(grid, tile, window), length, length)
    tiles = mask.view(24, 2, 24, 2)
    assert torch.equal(tiles.all(3).all(1), tiles.any(3).any(1)), "a tile is seen whole or not at all"
    by_place = tiles[:, 0, :, 0].view(*grid, *grid)
    assert (by_place.sum((3, 4, 5)) == math.prod(window)).all()
    assert by_place[1, 2, 0].nonzero().tolist() == [[1, 1, 0], [1, 2, 0], [1, 3, 0]]
    assert by_place[1, 0, 1].nonzero().tolist() == [[1, 0, 1], [1, 1, 1], [1, 2, 1]]


def test_block_diffusion_by_its_definition():
    clean_len, block = 6, 2
    mask = table(mods.block_diffusion(clean_len, block), 12, 12)
    for q in range(12):
        for kv in range(12):
            noisy_q, noisy_kv, q_block, kv_block = q < 6, kv < 6, q % 6 // 2, kv % 6 // 2
            right = {(True, True): q_block == kv_block, (True, False): kv_block < q_block,
                     (False, True): False, (False, False): kv_block <= q_block}[noisy_q, noisy_kv]
            assert mask[q, kv] == right


def test_random_blocks_follow_their_map():
    kept = mods.random_tile_map(heads=2, q_len=10, kv_len=7, tile=4, share=0.5)
    assert kept.shape == (2, 3, 2) and kept[:, 0, 0].all() and kept[:, 1, 1].all()
    for head in range(2):
        expanded = kept[head].repeat_interleave(4, 0).repeat_interleave(4, 1)[:10, :7]
        assert torch.equal(table(mods.random_blocks(kept, 4), 10, 7, h=head), expanded)


def test_alibi_slopes_are_the_papers():
    assert mods.alibi_slopes(8).tolist() == [2.0 ** -i for i in range(1, 9)]
    assert mods.alibi_slopes(3).tolist() == [2.0 ** -4, 2.0 ** -8, 2.0 ** -2]
    edit = mods.alibi_bias(mods.alibi_slopes(8))
    assert edit(torch.tensor(1.5), 0, torch.tensor(1), torch.tensor(10), torch.tensor(6)) == 1.5 - 0.25 * 4


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_buckets_one_by_one(bidirectional):
    """Bucket edges from exact integer comparisons: bucket e + j starts at the least n with (n / e) ** steps >= ratio ** j."""
    total, reach = 32, 128
    half = total // 2 if bidirectional else total
    exact = half // 2
    bias = mods.t5_bias(torch.arange(total, dtype=torch.float64)[:, None], reach, bidirectional)
    for offset in range(-300, 301):
        n = abs(offset) if bidirectional else max(offset, 0)
        steps, ratio = half - exact, reach // exact
        bucket = n if n < exact else exact + max(j for j in range(steps) if n ** steps >= ratio ** j * exact ** steps)
        bucket += half if bidirectional and offset < 0 else 0
        got = bias(torch.zeros((), dtype=torch.float64), 0, torch.tensor(0), torch.tensor(400 + offset), torch.tensor(400))
        assert got == bucket, f"distance {offset}"


def test_score_edits_on_one_value():
    zero, table_1d = torch.tensor(0.0), torch.arange(7.0)[None]
    bias = mods.learned_relative_bias(table_1d)
    pairs = [(9, 0), (2, 2), (2, 4), (0, 9)]
    picks = [bias(zero, 0, torch.tensor(0), torch.tensor(q), torch.tensor(kv)).item() for q, kv in pairs]
    assert picks == [0, 3, 5, 6]
    grid = torch.arange(15.0).view(1, 3, 5)
    assert mods.relative_bias_2d(grid, 3)(zero, 0, torch.tensor(0), torch.tensor(4), torch.tensor(0)) == grid[0, 0, 1]
    assert mods.tanh_softcap(2.0)(torch.tensor(1e6), 0, 0, 0, 0) == 2.0
    assert mods.head_temperature(torch.tensor([3.0]))(torch.tensor(2.0), 0, torch.tensor(0), 0, 0) == 6.0


def test_sink_is_one_more_logit():
    score, value, sink = torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64), torch.tensor([0.7]).double()
    with_sink = torch.softmax(torch.cat([score, sink]), 0)[:5] @ value
    plain, lse = torch.softmax(score, 0) @ value, score.logsumexp(0)
    torch.testing.assert_close(mods.attention_sink(sink)(plain, lse, 0, torch.tensor(0), 0), with_sink)
    assert mods.attention_sink(sink)(torch.tensor(0.0), torch.tensor(-math.inf), 0, torch.tensor(0), 0) == 0


def test_pooled_tiles_keep_the_mass():
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 4, 200, 16, generator=generator), torch.randn(2, 2, 333, 16, generator=generator)
    query[:, :, :100] *= 8
    tiles = mods.pooled_tiles(query, key, tile=32, keep=0.6)
    assert tiles.shape == (2, 4, 7, 11) and tiles.dtype == torch.bool
    pooled_q = torch.stack([part.mean(2) for part in query.split(32, dim=2)], 2)
    pooled_k = torch.stack([part.mean(2) for part in key.split(32, dim=2)], 2).repeat_interleave(2, 1)
    score = pooled_q @ pooled_k.mT / 4
    for row in range(7):
        first, last = 133 + 32 * row, 133 + min(32 * row + 31, 199)
        assert not tiles[:, :, row, last // 32 + 1:].any(), "a tile of the future"
        assert tiles[:, :, row, [0, *range(first // 32, last // 32 + 1)]].all(), "the first and the diagonal tiles stay"
        mass = torch.softmax(score[:, :, row, :last // 32 + 1], -1)
        kept = tiles[:, :, row, :last // 32 + 1]
        assert not ((mass * kept).sum(-1) < 0.6 - 1e-5).any()
        least = (mass.sort(descending=True).values.cumsum(-1) < 0.6).sum(-1) + 1
        assert not (kept.sum(-1) > least + 3).any(), "more tiles than the share needs and the always-kept ones"
    assert mods.pooled_tiles(query, key, tile=32, keep=1.0, causal=False).all()
    with pytest.raises(ValueError, match="keep=0: the share"):
        mods.pooled_tiles(query, key, keep=0)
