"""Arguments of the wrong kind: each is refused by name and value, before any work is done."""
import math
import re
import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest

from flexfa4 import block_mask_from_tiles, create_block_mask, flex_attention, mods
from flexfa4.errors import ShapeError, TraceError

Q = torch.randn(1, 2, 3, 4)
NESTED = torch.nested.nested_tensor([torch.randn(2, 3, 4), torch.randn(2, 5, 4)])
TILES = torch.ones(2, 2, dtype=torch.bool)


def by_head(b, h, q, kv):
    return kv <= q + h


def with_capture(capture):
    return flex_attention(Q, Q, Q, score_mod=lambda s, b, h, i, j: s + capture[h])


CAUSAL = create_block_mask(mods.causal_mask, None, None, 3, 3)
CASES = {
    "no heads": (lambda: flex_attention(*[torch.randn(1, 0, 3, 4)] * 3),
                 "query has shape (1, 0, 3, 4): expected at least one head"),
    "sparse query": (lambda: flex_attention(Q.to_sparse(), Q, Q), "query has layout torch.sparse_coo: expected a strided tensor"),
    "sparse value": (lambda: flex_attention(Q, Q, Q.to_sparse()), "value has layout torch.sparse_coo"),
    "nested query": (lambda: flex_attention(NESTED, NESTED, NESTED), "query is a nested tensor: expected a strided one"),
    "text as scale": (lambda: flex_attention(Q, Q, Q, scale="a"), "scale='a': expected a number"),
    "vector as scale": (lambda: flex_attention(Q, Q, Q, scale=torch.ones(2)), "expected a number, or None"),
    "no number as scale": (lambda: flex_attention(Q, Q, Q, scale=math.nan), "scale=nan: expected a finite number, or None"),
    "infinite scale": (lambda: flex_attention(Q, Q, Q, scale=-math.inf), "scale=-inf: expected a finite number"),
    "infinite tensor as scale": (lambda: flex_attention(Q, Q, Q, scale=torch.tensor(math.inf)),
                                 "scale=tensor(inf): expected a finite"),
    "a scale without a float": (lambda: flex_attention(Q, Q, Q, scale=10**400), "000: expected a finite number"),
    "return_lse beside return_aux": (lambda: flex_attention(Q, Q, Q, return_lse="no", return_aux=AuxRequest(lse=True)),
                                     "return_lse='no': expected True or False"),
    "text as tile of a mask": (lambda: CAUSAL.spans("x", 64), "q_tile='x', kv_tile=64: tile sizes are positive numbers"),
    "fractional tile of a mask": (lambda: CAUSAL.spans(64, 1.5), "q_tile=64, kv_tile=1.5: tile sizes are"),
    "fractional tile of a fixed mask": (lambda: CAUSAL.reserve().spans(64, 1.5), "q_tile=64, kv_tile=1.5: tile sizes are"),
    "a bool as tile of a fixed mask": (lambda: CAUSAL.reserve().spans(True), "q_tile=True, kv_tile=128: tile sizes are"),
    "text as tile for torch": (lambda: CAUSAL.to_torch("xy"), "BLOCK_SIZE='xy': expected a number of positions, or two"),
    "fractional tile for torch": (lambda: CAUSAL.to_torch((2.5, 3)), "q_tile=2.5, kv_tile=3: tile sizes are"),
    "fractional tile": (lambda: block_mask_from_tiles(TILES, 5, 5, tile=2.5), "tile=2.5: expected one or two positive numbers"),
    "fractional tile of two": (lambda: block_mask_from_tiles(TILES, 5, 5, tile=(4, 2.5)), "tile=(4, 2.5): expected"),
    "unknown device": (lambda: create_block_mask(by_head, 1, 2, 3, 3, device="gpu"), "device='gpu': "),
    "lengths of a mask": (lambda: flex_attention(Q, Q, Q, block_mask=create_block_mask(by_head, 1, 2, 4, 4)),
                          f"{__file__}:{by_head.__code__.co_firstlineno}: block_mask of by_head was made for Q_LEN=4"),
    "a tensor as block mask": (lambda: flex_attention(Q, Q, Q, block_mask=torch.ones(3, 3, dtype=torch.bool)),
                               "mask_mod=lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]"),
    "a function as block mask": (lambda: flex_attention(Q, Q, Q, block_mask=by_head), "a function is passed as mask_mod="),
    "heads where the length belongs": (lambda: flex_attention(*[Q.transpose(1, 2)] * 3, block_mask=CAUSAL),
                                       "query length 2 and key length 2: transpose(1, 2) tensors that lie as [B, length, heads"),
    "heads of a mask": (lambda: flex_attention(Q, Q, Q, block_mask=create_block_mask(by_head, 1, 3, 3, 3)),
                        f"{__file__}:{by_head.__code__.co_firstlineno}: block_mask of by_head was made with H=3"),
}
if not torch.cuda.is_available():
    CASES["a device that is not there"] = (lambda: create_block_mask(by_head, 1, 2, 3, 3, device="cuda"),
                                           "device='cuda': torch finds no CUDA device")


@pytest.mark.parametrize("case", CASES)
def test_refused(case):
    call, words = CASES[case]
    with pytest.raises(ShapeError) as caught:
        call()
    assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize("value", ["x", None, 0, 1, 1.0, torch.tensor(True), torch.ones(2)], ids=repr)
@pytest.mark.parametrize("name", ["enable_gqa", "return_lse", "precise", "debug"])
def test_flags_are_bools(name, value):
    with pytest.raises(ShapeError, match=re.escape(f"{name}={value!r}: expected True or False")):
        flex_attention(Q, Q, Q, **{name: value})


@pytest.mark.parametrize("capture, words", [(NESTED, "nested"), (torch.ones(2).to_sparse(), "of layout torch.sparse_coo")])
def test_a_capture_that_is_not_strided_is_refused(capture, words):
    with pytest.raises(TraceError, match=f"captured tensor capture is {words}"):
        with_capture(capture)
    with pytest.raises(TraceError, match=f"captured tensor capture is {words}"):
        create_block_mask(lambda b, h, q, kv: capture[q] > 0, 1, 1, 2, 2)


def test_numbers_of_every_kind_are_a_scale():
    expected = flex_attention(Q, Q, Q, scale=0.5)
    for scale in (torch.tensor(0.5), torch.tensor([0.5], dtype=torch.float64).numpy()[0]):
        assert torch.equal(flex_attention(Q, Q, Q, scale=scale), expected)


def test_one_head_for_a_mask_that_depends_on_it_is_said():
    with pytest.warns(UserWarning, match="by_head depends on the head, and H=None makes its BlockMask for one head") as caught:
        create_block_mask(by_head, None, None, 3, 3)
    assert f"{__file__}:{by_head.__code__.co_firstlineno}" in str(caught[0].message) and len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="depends on the batch entry, and B=None"):
        create_block_mask(lambda b, h, q, kv: kv <= q + b, None, None, 3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create_block_mask(by_head, None, 2, 3, 3)
        create_block_mask(lambda b, h, q, kv: kv <= q, None, None, 3, 3)
