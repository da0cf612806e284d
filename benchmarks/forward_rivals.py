"""The rivals of forward.py: each makes a function without arguments that runs one case and returns out [B, H, S, Dv]."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch

from flexfa4 import create_block_mask, flex_attention
from flexfa4.runtime import engine
from flexfa4.trace import bind

# 12 ragged documents, as many tokens as the long case has.
DOCUMENTS = (349, 258, 3417, 1107, 2420, 2330, 482, 936, 3589, 452, 197, 847)


# The longest sequence whose mask torch builds pair by pair.
_EAGER_MASK = 32768


class Unsupported(Exception):
    """The rival has no such case."""


@dataclass(frozen=True)
class Mod:
    """A mod as functions, and as arguments of flash-attn-4's own interface (None: it has none). captured: a tensor of the score
    change, where `fa4_mods` has that in flash-attn-4's form."""

    score_mod: Callable | None = None
    mask_mod: Callable | None = None
    fa4: dict | None = None
    captured: torch.Tensor | None = None


def causal(b, h, q, kv):
    return q >= kv


def _plain(case) -> Mod:
    return Mod(fa4={})


def _causal(case) -> Mod:
    return Mod(mask_mod=causal, fa4=dict(causal=True))


def _window(size: int) -> Callable:
    return lambda case: Mod(mask_mod=lambda b, h, q, kv: (q >= kv) & (q - kv < size),
                            fa4=dict(causal=True, window_size=(size - 1, 0)))


def _document(case) -> Mod:
    ids = torch.repeat_interleave(torch.arange(len(DOCUMENTS)), torch.tensor(DOCUMENTS)).cuda()
    return Mod(mask_mod=lambda b, h, q, kv: (ids[q] == ids[kv]) & (q >= kv))


def _prefix(case) -> Mod:
    return Mod(mask_mod=lambda b, h, q, kv: (q >= kv) | (kv < 2048))


def _alibi(case) -> Mod:
    slopes = torch.exp2(-8.0 * torch.arange(1, case.heads + 1, device="cuda") / case.heads)
    return Mod(score_mod=lambda s, b, h, q, kv: s - slopes[h] * (q - kv), mask_mod=causal, captured=slopes)


def _softcap(case) -> Mod:
    return Mod(score_mod=lambda s, b, h, q, kv: 30 * torch.tanh(s / 30), mask_mod=causal, fa4=dict(causal=True, softcap=30.0))


def _relative_bias(case) -> Mod:
    length = case.length
    bias = torch.randn(2 * length, generator=torch.Generator(device="cuda").manual_seed(1), device="cuda").bfloat16()
    return Mod(score_mod=lambda s, b, h, q, kv: s + bias[q - kv + length], mask_mod=causal, captured=bias)


MODS = {"plain": _plain, "causal": _causal, "window1024": _window(1024), "window128": _window(128), "document": _document,
        "prefix2048": _prefix, "alibi_causal": _alibi, "softcap_causal": _softcap, "relbias_causal": _relative_bias}


def flexfa4(case, q, k, v):
    mod = MODS[case.mod](case)
    mask = None
    if mod.mask_mod is not None:
        mask = create_block_mask(mod.mask_mod, None, None, case.length, case.length, device="cuda")
    gqa = case.heads != case.kv_heads
    return lambda: flex_attention(q, k, v, score_mod=mod.score_mod, block_mask=mask, enable_gqa=gqa)


def planned(case, mask, score_mod: Callable | None = None):
    """(plan, spans) of a call on a Hopper GPU; mask: a BlockMask, or None, for which the spans are None too."""
    q = torch.empty(case.batch, case.heads, case.queries or case.length, case.dim, dtype=torch.bfloat16, device="meta")
    k, v = (torch.empty(case.batch, case.kv_heads, case.length, n, dtype=q.dtype, device="meta") for n in (case.dim, case.dim_v))
    score = bind(score_mod, "score") if score_mod else None
    choice = engine.choose("sm90", q, k, v, 1.0, (score, mask and mask.bound, None))
    if mask is None:
        return choice.plan, None
    return choice.settled(lambda plan: mask.work_spans(plan.q_tile, plan.tiles.kv_tile))


def _our_mask(case) -> Callable | None:
    """With the spans of the tiles that the kernel takes, and of those it might have taken."""
    mask_mod = MODS[case.mod](case).mask_mod
    if mask_mod is None:
        return None
    shape = (None, None, case.length, case.length)
    return lambda: planned(case, create_block_mask(mask_mod, *shape, device="cuda"))


def _torch_mask(case) -> Callable | None:
    from torch.nn.attention.flex_attention import create_block_mask as build
    mask_mod = MODS[case.mod](case).mask_mod
    if mask_mod is None or case.length > _EAGER_MASK:
        return None
    return lambda: build(mask_mod, None, None, case.length, case.length, device="cuda")


def fa4(case, q, k, v):
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
    mod = MODS[case.mod](case)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if case.mod == "document":
        ends = torch.tensor(DOCUMENTS * case.batch, device="cuda").cumsum(0)
        bounds = torch.cat([ends.new_zeros(1), ends]).int()
        flat = [t.reshape(-1, *t.shape[2:]) for t in (q, k, v)]
        longest = max(DOCUMENTS)
        run = _first(lambda: flash_attn_varlen_func(*flat, cu_seqlens_q=bounds, cu_seqlens_k=bounds, max_seqlen_q=longest,
                                                    max_seqlen_k=longest, causal=True))
        return lambda: run().view(*q.shape[:3], -1).transpose(1, 2)
    own = mod.fa4
    if mod.captured is not None:
        import fa4_mods
        own = fa4_mods.arguments(case.mod, mod.captured)
    if own is None:
        raise Unsupported("no native form; a mask of its own with the tiles that it skips is what FLASH measures")
    # Few queries: it splits the keys where its own rule says so; not on Hopper, where it cannot.
    splits = dict(num_splits=0) if case.queries and torch.cuda.get_device_capability()[0] >= 10 else {}
    run = _first(lambda: flash_attn_func(q, k, v, **own, **splits))
    return lambda: run().transpose(1, 2)


def _first(run: Callable) -> Callable:
    def call():
        out = run()
        return out[0] if isinstance(out, tuple) else out
    return call


def cudnn(case, q, k, v):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    if case.mod not in ("plain", "causal"):
        raise Unsupported("dense and causal only")

    def run():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=case.mod == "causal", enable_gqa=case.heads != case.kv_heads)
    return run


def _flex(backend: str) -> Callable:
    def make(case, q, k, v):
        from torch.nn.attention import flex_attention as flex
        mod = MODS[case.mod](case)
        torch._dynamo.reset()
        mask = None
        if mod.mask_mod is not None:
            # Compiled, its first call takes up to 41 s; uncompiled it needs memory for every pair.
            build = flex.create_block_mask if case.length <= _EAGER_MASK else torch.compile(flex.create_block_mask)
            mask = build(mod.mask_mod, None, None, case.length, case.length, device="cuda")
        compiled = torch.compile(flex.flex_attention)
        options = {"BACKEND": backend}
        return lambda: compiled(q, k, v, score_mod=mod.score_mod, block_mask=mask, enable_gqa=case.heads != case.kv_heads,
                                kernel_options=options)
    return make


RIVALS = {"flexfa4": flexfa4, "fa4": fa4, "cudnn": cudnn, "triton": _flex("TRITON"), "flash": _flex("FLASH")}
MASK_BUILDERS = {"flexfa4": _our_mask, "triton": _torch_mask}
