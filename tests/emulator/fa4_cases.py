"""Configurations of flash-attn-4 for the emulator, and their float64 references. `fa4.setup(arch)` must run before `run`."""

from dataclasses import dataclass, field

import torch

import fa4

WINDOW_MASK, SQUARE = "window mask", "square"  # a mask mod with block lists; a score mod


@dataclass(frozen=True)
class Case:
    """seq_q, seq_k: lengths, or tuples of them for variable length. options: arguments of both passes of flash-attn-4."""

    name: str
    batch: int
    seq_q: int | tuple
    seq_k: int | tuple
    heads: int
    kv_heads: int
    dim: int
    dim_v: int | None = None
    options: dict = field(default_factory=dict)
    mod: str = ""
    archs: tuple = ("sm_90a", "sm_100a")
    backward: bool = False
    clc: bool = False  # tiles handed out by cluster launch control
    scale: float = 1.0  # of the inputs: 3 makes the running maximum jump, so that rescaling happens

    @property
    def varlen(self) -> bool:
        return isinstance(self.seq_q, tuple)


CAUSAL = dict(causal=True)
SM100 = ("sm_100a",)
CASES = (
    Case("causal D=128", 1, 512, 512, 1, 1, 128, options=CAUSAL),
    Case("causal D=64", 2, 300, 300, 2, 2, 64, options=CAUSAL),
    Case("GQA", 1, 256, 512, 4, 2, 128, options=CAUSAL),
    Case("full, 2-CTA on sm_100a", 1, 512, 512, 2, 2, 128),
    Case("large scores", 1, 384, 512, 1, 1, 128, options=CAUSAL, scale=3.0),
    Case("window", 1, 640, 640, 1, 1, 128, options=dict(window_size_left=100, window_size_right=0)),
    Case("D=192/128", 1, 256, 256, 1, 1, 192, 128, options=CAUSAL),
    Case("backward D=96", 1, 256, 256, 1, 1, 96, options=CAUSAL, backward=True),
    Case("variable length", 1, (100, 257, 30), (100, 300, 64), 2, 1, 128, options=CAUSAL),
    Case("block-sparse mask mod", 1, 512, 512, 1, 1, 128, mod=WINDOW_MASK),
    Case("score mod", 1, 256, 384, 1, 1, 64, mod=SQUARE),
    Case("cluster launch control", 2, 512, 512, 2, 2, 128, options=CAUSAL, clc=True, archs=SM100),
    Case("backward causal D=128", 1, 256, 256, 1, 1, 128, options=CAUSAL, backward=True),
    Case("backward causal D=64", 1, 256, 256, 2, 2, 64, options=CAUSAL, backward=True),
    Case("backward full, 2-CTA on sm_100a", 1, 384, 512, 1, 1, 128, backward=True),
    Case("backward GQA", 1, 256, 256, 4, 2, 64, options=CAUSAL, backward=True),
    Case("backward window", 1, 384, 384, 1, 1, 64, options=dict(window_size_left=100, window_size_right=0), backward=True),
    Case("backward D=192/128", 1, 256, 256, 1, 1, 192, 128, options=CAUSAL, backward=True),
    Case("backward variable length", 1, (100, 200, 30), (100, 200, 64), 2, 1, 128, options=CAUSAL, backward=True),
    Case("backward block-sparse mask mod", 1, 512, 512, 1, 1, 128, mod=WINDOW_MASK, backward=True),
    Case("backward score mod", 1, 256, 256, 1, 1, 64, mod=SQUARE, backward=True),
    Case("backward deterministic", 1, 384, 384, 2, 1, 64, options=CAUSAL | dict(deterministic=True), backward=True),
    Case("backward deterministic 2-CTA", 1, 512, 512, 1, 1, 128, options=dict(deterministic=True), backward=True),
)
WIDTH = 150  # of the mask mod's window


def cases(arch: str) -> list[Case]:
    return [c for c in CASES if arch in c.archs]


def inputs(case: Case, seed: int = 0):
    """q, k, v, dout in bfloat16: (batch, seq, heads, dim), or (total, heads, dim) for variable length."""
    g = torch.Generator().manual_seed(seed)
    rows_q, rows_k = ((sum(case.seq_q), sum(case.seq_k)) if case.varlen else (case.seq_q, case.seq_k))
    lead = () if case.varlen else (case.batch,)

    def make(rows, heads, dim):
        return (torch.randn(*lead, rows, heads, dim, generator=g) * case.scale).bfloat16()

    dim_v = case.dim_v or case.dim
    return (make(rows_q, case.heads, case.dim), make(rows_k, case.kv_heads, case.dim), make(rows_k, case.kv_heads, dim_v),
            make(rows_q, case.heads, dim_v))


# ---- float64
def _allowed(case: Case, n_q: int, n_k: int) -> torch.Tensor:
    row, col = torch.arange(n_q)[:, None], torch.arange(n_k)[None]
    if case.mod == WINDOW_MASK:
        return (col <= row) & (row - col < WIDTH)
    row = row + n_k - n_q
    allowed = torch.ones(n_q, n_k, dtype=torch.bool)
    if case.options.get("causal"):
        allowed &= col <= row
    left, right = case.options.get("window_size_left"), case.options.get("window_size_right")
    if left is not None:
        allowed &= col >= row - left
    if right is not None:
        allowed &= col <= row + right
    return allowed


