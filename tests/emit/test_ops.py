"""Every op as a kernel: it compiles for both architectures without local memory, and its PTX computes what torch computes."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("cutlass")
from flexfa4.emit.approx import APPROXIMATIONS  # noqa: E402
from flexfa4.emit.elementwise import Fragment, compile  # noqa: E402
from flexfa4.emit.table import EMIT  # noqa: E402
from flexfa4.interpret import evaluate  # noqa: E402
from flexfa4.tensors import torch_dtype  # noqa: E402
from flexfa4.ir import DType, Op  # noqa: E402
from flexfa4.ir.bound import BoundGraph, Origin  # noqa: E402
from flexfa4.ir.verify import verify  # noqa: E402
import elementwise_emulated as emulated  # noqa: E402
from op_samples import samples  # noqa: E402

pytestmark = pytest.mark.compile
SAMPLES = samples()
SMALL = Fragment(rows=1, columns=4)
POSITIVE = {Op.LOG, Op.LOG2, Op.LOG10, Op.SQRT, Op.RSQRT, Op.POW}
# Rounding of a handful of float32 operations, for ops that have no approximation.
ROUNDING = 2.0**-21


def test_every_op_has_a_row_and_a_sample():
    assert set(EMIT) == set(Op)
    assert {name.split()[0] for name in SAMPLES} == {repr(op) for op in Op}


def test_only_float_ops_are_approximated():
    assert all(a.relative + a.absolute > 0 for a in APPROXIMATIONS.values())
    assert not set(APPROXIMATIONS) & {Op.ADD, Op.SUB, Op.MUL, Op.MIN, Op.MAX, Op.FLOOR, Op.LOAD, Op.CAST}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_op_compiles_for_sm90_without_local_memory(name):
    compiled = compile(verify(SAMPLES[name]), "sm_90a", fragment=SMALL)
    assert compiled.facts.frame_bytes == 0 and ".local" not in compiled.ptx


def inputs(op: Op) -> torch.Tensor:
    """[2, 3, 5, 24] values: special ones, then magnitudes from tiny to the largest that the op's bound covers."""
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, -7.0])
    generator = torch.Generator().manual_seed(1)
    most = {Op.EXP: 80.0, Op.EXP2: 120.0, Op.SIGMOID: 80.0, Op.EXPM1: 80.0, Op.SIN: 30000.0, Op.COS: 30000.0, Op.TAN: 1.3}.get(
        op, 1000.0
    )
    exponents = torch.rand(2 * 3 * 5 * 24 - len(special), generator=generator) * 20 - 20
    body = most * torch.exp2(exponents) * torch.randint(0, 2, exponents.shape, generator=generator).mul(2).sub(1)
    x = torch.cat([special, body]).reshape(2, 3, 5, 24)
    return x.abs() if op in POSITIVE else x


def environment(graph, x: torch.Tensor) -> dict:
    b, h, q, columns = x.shape
    env = {
        Op.B: torch.arange(b).view(-1, 1, 1, 1),
        Op.H: torch.arange(h).view(1, -1, 1, 1),
        Op.Q: torch.arange(q).view(1, 1, -1, 1),
    }
    last = torch.arange(columns).view(1, 1, 1, -1)
    if graph.kind == "out":
        return env | {Op.OUT: x, Op.LSE: x[..., :1], Op.D: last}
    return env | {Op.KV: last} | ({Op.SCORE: x} if graph.kind == "score" else {})


def bind(graph) -> BoundGraph:
    """Captures of 7 x 9 x 5 (or fewer dims) small numbers: indices wrap and leave the range; a literal of 2.5, 3 or True."""
    generator = torch.Generator().manual_seed(2)
    tensors = tuple(
        torch.randint(0 if c.dtype in (DType.BOOL, DType.U8) else -9, 10, (7, 9, 5)[: c.rank], generator=generator).to(
            torch_dtype(c.dtype)
        )
        for c in graph.captures
    )
    literals = tuple(True if d.is_bool else 3 if d.is_int else 2.5 for d in graph.slots)
    return BoundGraph(graph, tensors, literals, Origin("sample", "samples.py", 1))


def tolerance(op: Op, approximate: bool) -> tuple[float, float]:
    bound = APPROXIMATIONS.get(op) if approximate else None
    return (bound.relative + ROUNDING, bound.absolute + 1e-37) if bound else (ROUNDING, 1e-37)


def agrees(got: torch.Tensor, want: torch.Tensor, relative: float, absolute: float) -> torch.Tensor:
    """Elementwise: same NaNs, same infinities, and within the bound elsewhere."""
    close = (got.double() - want).abs() <= absolute + relative * want.abs()
    return torch.where(want.isnan(), got.isnan(), close | (got.double() == want))


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_op_computes_what_torch_computes(name):
    graph = SAMPLES[name]
    op = next(op for op in Op if repr(op) == name.split()[0])
    x = inputs(op)
    bound = bind(graph)
    compiled = compile(graph, "sm_100a", fragment=SMALL)
    assert compiled.facts.frame_bytes == 0 and ".local" not in compiled.ptx
    got = emulated.run(compiled, graph, x, x[..., 0].contiguous(), bound.tensors, bound.literals, fragment=SMALL)
    env = environment(graph, x)
    # Float ops are held to the exact result of their float32 inputs; casts and bf16 to torch's own arithmetic.
    exact = name.endswith(" f32") and op is not Op.CAST
    if exact:
        env = {leaf: v.double() if v.is_floating_point() else v for leaf, v in env.items()}
    want = evaluate(bound, env).expand(x.shape)
    if graph.kind == "mask":
        assert torch.equal(got, want)
        return
    legible = in_domain(op, name, x)
    good = agrees(got, want.double(), *tolerance(op, approximate=True)) | ~legible
    assert good.all(), f"{(~good).sum()} wrong: x {x[~good][:4]} got {got[~good][:4]} want {want[~good][:4]}"


def in_domain(op: Op, name: str, x: torch.Tensor) -> torch.Tensor:
    """Where the op is defined by torch as well: a cast of NaN or infinity to an integer is not, and the bound of the division
    family is for finite quotients."""
    if name.startswith("cast f32 to") and name.split()[-1] in ("i8", "u8", "i16", "i32", "i64"):
        low, high = (0, 127) if name.endswith("u8") else (-127, 127)
        return (x >= low) & (x <= high)
    if op in (Op.FLOORDIV, Op.MOD, Op.FMOD, Op.TRUNCDIV) and name.endswith("f32"):
        return x.isfinite()
    return torch.ones_like(x, dtype=torch.bool)
