"""A gallery of masks and score edits, one a file, each written as a user would write it: plain Python and torch.

A factory takes the mod's parameters and returns the function to pass to `flex_attention`; `causal_mask` is itself the function.
`GALLERY` lists every mod set up at a small, changeable size.
"""
from .alibi import alibi_bias, alibi_slopes
from .bottom_right import causal_bottom_right
from .causal import causal_mask
from .diffusion_blocks import block_diffusion
from .dilated import dilated_window
from .documents import document_mask
from .documents_causal import document_causal
from .gallery import GALLERY, Example
from .learned_relative import learned_relative_bias
from .natten import neighborhood_2d
from .pooled_prefill import pooled_tiles
from .prefix import prefix_lm
from .random_sparse import random_blocks, random_tile_map
from .relative_2d import relative_bias_2d
from .shared_prefixes import shared_prefix
from .sink_and_window import sink_window
from .sinks import attention_sink
from .softcap import tanh_softcap
from .t5 import t5_bias
from .temperature import head_temperature
from .tile_3d import sliding_tile_3d
from .two_sided import two_sided_window
from .window import sliding_window

__all__ = [
    "GALLERY", "Example", "alibi_bias", "alibi_slopes", "attention_sink", "block_diffusion", "causal_bottom_right",
    "causal_mask", "dilated_window", "document_causal", "document_mask", "head_temperature", "learned_relative_bias",
    "neighborhood_2d", "pooled_tiles", "prefix_lm", "random_blocks", "random_tile_map", "relative_bias_2d", "shared_prefix",
    "sink_window", "sliding_tile_3d", "sliding_window", "t5_bias", "tanh_softcap", "two_sided_window",
]