def _dense(case: Case, q, k, v):
    """Attention of (batch, seq, heads, dim) float64 tensors: out, lse."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    group = case.heads // case.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) / case.dim**0.5
    if case.mod == SQUARE:
        scores = scores - 0.1 * scores * scores
    scores = scores.masked_fill(~_allowed(case, q.shape[2], k.shape[2]), float("-inf"))
    return (torch.softmax(scores, -1) @ v).transpose(1, 2), torch.logsumexp(scores, -1)


def reference(case: Case, q, k, v, dout) -> dict:
    """out, lse and, for a backward case, dq, dk, dv in float64, shaped as flash-attn-4 returns them."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    if case.varlen:
        parts = [_dense(case, a[None], b[None], c[None]) for a, b, c in
                 zip(q.split(case.seq_q), k.split(case.seq_k), v.split(case.seq_k))]
        out, lse = torch.cat([o[0] for o, _ in parts]), torch.cat([x[0] for _, x in parts], -1)
    else:
        out, lse = _dense(case, q, k, v)
    found = dict(out=out.detach(), lse=lse.detach())
    if case.backward:
        found |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, (q, k, v), dout.double())))
    return found


# ---- flash-attn-4
def _mods(case: Case) -> tuple[dict, dict]:
    """Extra arguments of the forward and of the backward pass."""
    import cutlass.cute as cute

    if case.mod == SQUARE:

        @cute.jit
        def score_mod(score, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
            return score - score * score * 0.1

        @cute.jit
        def score_mod_bwd(grad, score, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
            return grad - grad * score * 0.2

        return dict(score_mod=score_mod), dict(score_mod=score_mod, score_mod_bwd=score_mod_bwd)
    if case.mod == WINDOW_MASK:
        @cute.jit
        def mask_mod(b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
            return (kv_idx <= q_idx) & (q_idx - kv_idx < WIDTH)

        return (dict(mask_mod=mask_mod, block_sparse_tensors=_blocks(case, False)),
                dict(mask_mod=mask_mod, block_sparse_tensors=_blocks(case, True)))
    return {}, {}


def _blocks(case: Case, transposed: bool):
    """Lists of partial and full blocks: kv blocks of each q block, or q blocks of each kv block for the backward pass."""
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

    size_q, size_k = BLOCK_Q[-1], 128
    n_q, n_k = -(-case.seq_q // size_q), -(-case.seq_k // size_k)
    cells = _allowed(case, case.seq_q, case.seq_k).reshape(n_q, size_q, n_k, size_k)
    some, every = cells.any(3).any(1), cells.all(3).all(1)
    if transposed:
        some, every = some.T, every.T

    def lists(chosen):
        count = chosen.sum(1).int()
        index = torch.zeros(chosen.shape, dtype=torch.int32)
        for i, row in enumerate(chosen):
            found = row.nonzero()[:, 0].int()
            index[i, : len(found)] = found
        return count[None, None].contiguous(), index[None, None].contiguous()

    return BlockSparseTensorsTorch(*lists(some & ~every), *lists(every), block_size=(size_q, size_k))


BLOCK_Q = [128]  # rows of a sparse block: 256 on sm_100a, where a forward CTA holds two q tiles


def run(case: Case, q, k, v, dout, device_options: dict) -> tuple[dict, object]:
    """Runs the case's kernels in the emulator. Returns out, lse (dq, dk, dv) and the device."""
    import flash_attn.cute.interface as interface

    interface.utils._fa_clc_enabled = case.clc
    arch = device_options["arch"]
    BLOCK_Q[-1] = 256 if arch == "sm_100a" else 128
    forward, backward = _mods(case)
    lengths = {}
    if case.varlen:
        for side, seqs in (("q", case.seq_q), ("k", case.seq_k)):
            lengths[f"cu_seqlens_{side}"] = torch.tensor([0, *torch.tensor(seqs).cumsum(0).tolist()], dtype=torch.int32)
            lengths[f"max_seqlen_{side}"] = max(seqs)
    options = dict(case.options)
    deterministic = options.pop("deterministic", False)
    with fa4.device(**device_options) as dev:
        out, lse = interface._flash_attn_fwd(q, k, v, return_lse=True, **options, **lengths, **forward)[:2]
        found = dict(out=out, lse=lse)
        if case.backward:
            grads = interface._flash_attn_bwd(q, k, v, out, dout, lse, deterministic=deterministic, **options, **lengths,
                                              **backward)
            found |= dict(zip(("dq", "dk", "dv"), grads))
    return found, dev


def errors(found: dict, wanted: dict) -> dict:
    """Largest error of each output; gradients relative to the largest value of the reference. NaN stays NaN."""
    result = {}
    for name, want in wanted.items():
        got = found[name].double()
        same = (got == want)
        worst = torch.where(same, 0.0, (got - want).abs()).max().item()
        result[name] = worst / want.abs().max().item() if name[0] == "d" else worst
    return result
