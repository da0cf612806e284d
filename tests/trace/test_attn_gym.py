"""All masks and mods of attention-gym, unmodified: traced equals called."""
import pytest
import torch
import torch.nn.functional as F
from at_positions import assert_same_as_called

masks = pytest.importorskip("attn_gym.masks")
mods = pytest.importorskip("attn_gym.mods")
from attn_gym.masks.vsa import generate_vsa_padding_mask_mod  # noqa: E402
from torch.nn.attention.flex_attention import noop_mask  # noqa: E402

S = 48
OFFSETS = torch.tensor([0, 7, 8, 30, 48], dtype=torch.int32)


def _generator():
    return torch.Generator().manual_seed(0)


def _is_global():
    flags = torch.zeros(S, dtype=torch.bool)
    flags[[0, 17]] = True
    return flags


def _graphormer_edges():
    g = _generator()
    adjacency = (torch.rand(2, 12, 12, generator=g) < 0.3)
    adjacency = adjacency | adjacency.transpose(1, 2)
    types = torch.randint(0, 5, (2, 12, 12), generator=g)
    path_types, lengths = mods.shortest_path_edge_types(adjacency, types, 3)
    return mods.generate_graphormer_edge_bias(torch.randn(2, 3, 5, generator=g), path_types, lengths)


def _graphormer_spatial():
    g = _generator()
    adjacency = torch.rand(2, 12, 12, generator=g) < 0.3
    return mods.generate_graphormer_spatial_bias(torch.randn(2, 6, generator=g), mods.shortest_path_distances(adjacency, 4))


def _vsa(padding):
    topk = torch.stack([torch.randperm(12, generator=_generator())[:3] for _ in range(2 * 2 * 12)]).reshape(2, 2, 12, 3)
    sizes = torch.randint(1, 5, (12,), generator=_generator()) if padding else None
    return masks.generate_vsa_mask_mod(topk, 4, sizes)


MASKS = {
    "causal": lambda: masks.causal_mask,
    "batchify": lambda: masks.batchify_mask_mod(masks.causal_mask, 12),
    "batchify_noop": lambda: masks.batchify_mask_mod(noop_mask, 12),
    "block_diffusion": lambda: masks.generate_block_diffusion_mask(S // 2, 4),
    "dilated_sliding_window": lambda: masks.generate_dilated_sliding_window(9, 2),
    "document_causal": lambda: masks.generate_doc_mask_mod(masks.causal_mask, OFFSETS),
    "document_noop": lambda: masks.generate_doc_mask_mod(noop_mask, OFFSETS),
    "packed_causal_document": lambda: masks.generate_packed_causal_doc_mask_mod(OFFSETS),
    "flamingo": lambda: masks.generate_vision_cross_attention_mask_mod(
        torch.tensor([[0, 7], [1, 7], [7, 30], [20, 48]], dtype=torch.int32), 12),
    "global_sliding_window": lambda: masks.generate_global_sliding_window(5, _is_global()),
    "jetspec_tree": lambda: masks.generate_jetspec_tree_causal_mask_mod(
        0, masks.build_tree_ancestor_matrix([-1] + [i // 2 for i in range(S - 1)], device="cpu")),
    "jetspec_training": lambda: masks.generate_jetspec_training_mask_mod(8, 5),
    "natten": lambda: masks.generate_natten(8, 6, 3, 3),
    "tiled_natten": lambda: masks.generate_tiled_natten(8, 6, 3, 3, 2, 2),
    "morton_natten": lambda: masks.generate_morton_natten(8, 8, 3, 3),
    "prefix_lm": lambda: masks.generate_prefix_lm_mask(11),
    "shared_prefix": lambda: masks.generate_shared_prefix_mask_mod(OFFSETS, torch.tensor([0, 0, 2, 2])),
    "sliding_window": lambda: masks.generate_sliding_window(9),
    "sta_2d": lambda: masks.generate_sta_mask_mod_2d((6, 8), (4, 4), (2, 2)),
    "sta_2d_text": lambda: masks.generate_sta_mask_mod_2d((4, 8), (2, 4), (2, 2), text_seq_len=5),
    "sta_3d": lambda: masks.generate_sta_mask_mod_3d((4, 4, 3), (4, 2, 3), (2, 2, 1)),
    "svg_spatial": lambda: masks.generate_spatial_head_mask_mod(4, 4, 11, 2, True, 4),
    "svg_temporal": lambda: masks.generate_temporal_head_mask_mod(4, 4, 11, 2),
    "vsa": lambda: _vsa(False),
    "vsa_padded": lambda: _vsa(True),
    "vsa_padding": lambda: generate_vsa_padding_mask_mod(torch.randint(1, 5, (12,), generator=_generator()), 4),
}
MODS = {
    "alibi": lambda: mods.generate_alibi_bias(2),
    "softcap": lambda: mods.generate_tanh_softcap(30),
    "sandwich": lambda: mods.generate_sandwich_bias(2, S),
    "graphormer_spatial": _graphormer_spatial,
    "graphormer_edge": _graphormer_edges,
    "mla_rope": lambda: mods.generate_mla_rope_score_mod(
        torch.randn(2, 2, S, 64, generator=_generator()), torch.randn(2, 1, S, 64, generator=_generator()), 2, 0.3),
    "activation_gelu": lambda: mods.generate_activation_score_mod(),
    **{f"activation_{f.__name__}": (lambda f=f: mods.generate_activation_score_mod(f)) for f in (
        F.relu, torch.sigmoid, F.softplus, F.hardsigmoid)},
}
SHAPES = {"graphormer_spatial": (2, 2, 12, 12), "graphormer_edge": (2, 2, 12, 12)}


def test_nothing_of_the_library_is_left_out():
    """Every public generator of masks and score mods is in the tables above."""
    from inspect import getsource
    used = getsource(__import__(__name__))
    public = {n for home in (masks, mods) for n in vars(home) if n.startswith("generate_") or n.endswith("_mask_mod")}
    assert len(public) >= 20
    assert not [n for n in public if n not in used]


@pytest.mark.parametrize("name", MASKS)
def test_mask(name):
    assert_same_as_called(MASKS[name](), "mask", (2, 2, S, S), count=150)


@pytest.mark.parametrize("name", MODS)
def test_score_mod(name):
    assert_same_as_called(MODS[name](), "score", SHAPES.get(name, (2, 2, S, S)), count=30, tolerance=2e-5)


def test_approximate_softcap_is_tanh():
    """The approximate softcap wraps a custom op in an autograd.Function whose backward is tanh's own: traced as tanh."""
    approximate, exact = mods.generate_tanh_softcap(30, approx=True), mods.generate_tanh_softcap(30)
    from flexfa4.trace import trace
    assert trace(approximate, "score").graph == trace(exact, "score").graph
