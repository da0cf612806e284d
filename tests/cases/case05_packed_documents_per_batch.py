"""Packed training rows: each batch row has its own document numbering, attention stays inside a document and causal."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v"), "max_compiles_for_new_values": 1}


def make(device, lengths=((7, 150, 143), (299, 1, 0))):
    S = 300
    rows = []
    for row in lengths:
        rows.append(torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)))
    doc = torch.stack(rows).to(device)   # int64 [B, S]

    def mask_mod(b, h, q, k):
        return (doc[b, q] == doc[b, k]) & (q >= k)

    return dict(name="packed_documents_per_batch", source="meta-pytorch/attention-gym#70",
                q_shape=(2, 4, S, 64), kv_shape=(2, 2, S, 64), v_dim=64, dtype=torch.bfloat16,
                score_mod=None, mask_mod=mask_mod, requires_grad_captured=[],
                note="int64 capture read at [b,q] and [b,k]; S=300; new doc values each step must not recompile (also "
                     "torchtune#1193, pytorch#157675)")


def variants(device):
    return [make(device), make(device, ((100, 100, 100), (1, 298, 1)))]
