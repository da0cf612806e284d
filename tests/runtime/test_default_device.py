# ruff: noqa: F811 (a fixture that is imported is named again as an argument)
"""Under torch.set_default_device what is made on the host stays there. The device here is meta, which holds nothing: a tensor
there would raise or give another result."""
import pytest
import torch
from launched import launches  # noqa: F401
from test_repeat import plain

from flexfa4 import block_mask_from_tiles, create_block_mask, flex_attention
from flexfa4.sparsity import BlockMask

S = 300
G = torch.Generator().manual_seed(0)
Q, K, V = (torch.randn(1, 2, S, 16, generator=G) for _ in range(3))
LABELS = torch.randint(0, 4, (S,), generator=G)
SORTED, TABLE = LABELS.sort()[0], torch.randn(2, 2 * S, generator=G)
LIMIT = torch.tensor(40)

MASKS = {
    "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 70),
    "documents": lambda b, h, q, kv: (SORTED[q] == SORTED[kv]) & (q >= kv),
    "labels that come back": lambda b, h, q, kv: (LABELS[q] == LABELS[kv]) | (q - kv < LIMIT),
    "by head": lambda b, h, q, kv: torch.where(h > 0, 9, q) + h >= kv,
    "a hash": lambda b, h, q, kv: (q * 7919 + kv * kv * 104729) % 10 < 3,
    "floats": lambda b, h, q, kv: torch.sigmoid(q * 0.1) + torch.erf(0.5 * TABLE[0][kv]) > torch.exp(torch.tensor(0.1)),
    "nothing": lambda b, h, q, kv: kv < 0,
}


def score(s, b, h, q, kv):
    return torch.where(kv % 2 == 0, s + TABLE[h, q - kv + S], torch.tanh(s) * 2.5)


def hook(out, lse, b, h, q):
    return torch.where(lse > 0.5, out, 1.5)


def both(call):
    """What a call gives with another default device, and without."""
    with torch.device("meta"):
        there = call()
    return there, call()


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    def call():
        mask = create_block_mask(MASKS[name], 1, 2, S, S)
        spans = [mask.spans(64, 32), mask.spans(32, 32, transposed=True), mask.work_spans(128, 64)]
        again = BlockMask.from_torch(mask.to_torch(64)).to_dense()
        return [repr(mask), mask.to_dense(), again, *[t for one in spans for t in (one.row_ptr, one.runs)]]

    for there, here in zip(*both(call)):
        assert there == here if isinstance(here, str) else torch.equal(there, here)


@pytest.mark.parametrize("name", MASKS)
def test_calls_of_the_tiled_engine(name):
    def call():
        tensors = [t.clone().requires_grad_() for t in (Q, K, V)]
        out = flex_attention(*tensors, score_mod=score, mask_mod=MASKS[name], out_mod=hook)
        return [out, *torch.autograd.grad(out.square().sum(), tensors, allow_unused=True)]

    assert all(map(torch.equal, *both(call)))


@pytest.mark.parametrize("name", MASKS)
def test_launches_of_a_kernel(launches, name):
    def call():
        del launches[:]
        half = [t.bfloat16() for t in (Q, K, V)]
        for _ in range(2):
            flex_attention(*half, score_mod=score, mask_mod=MASKS[name], out_mod=hook)
            flex_attention(*half, block_mask=create_block_mask(MASKS[name], 1, 2, S, S))
        return [plain(given) for _, _, given in launches]

    there, here = both(call)
    assert there == here and len(here) >= 4


def test_tiles_as_data_reserved_masks_and_debug():
    def call():
        mask = block_mask_from_tiles(torch.tensor([[True, False], [True, True]], device="cpu"), S, S, 150)
        fixed = create_block_mask(MASKS["documents"], None, None, S, S).reserve()
        few = [t[:, :, :3] for t in (Q, K, V)]
        return [flex_attention(Q, K, V, block_mask=mask), flex_attention(Q, K, V, block_mask=fixed),
                flex_attention(*few, mask_mod=MASKS["window"], score_mod=lambda s, b, h, q, kv: s * 2, debug=True)]

    assert all(map(torch.equal, *both(call)))
