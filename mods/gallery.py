"""The gallery: every mod of this folder set up at any size, for tests, pictures and benchmarks."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Callable

import torch

from .alibi import alibi_bias, alibi_slopes
from .bottom_right import causal_bottom_right
from .causal import causal_mask
from .diffusion_blocks import block_diffusion
from .dilated import dilated_window
from .documents import document_mask
from .documents_causal import document_causal
from .learned_relative import learned_relative_bias
from .natten import neighborhood_2d
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


@dataclass(frozen=True)
class Example:
    """One mod of the gallery at a size. Calling it gives the same mod at another size.

    kind: "mask", "score" or "out", which of the three functions the entry is about. `seq_len` counts keys; queries are as many,
    except where `short_queries` says that they are the last quarter.
    """

    name: str
    kind: str
    build: Callable[["Example", torch.device, torch.dtype], dict]
    seq_len: int = 256
    heads: int = 4
    batch: int = 2
    kv_heads: int = 2
    head_dim: int = 16
    short_queries: bool = False

    def __call__(self, **sizes: int) -> "Example":
        """This example with other sizes: seq_len, heads, batch, kv_heads, head_dim. `kv_heads` follows `heads` if not given."""
        if "heads" in sizes and "kv_heads" not in sizes:
            sizes["kv_heads"] = math.gcd(sizes["heads"], self.kv_heads)
        return replace(self, **sizes)

    @property
    def q_len(self) -> int:
        return -(-self.seq_len // 4) if self.short_queries else self.seq_len

    @property
    def kv_len(self) -> int:
        return self.seq_len

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """(B, H, Sq, D)."""
        return self.batch, self.heads, self.q_len, self.head_dim

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """(B, Hkv, Skv, D)."""
        return self.batch, self.kv_heads, self.kv_len, self.head_dim

    def make(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> dict:
        """{"mask_mod", "score_mod", "out_mod": a function or None, "captures": {name: tensor that requires a gradient}}.

        Captured float tensors have `dtype`; their values are the same on every call.
        """
        entry = dict(mask_mod=None, score_mod=None, out_mod=None, captures={})
        entry.update(self.build(self, torch.device(device), dtype))
        return entry


def ragged_labels(seq_len: int, documents: int, seed: int = 0) -> torch.Tensor:
    """Labels [seq_len] of consecutive documents whose lengths vary: int64, non-decreasing."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(1, max(2, seq_len), (max(0, documents - 1),), generator=generator).unique()
    return torch.bucketize(torch.arange(seq_len), starts, right=True)


