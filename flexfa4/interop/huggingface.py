"""flexfa4 as an attention implementation of Hugging Face transformers.

Importing this module registers the name "flexfa4" with transformers' two registries, so that any model written against them
runs on `flexfa4.flex_attention`:

    import flexfa4.interop.huggingface as hf
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="flexfa4")   # or model.set_attn_implementation
    with hf.attention_mods(mask_mod=my_mask, score_mod=my_score):
        model(input_ids)

The mask registry is asked once a forward pass and answers with a `LayerMask`: a recipe, from which the layers of that pass make
one BlockMask between them. Causal, sliding-window, chunked, padded, packed (position_ids that start again) and cached (static or
growing) masks all arrive as the library's own mask functions and are traced like a user's.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Callable, Collection, Iterator

import torch

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function
except ImportError as missing:
    raise ImportError("flexfa4.interop.huggingface needs transformers 5.20 or newer: pip install 'flexfa4[demo]'") from missing

from ..api import flex_attention
from ..errors import ShapeError, UnsupportedError
from ..sparsity import BlockMask, and_masks, create_block_mask

NAME = "flexfa4"
COMBINATIONS = ("and", "replace")


@dataclass(frozen=True)
class Mods:
    """One change of a model's attention: see `attention_mods`."""

    mask_mod: Callable | None = None
    score_mod: Callable | None = None
    combine: str = "and"
    layers: frozenset[int] | None = None

    def covers(self, layer: int | None) -> bool:
        return self.layers is None or layer in self.layers


_active: ContextVar[tuple[Mods, ...]] = ContextVar("flexfa4_attention_mods", default=())


@contextmanager
def attention_mods(
    mask_mod: Callable | None = None,
    score_mod: Callable | None = None,
    *,
    combine: str = "and",
    layers: Collection[int] | None = None,
) -> Iterator[None]:
    """Within the block, models with attn_implementation="flexfa4" also apply these mods. Blocks nest; score mods run
    outermost first.

    mask_mod(b, h, q, kv) -> bool and score_mod(score, b, h, q, kv) -> float see the query head and absolute positions in the row:
    with a cache, q counts the tokens already cached. combine="and" narrows the model's own mask; "replace" puts mask_mod in its
    place (padding stays masked), which is how a causal model is run with a prefix-LM mask. layers limits both to those layer
    indices. Raises ValueError for another `combine`, and for "replace" without a mask_mod.
    """
    if combine not in COMBINATIONS:
        raise ValueError(f"{combine=}: expected one of {COMBINATIONS}")
    if combine == "replace" and mask_mod is None:
        raise ValueError("combine='replace' needs a mask_mod to put in the place of the model's own mask")
    mods = Mods(mask_mod, score_mod, combine, None if layers is None else frozenset(layers))
    token = _active.set((*_active.get(), mods))
    try:
        yield
    finally:
        _active.reset(token)


@dataclass
class LayerMask:
    """What the layers of one forward pass need to make their BlockMask.

    `rule(b, h, q, kv)` is the model's own mask over absolute positions (None: everything); `padding` is bool [batch, keys], True
    on real tokens, or None; query i stands at position i + q_offset, key j at j + kv_offset (int, or 0-d int64 tensor).
    """

    batch: int
    q_length: int
    kv_length: int
    q_offset: int | torch.Tensor = 0
    kv_offset: int | torch.Tensor = 0
    rule: Callable | None = None
    padding: torch.Tensor | None = None
    ndim = 4  # transformers takes a mask of two dimensions for padding, and passes on one of four that generate() made beforehand
    _made: dict[tuple, BlockMask | None] = field(default_factory=dict, repr=False)

    def contiguous(self) -> LayerMask:
        """generate() of transformers 5.20 asks every mask for this."""
        return self

    def block_mask(self, mods: tuple[Mods, ...], heads: int, device: torch.device) -> BlockMask | None:
        """The mask of layers under these mods, made on first use; None where nothing is masked."""
        key = (*((m.mask_mod, m.combine) for m in mods if m.mask_mod is not None), heads)
        if key not in self._made:
            self._made[key] = self._make(mods, heads, device)
        return self._made[key]

    def _make(self, mods: tuple[Mods, ...], heads: int, device: torch.device) -> BlockMask | None:
        rules = [] if self.rule is None else [self.rule]
        for m in mods:
            if m.mask_mod is not None:
                rules = [m.mask_mod] if m.combine == "replace" else [*rules, m.mask_mod]
        if self.padding is not None:
            rules.append(_real_keys(self.padding))
        if not rules:
            return None
        rule = rules[0] if len(rules) == 1 else and_masks(*rules)
        shifted = _shift_mask(rule, self.q_offset, self.kv_offset)
        return create_block_mask(shifted, self.batch, heads, self.q_length, self.kv_length, device=device)


def _real_keys(padding: torch.Tensor) -> Callable:
    def real_keys(b, h, q, kv):
        return padding[b, kv]

    return real_keys


def _is_zero(offset: int | torch.Tensor) -> bool:
    return isinstance(offset, int) and offset == 0


def _shift_mask(rule: Callable, q_offset, kv_offset) -> Callable:
    """`rule` over the indices of this call. No offset: `rule` itself, so that its traced graph is found again."""
    if _is_zero(q_offset) and _is_zero(kv_offset):
        return rule

    def shifted(b, h, q, kv):
        return rule(b, h, q + q_offset, kv + kv_offset)

    return shifted


