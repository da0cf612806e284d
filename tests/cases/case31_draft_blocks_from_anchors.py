"""Draft-model training: each block of queries starts at an anchor, sees earlier context and its own noise block.

Spare blocks are padding.
"""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v"), "empty_rows": "zero"}


def make(device):
    ctx, blk = 120, 16
    anchor = torch.tensor([[0, 17, 64, 103, -1], [5, -1, -1, -1, -1]], device=device)   # -1: unused block
    n_blk = anchor.shape[1]

    def mask_mod(b, h, q, k):
        qb = q // blk
        a = anchor[b, qb]
        is_ctx = k < ctx
        kb = (k - ctx) // blk                       # negative for context keys, never used there
        return (a >= 0) & ((is_ctx & (k < a)) | (~is_ctx & (kb == qb)))

    Q = n_blk * blk
    return dict(name="draft_blocks_from_anchors", source="sgl-project/SpecForge#463",
                q_shape=(2, 4, Q, 64), kv_shape=(2, 2, ctx + Q, 64), v_dim=64, dtype=torch.bfloat16,
                score_mod=None, mask_mod=mask_mod, requires_grad_captured=[],
                note="Q != KV, whole padding blocks are dead rows; mask is head-independent so it should be stored once, "
                     "not per head (SpecForge#452)")
