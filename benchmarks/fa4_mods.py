"""Score changes of forward_rivals in flash-attn-4's own form: functions of its compiler, tensors beside them. Needs
nvidia-cutlass-dsl."""
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32


@cute.jit
def alibi(scores, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    """scores - slopes[h] * (q - kv)."""
    head = cute.make_rmem_tensor(1, Int32)
    head.store(h_idx)
    slope = cute.make_rmem_tensor(1, Float32)
    slope[0] = Float32(aux_tensors[0][head[0]])
    return scores - slope.load() * (q_idx - kv_idx).to(Float32)


@cute.jit
def relative_bias(scores, b_idx, h_idx, q_idx, kv_idx, seqlen_info, aux_tensors):
    """scores + bias[q - kv + length], bias [2 * length]."""
    distance = cute.make_rmem_tensor(1, Int32)
    distance.store(q_idx - kv_idx)
    bias = cute.make_rmem_tensor(1, Float32)
    bias[0] = Float32(aux_tensors[0][distance[0] + aux_tensors[0].shape[0] // 2])
    return scores + bias.load()


MODS = {"alibi_causal": alibi, "relbias_causal": relative_bias}


def arguments(mod: str, captured: torch.Tensor) -> dict:
    """Of flash_attn_func; captured: what the mod of forward_rivals closes over."""
    return dict(causal=True, score_mod=MODS[mod], aux_tensors=[captured])
