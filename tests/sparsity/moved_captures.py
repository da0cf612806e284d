"""Masks of captured tensors of many kinds, with their captures on any device: for tests of what a build copies from there."""
import torch

from flexfa4 import and_masks, block_mask_from_tiles, create_block_mask, mods
from flexfa4.facts.device_labels import LONG
from tests.sparsity.test_exact import documents

_LENGTH, _B, _H = 700, 2, 4


def _example(example):
    example = example(seq_len=_LENGTH, heads=_H, batch=_B)
    return lambda device: create_block_mask(example.make(device)["mask_mod"], _B, _H, example.q_len, example.kv_len, device)


def _labels(labels, causal=True):
    make = mods.document_causal if causal else mods.document_mask
    return lambda device: create_block_mask(make(labels.to(device)), 1, 1, 900, 1100, device)


def _many_kinds(device):
    """Labels of each batch, limits, a table of heads, a 0-d number, and what requires a gradient."""
    labels = torch.stack([documents(_LENGTH, 9, seed, "recurring") for seed in range(_B)]).to(device)
    limits = torch.randint(0, _LENGTH, (_LENGTH,), generator=torch.Generator().manual_seed(1)).to(device, torch.int16)
    seen = (torch.arange(3 * _H) % 3 > 0).view(3, _H).T.to(device)
    last, bias = torch.tensor(650, device=device), torch.linspace(-1, 1, _LENGTH, device=device).requires_grad_()
    return create_block_mask(lambda b, h, q, kv: (labels[b, q] == labels[b, kv]) & (kv <= limits[q]) & seen[h, 1] & (kv < last)
                             & (bias[kv] > -0.9), _B, _H, _LENGTH, _LENGTH, device)


def _many_labels_of_each_batch(device):
    labels = torch.stack([documents(LONG, 3000, seed, "shuffled") for seed in range(_B)]).to(device)
    return create_block_mask(mods.document_causal(labels), _B, 1, 900, 900, device)


def _two_labels(device):
    first, second = (documents(_LENGTH, n, n, "shuffled").to(device) for n in (4, 9))
    return create_block_mask(lambda b, h, q, kv: (first[q] == first[kv]) & (second[q] == second[kv]), 1, 1, _LENGTH, _LENGTH,
                             device)


def _tiles(device, mask_mod=None, tile=64):
    tiles = torch.rand(_H, 11, 11, generator=torch.Generator().manual_seed(0)) < 0.4
    return block_mask_from_tiles(tiles.to(device), _LENGTH, _LENGTH, tile, mask_mod and mask_mod(device))


def _documents_too(device):
    labels = documents(_LENGTH, 9).to(device)
    return and_masks(mods.causal_mask, mods.document_mask(labels))


CASES = {
    **{example.name: _example(example) for example in mods.GALLERY if example.make()["mask_mod"] is not None},
    "labels in any order": _labels(documents(1200, 11, 3, "shuffled")),
    "labels that come back": _labels(documents(1200, 11, 3, "recurring")),
    "random labels": _labels(torch.randint(0, 5, (1200,), generator=torch.Generator().manual_seed(2)), causal=False),
    "a label an element": _labels(torch.arange(1200) % 1000),
    "no two labels alike": _labels(torch.arange(1200)),
    "many labels": _labels(documents(LONG + 999, 3000, 4, "shuffled")),
    "many labels that come back": _labels(documents(LONG + 999, 3000, 4, "recurring")),
    "many labels of each batch": _many_labels_of_each_batch,
    "many random labels": _labels(torch.randint(0, 5, (LONG + 7,), generator=torch.Generator().manual_seed(2)), causal=False),
    "many short runs": _labels(torch.arange(LONG + 7) // 3),
    "captures of many kinds": _many_kinds,
    "two labels": _two_labels,
    "tiles": _tiles,
    "tiles of another size": lambda device: _tiles(device, tile=(66, 69)),
    "tiles, and documents": lambda device: _tiles(device, _documents_too),
}
