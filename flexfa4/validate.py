"""What is wrong with the arguments of `flex_attention`, said before any work: which argument, its value, what was expected, and
what to write instead."""
from __future__ import annotations

import numbers
import sys

import torch
from torch import Tensor

from flexfa4.errors import ShapeError, UnsupportedError
from flexfa4.ir import Op
from flexfa4.ir.bound import BoundGraph
from flexfa4.sparsity import BlockMask, FixedMask

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_tensors(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Raises ShapeError unless query [B, Hq, Sq, D], key [B or 1, Hkv, Skv, D] and value [B or 1, Hkv, Skv, Dv] fit together."""
    named = (("query", query), ("key", key), ("value", value))
    for name, t in named:
        if not isinstance(t, Tensor):
            raise ShapeError(f"{name} is a {type(t).__name__}: expected a tensor")
        if type(t).__name__ == "DTensor":
            raise ShapeError(f"{name} is a DTensor: attention runs on the local part, {name}.to_local()")
        check_dense(name, t)
        if t.dim() != 4:
            raise ShapeError(f"{name} has shape {_shape(t)}, {t.dim()} dimensions: expected 4, (batch, heads, length, head dim); "
                             "add missing ones with unsqueeze")
    _check_kind(query, key, value)
    if key.shape[:3] != value.shape[:3]:
        raise ShapeError(f"key has shape {_shape(key)} and value {_shape(value)}: batch, heads and length must be equal "
                         "(the head dim of value may differ)")
    if query.shape[3] != key.shape[3]:
        raise ShapeError(f"query has head dim {query.shape[3]} and key {key.shape[3]}: they must be equal")
    if 0 in (query.shape[3], value.shape[3]):
        raise ShapeError(f"query has shape {_shape(query)} and value {_shape(value)}: a head dim of 0 is not allowed")
    if key.shape[0] not in (1, query.shape[0]):
        raise ShapeError(f"query has batch {query.shape[0]} and key and value have batch {key.shape[0]}: expected the same, or 1")
    if query.shape[1] == 0:
        raise ShapeError(f"query has shape {_shape(query)}: expected at least one head")
    check_heads(query.shape[1], key.shape[1], enable_gqa)


def check_dense(name: str, t: Tensor) -> None:
    """Raises ShapeError for a nested or sparse tensor."""
    if t.is_nested:
        raise ShapeError(f"{name} is a nested tensor: expected a strided one; pack the rows into one with a document mask "
                         "(flexfa4.mods.document_mask), or pad them: torch.nested.to_padded_tensor")
    if t.layout is not torch.strided:
        raise ShapeError(f"{name} has layout {t.layout}: expected a strided tensor, made by .to_dense()")


def _check_kind(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.dtype not in DTYPES:
        raise ShapeError(f"query has dtype {query.dtype}: expected one of {', '.join(map(str, DTYPES))}")
    for name, t in (("key", key), ("value", value)):
        if t.dtype is not query.dtype:
            raise ShapeError(f"query has dtype {query.dtype} and {name} has dtype {t.dtype}: convert one, for example "
                             f"{name}.to(query.dtype)")
        if t.device != query.device:
            raise ShapeError(f"query is on {query.device} and {name} is on {t.device}: move one, for example "
                             f"{name}.to(query.device)")


def check_heads(query_heads: int, kv_heads: int, enable_gqa: bool) -> None:
    """Raises ShapeError unless the head counts are equal, or enable_gqa is set and kv_heads divides query_heads."""
    if query_heads == kv_heads:
        return
    if not enable_gqa:
        raise ShapeError(f"query has {query_heads} heads and key and value have {kv_heads}: pass enable_gqa=True if "
                         "query heads share key heads")
    if kv_heads == 0 or query_heads % kv_heads:
        raise ShapeError(f"query has {query_heads} heads and key and value have {kv_heads}: with enable_gqa=True "
                         "the number of query heads must be a multiple of the number of key heads")


def check_mask(mask: BlockMask | FixedMask, query: Tensor, key: Tensor) -> None:
    """Raises ShapeError unless a BlockMask was made for the call's lengths, batch and heads."""
    batch, heads, q_len, kv_len = mask.shape
    whose = f"{mask.bound.origin.where()}: block_mask of {mask.bound.origin.name}"
    if (q_len, kv_len) != (query.shape[2], key.shape[2]):
        lying = ""
        if (q_len, kv_len) == (query.shape[1], key.shape[1]):
            lying = "transpose(1, 2) tensors that lie as [B, length, heads, head dim], or "
        raise ShapeError(f"{whose} was made for Q_LEN={q_len}, KV_LEN={kv_len}, and the call has query length "
                         f"{query.shape[2]} and key length {key.shape[2]}: {lying}use "
                         f"block_mask.resize({query.shape[2]}, {key.shape[2]}), or create_block_mask with these lengths")
    graph = mask.bound.graph
    for op, name, made, called in ((Op.B, "B", batch, query.shape[0]), (Op.H, "H", heads, query.shape[1])):
        if made != called and graph.uses(op):
            what = "batch" if op is Op.B else "head"
            raise ShapeError(f"{whose} was made with {name}={made}, its mask_mod depends on the {what}, and the call "
                             f"has {called}: make it with {name}={called}")


def check_captures(bound: BoundGraph, device: torch.device) -> None:
    """Raises ShapeError if a captured tensor is on another device than query; 0-d tensors may stay on the CPU."""
    names = bound.origin.capture_names
    for i, t in enumerate(bound.tensors):
        name = names[i] if i < len(names) else f"capture {i}"
        if t.device != device and not (t.dim() == 0 and t.device.type == "cpu"):
            raise ShapeError(f"{bound.origin.where()}: {bound.origin.name} captures {name} on {t.device}, and query is on "
                             f"{device}: move it, for example {name}.to(query.device)")


def _shape(t: Tensor) -> str:
    return str(tuple(t.shape))


def check_flags(**flags: bool) -> None:
    """Raises ShapeError for a flag that is no bool."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ShapeError(f"{name}={value!r}: expected True or False")


def check_scale(scale: float | None) -> None:
    """Raises where `scale` is not a plain finite number, or would lose its gradient."""
    _check_kind_of_scale(scale)
    if scale is not None and not _is_finite(scale):
        raise ShapeError(f"scale={scale!r}: expected a finite number, or None for 1 / sqrt(head dim)")


def _is_finite(scale) -> bool:
    # By arithmetic, which is the same for tensors and for the symbol that Dynamo may have for a number; an int may have no float.
    if isinstance(scale, int):
        return abs(scale) <= sys.float_info.max
    return bool(scale - scale == 0)


def _check_kind_of_scale(scale: float | None) -> None:
    if scale is None or isinstance(scale, (int, float)):
        return
    if isinstance(scale, Tensor) and scale.numel() == 1 and not scale.is_complex():
        if scale.requires_grad:
            raise UnsupportedError(f"scale={scale!r} requires grad, and scale is taken as a number: multiply the query by it "
                                   "and pass scale=1.0, or multiply the score by it in a score_mod, to train it")
        return
    if not isinstance(scale, numbers.Real):
        raise ShapeError(f"scale={scale!r}: expected a number, or None for 1 / sqrt(head dim)")