def _shift_score(score_mod: Callable, q_offset, kv_offset) -> Callable:
    if _is_zero(q_offset) and _is_zero(kv_offset):
        return score_mod

    def shifted(score, b, h, q, kv):
        return score_mod(score, b, h, q + q_offset, kv + kv_offset)

    return shifted


def _then(first: Callable | None, second: Callable) -> Callable:
    if first is None:
        return second

    def composed(score, b, h, q, kv):
        return second(first(score, b, h, q, kv), b, h, q, kv)

    return composed


def _softcap(cap: float) -> Callable:
    def softcap(score, b, h, q, kv):
        return cap * torch.tanh(score / cap)

    return softcap


def _added(bias: torch.Tensor, batch: int, heads: int, q_length: int, kv_length: int) -> Callable:
    """score + bias[b, h, q, kv], for a bias [batch or 1, heads or 1, >= q_length, >= kv_length]."""
    view = _expanded(bias, batch, heads, q_length, kv_length)

    def added(score, b, h, q, kv):
        return score + view[b, h, q, kv]

    return added


def _expanded(table: torch.Tensor, batch: int, heads: int, q_length: int, kv_length: int) -> torch.Tensor:
    if table.ndim != 4 or table.shape[2] < q_length or table.shape[3] < kv_length:
        raise ShapeError(
            f"attention_mask has shape {tuple(table.shape)}: expected (batch or 1, heads or 1, {q_length} queries, "
            f"{kv_length} keys)"
        )
    return table[:, :, :q_length, :kv_length].expand(batch, heads, q_length, kv_length)


def _sinks(s_aux: torch.Tensor) -> Callable:
    """A learned logit a head that takes part in the softmax and has no value: out * exp(lse) / (exp(lse) + exp(sink))."""

    def sinks(out, lse, b, h, q):
        return out * torch.sigmoid(lse - s_aux[h])

    return sinks


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int | torch.Tensor = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: torch.Tensor | LayerMask | None = None,
    **_,
) -> LayerMask:
    """transformers' mask interface. `attention_mask` is the 2-D padding mask [batch, keys seen so far], True on real tokens."""
    if isinstance(attention_mask, LayerMask):
        return attention_mask
    rule = None if mask_function is bidirectional_mask_function else mask_function
    padding = attention_mask
    if padding is not None:
        padding = padding.to(torch.bool)
        absent = kv_length + kv_offset - padding.shape[-1]
        if absent > 0:  # a static cache has slots that no token has reached
            padding = torch.nn.functional.pad(padding, (0, absent))
        if bool(padding.all()):
            padding = None
    return LayerMask(batch_size, q_length, kv_length, q_offset, kv_offset, rule, padding)


def _layer_mask(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, given, is_causal: bool | None) -> LayerMask:
    """The LayerMask of this call. A dense 4-D mask and no mask at all put the last query at the last key."""
    if isinstance(given, LayerMask):
        return given
    batch, heads, q_length, _ = query.shape
    kv_length = key.shape[2]
    made = LayerMask(batch, q_length, kv_length, q_offset=kv_length - q_length)
    if given is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if causal and q_length > 1:
            made.rule = causal_mask_function
    elif given.dtype is torch.bool:
        view, offset = _expanded(given, batch, heads, q_length, kv_length), made.q_offset

        def allowed(b, h, q, kv):
            return view[b, h, q - offset, kv]

        made.rule = allowed
    return made


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: LayerMask | torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: q [B, H, Sq, D], k and v [B, Hkv, Skv, D] -> (output [B, Sq, H, D], no weights).

    Understands the library's `softcap`, `position_bias` and `s_aux` (sinks), dense 4-D masks (bool: True attends; float: added),
    and `mask_mod=`/`score_mod=` given to the model's forward where the model hands its keywords down. Raises UnsupportedError for
    dropout, ShapeError for a dense mask that does not fit.
    """
    if dropout > 0:
        raise UnsupportedError(f"{dropout=}: flexfa4 has no attention dropout; call model.eval(), or set attention_dropout=0")
    batch, heads, q_length, _ = query.shape
    kv_length = key.shape[2]
    mask = _layer_mask(module, query, key, attention_mask, options.get("is_causal"))
    given = Mods(options.get("mask_mod"), options.get("score_mod"))
    mods = tuple(m for m in (*_active.get(), given) if m.covers(getattr(module, "layer_idx", None)))

    score_mod = None if options.get("softcap") is None else _softcap(options["softcap"])
    if options.get("position_bias") is not None:
        score_mod = _then(score_mod, _added(options["position_bias"], batch, heads, q_length, kv_length))
    if isinstance(attention_mask, torch.Tensor) and attention_mask.dtype is not torch.bool:
        score_mod = _then(score_mod, _added(attention_mask, batch, heads, q_length, kv_length))
    for m in mods:
        if m.score_mod is not None:
            score_mod = _then(score_mod, _shift_score(m.score_mod, mask.q_offset, mask.kv_offset))
    sinks = options.get("s_aux")
    extra = {} if sinks is None else {"out_mod": _sinks(sinks)}
    out = flex_attention(
        query,
        key,
        value,
        score_mod,
        mask.block_mask(mods, heads, query.device),
        scale=scaling,
        enable_gqa=heads != key.shape[1],
        **extra,
    )
    return out.transpose(1, 2).contiguous(), None


def register(name: str = NAME) -> None:
    """Makes `attn_implementation=name` mean flexfa4. Importing this module has done it for "flexfa4"."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)


register()
