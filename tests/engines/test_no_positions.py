"""Batches and lengths of 0: a rank without tokens, a cache that is still empty."""
import pytest
import torch

from flexfa4 import create_block_mask, flex_attention, reference

LABELS = torch.zeros(2, 7, dtype=torch.int64)
TABLE = torch.rand(2, 4, dtype=torch.float64, requires_grad=True)
MASKS = {
    "none": None,
    "distance": lambda b, h, q, kv: kv <= q,
    "labels": lambda b, h, q, kv: LABELS[b, q] == LABELS[b, kv],
    "heads": lambda b, h, q, kv: (kv + h) % 2 == 0,
}


@pytest.mark.parametrize("mask, kept", [(m, kept) for m in MASKS for kept in (False, True) if m != "none" or not kept])
@pytest.mark.parametrize("batch, q_len, kv_len", [(2, 0, 7), (2, 7, 0), (0, 7, 7), (2, 0, 0)])
def test_values_and_gradients(batch, q_len, kv_len, mask, kept):
    mask_mod = MASKS[mask]
    shapes = (batch, 4, q_len, 3), (batch, 2, kv_len, 3), (batch, 2, kv_len, 5)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    given = {"block_mask": create_block_mask(mask_mod, batch, 4, q_len, kv_len)} if kept else {"mask_mod": mask_mod}

    def score(s, b, h, q, kv):
        return s * TABLE[b, h]

    def hook(out, lse, b, h, q):
        return out + TABLE[b, h]

    out, lse = flex_attention(*inputs, score, enable_gqa=True, return_lse=True, out_mod=hook, **given)
    assert out.shape == (batch, 4, q_len, 5) and lse.shape == (batch, 4, q_len)
    # Where there is an output, there is no key: every row is what the hook makes of 0.
    torch.testing.assert_close(out, torch.zeros_like(out) + TABLE[:batch, :, None, None])
    assert (lse == -torch.inf).all()
    got = torch.autograd.grad(out.sum(), [*inputs, TABLE])
    want_table = torch.full((2, 4), 1.0 * q_len * 5 if batch and not kv_len else 0.0, dtype=torch.float64)
    torch.testing.assert_close(got[3], want_table)
    assert [g.shape for g in got[:3]] == list(map(torch.Size, shapes)) and not any(g.abs().sum() for g in got[:3])


@pytest.mark.parametrize("mask", [m for m in MASKS if m != "none"])
def test_a_mask_without_positions(mask):
    block_mask = create_block_mask(MASKS[mask], 2, 4, 0, 300)
    assert block_mask.to_dense().shape == (2, 4, 0, 300) and "Q_LEN=0" in repr(block_mask)
    assert block_mask.spans(64, 128).row_ptr.tolist() == [0]
    columns = block_mask.spans(64, 128, transposed=True)
    assert columns.rows == len(columns.row_ptr) - 1 == 3 * columns.Bm * columns.Hm and not len(columns.runs)
    again = block_mask.resize(7, 7)
    assert torch.equal(again.to_dense(), reference.dense_mask(MASKS[mask], (2, 4, 7, 7)))
