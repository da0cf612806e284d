"""Captures of every integer width, arithmetic between them, and an int8 sum that would overflow if kept narrow."""
import torch

EXPECT = {"kind": "value", "grads": ("q", "k", "v")}


def make(device):
    S = 111
    g = torch.Generator().manual_seed(62)
    u8 = torch.randint(0, 255, (S,), generator=g).to(torch.uint8).to(device)
    i8 = torch.randint(-100, 100, (S,), generator=g).to(torch.int8).to(device)
    i16 = torch.randint(-5, 5, (S,), generator=g).to(torch.int16).to(device)
    i32 = torch.randint(0, S, (S,), generator=g).to(torch.int32).to(device)
    i64 = torch.randint(-2 ** 40, 2 ** 40, (S,), generator=g).to(device)

    def score_mod(score, b, h, q, k):
        near = (i8[q].to(torch.int32) + i8[k]) * 0.01
        return score + near - i16[k] * 0.1 + (u8[i32[k]] > 127) * 0.5

    def mask_mod(b, h, q, k):
        return (i64[q] < i64[k] + 2 ** 39) | (q == k)

    return dict(name="small_integer_captures", source="pytorch/pytorch#175545",
                q_shape=(1, 2, S, 64), kv_shape=(1, 2, S, 64), v_dim=64, dtype=torch.float16,
                score_mod=score_mod, mask_mod=mask_mod, requires_grad_captured=[],
                note="bool*float, int32-indexed gather, int64 values beyond 32 bits must be compared exactly")
