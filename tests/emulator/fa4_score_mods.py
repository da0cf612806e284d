"""Score changes and a mask in flash-attn-4's own form, to compare the code it makes of them: vectors in registers."""

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32

HEADS = 4
SPAN = 64


@cute.jit
def alibi(scores, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    """scores + 2 ** (-8 (h_idx + 1) / heads) * (kv - q)."""
    slope = cute.math.exp2((h_idx + 1).to(Float32) * (-8.0 / HEADS), fastmath=True)
    return scores + slope * (kv_idx - q_idx).to(Float32)


@cute.jit
def relative(scores, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    """scores + table[h, clamp(kv - q, -SPAN, SPAN) + SPAN]."""
    distance = cute.make_rmem_tensor(1, Int32)
    distance.store(kv_idx - q_idx)
    head = cute.make_rmem_tensor(1, Int32)
    head.store(h_idx)
    at = cutlass.min(cutlass.max(distance[0], Int32(-SPAN)), Int32(SPAN)) + SPAN
    bias = cute.make_rmem_tensor(1, Float32)
    bias[0] = Float32(aux_tensors[0][head[0], at])
    return scores + bias.load()


@cute.jit
def documents(b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    """Causal within a document; table[position] is a position's document."""
    at = cute.make_rmem_tensor(2, Int32)
    at[0], at[1] = q_idx[0], kv_idx[0]
    of = cute.make_rmem_tensor(2, Int32)
    of[0], of[1] = aux_tensors[0][at[0]], aux_tensors[0][at[1]]
    same = cute.make_rmem_tensor(1, cutlass.Boolean)
    same[0] = of[0] == of[1]
    return same.load() & (q_idx >= kv_idx)


def aux(name: str):
    tables = dict(relative=lambda: [torch.zeros(HEADS, 2 * SPAN + 1)], documents=lambda: [torch.zeros(512, dtype=torch.int32)])
    return tables[name]() if name in tables else None