def grid_of(count: int, axes: int) -> tuple[int, ...]:
    """`axes` integers, as equal as divisibility allows, whose product is `count`."""
    if axes == 1:
        return (count,)
    ideal = round(count ** (1 / axes))
    first = max(d for d in range(1, max(1, ideal) + 1) if count % d == 0)
    return first, *grid_of(count // first, axes - 1)


def _learned(*shape: int, device: torch.device, dtype: torch.dtype, around: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    values = around + 0.5 * torch.randn(*shape, generator=generator)
    return values.to(device=device, dtype=dtype).requires_grad_()


def _causal(size, device, dtype):
    return dict(mask_mod=causal_mask)


def _bottom_right(size, device, dtype):
    return dict(mask_mod=causal_bottom_right(size.q_len, size.kv_len))


def _window(size, device, dtype):
    return dict(mask_mod=sliding_window(max(1, size.seq_len // 8)))


def _two_sided(size, device, dtype):
    return dict(mask_mod=two_sided_window(left=size.seq_len // 8, right=size.seq_len // 16))


def _prefix(size, device, dtype):
    lengths = [size.seq_len // 4 + b * size.seq_len // (4 * size.batch) for b in range(size.batch)]
    return dict(mask_mod=prefix_lm(torch.tensor(lengths, device=device)))


def _documents(size, device, dtype):
    rows = [ragged_labels(size.seq_len, max(2, size.seq_len // 64), seed=b) for b in range(size.batch)]
    return dict(mask_mod=document_mask(torch.stack(rows).to(device)))


def _documents_causal(size, device, dtype):
    return dict(mask_mod=document_causal(ragged_labels(size.seq_len, max(2, size.seq_len // 64)).to(device)))


def _dilated(size, device, dtype):
    return dict(mask_mod=dilated_window(window=max(1, size.seq_len // 32), dilation=4))


def _sink_window(size, device, dtype):
    return dict(mask_mod=sink_window(sink=4, window=max(1, size.seq_len // 8)))


def _shared_prefix(size, device, dtype):
    prefix = size.seq_len // 2
    branches = ragged_labels(size.seq_len - prefix, 4) + 1
    labels = torch.cat([torch.zeros(prefix, dtype=torch.int64), branches]).to(device)
    return dict(mask_mod=shared_prefix(prefix, labels))


def _natten(size, device, dtype):
    height, width = grid_of(size.seq_len, 2)
    return dict(mask_mod=neighborhood_2d(height, width, kernel=min(7, height)))


def _tile_3d(size, device, dtype):
    tile = (4, 8, 8) if size.seq_len >= 16384 else (1, 2, 4)
    grid = grid_of(-(-size.seq_len // math.prod(tile)), 3)
    return dict(mask_mod=sliding_tile_3d(grid, tile, window=tuple(min(3, n) for n in grid)))


def _block_diffusion(size, device, dtype):
    return dict(mask_mod=block_diffusion(clean_len=-(-size.seq_len // 2), block=16))


def _alibi(size, device, dtype):
    slopes = alibi_slopes(size.heads, device, dtype).requires_grad_()
    return dict(score_mod=alibi_bias(slopes), mask_mod=causal_mask, captures=dict(slopes=slopes))


def _softcap(size, device, dtype):
    return dict(score_mod=tanh_softcap(cap=2.0))


def _t5(size, device, dtype):
    table = _learned(32, size.heads, device=device, dtype=dtype)
    return dict(score_mod=t5_bias(table, bidirectional=True), captures=dict(table=table))


def _learned_relative(size, device, dtype):
    table = _learned(size.heads, 2 * min(64, size.seq_len) + 1, device=device, dtype=dtype)
    return dict(score_mod=learned_relative_bias(table), captures=dict(table=table))


def _relative_2d(size, device, dtype):
    height, width = grid_of(size.seq_len, 2)
    table = _learned(size.heads, 2 * height - 1, 2 * width - 1, device=device, dtype=dtype)
    return dict(score_mod=relative_bias_2d(table, width), captures=dict(table=table))


def _temperature(size, device, dtype):
    gain = _learned(size.heads, device=device, dtype=dtype, around=1.0)
    return dict(score_mod=head_temperature(gain), captures=dict(gain=gain))


def _sink(size, device, dtype):
    sinks = _learned(size.heads, device=device, dtype=dtype)
    return dict(out_mod=attention_sink(sinks), mask_mod=causal_mask, captures=dict(sinks=sinks))


def _random_blocks(size, device, dtype):
    tile = 128 if size.seq_len >= 1024 else 32
    tile_map = random_tile_map(size.heads, size.q_len, size.kv_len, tile, share=0.1)
    return dict(mask_mod=random_blocks(tile_map.to(device), tile))


GALLERY = [
    Example("causal", "mask", _causal),
    Example("causal_bottom_right", "mask", _bottom_right, short_queries=True),
    Example("sliding_window", "mask", _window),
    Example("two_sided_window", "mask", _two_sided),
    Example("prefix_lm", "mask", _prefix),
    Example("document", "mask", _documents),
    Example("document_causal", "mask", _documents_causal),
    Example("dilated_window", "mask", _dilated),
    Example("sink_window", "mask", _sink_window),
    Example("shared_prefix", "mask", _shared_prefix),
    Example("neighborhood_2d", "mask", _natten),
    Example("sliding_tile_3d", "mask", _tile_3d),
    Example("block_diffusion", "mask", _block_diffusion),
    Example("random_blocks", "mask", _random_blocks),
    Example("alibi", "score", _alibi),
    Example("softcap", "score", _softcap),
    Example("t5_bias", "score", _t5),
    Example("learned_relative_bias", "score", _learned_relative),
    Example("relative_bias_2d", "score", _relative_2d),
    Example("head_temperature", "score", _temperature),
    Example("attention_sink", "out", _sink),
]
