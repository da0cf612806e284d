"""Every mod of the gallery as a kernel: both architectures, nothing spilled, and the value that the interpreter gives."""
from __future__ import annotations

import pytest
import torch

pytest.importorskip("cutlass")
from flexfa4.emit.cubin import ptx_counts  # noqa: E402
from flexfa4.emit.elementwise import Fragment, compile  # noqa: E402
from flexfa4.interpret import evaluate  # noqa: E402
from flexfa4.ir import Op  # noqa: E402
from flexfa4.mods import GALLERY, causal_mask, tanh_softcap  # noqa: E402
from flexfa4.trace import trace  # noqa: E402
import elementwise_emulated as emulated  # noqa: E402

pytestmark = pytest.mark.compile
CASES = [(e, kind) for e in GALLERY for kind in ("mask", "score", "out") if e.make("cpu").get(f"{kind}_mod") is not None]


@pytest.mark.parametrize("example, kind", CASES, ids=lambda v: getattr(v, "name", v))
@pytest.mark.parametrize("arch, fragment", [("sm_90a", Fragment(2, 16)), ("sm_100a", Fragment(1, 32))], ids=["sm_90a", "sm_100a"])
def test_mod_compiles_and_computes(example, kind, arch, fragment):
    bound = trace(example.make("cpu")[f"{kind}_mod"], kind)
    compiled = compile(bound.graph, arch, fragment=fragment)
    assert compiled.facts.frame_bytes == 0 and ".local" not in compiled.ptx
    generator = torch.Generator().manual_seed(0)
    columns = 64 if kind == "out" else 128
    x = torch.randn(2, 4, 128, columns, generator=generator)
    lse = torch.randn(2, 4, 128, generator=generator)
    env = {Op.B: torch.arange(2).view(-1, 1, 1, 1), Op.H: torch.arange(4).view(1, -1, 1, 1), Op.Q: torch.arange(128).view(-1, 1)}
    env |= {Op.OUT: x, Op.LSE: lse[..., None], Op.D: torch.arange(columns)} if kind == "out" else {Op.KV: torch.arange(columns)}
    env |= {Op.SCORE: x} if kind == "score" else {}
    want = evaluate(bound, env).expand(x.shape)
    got = emulated.run(compiled, bound.graph, x, lse, bound.tensors, bound.literals, fragment=fragment)
    if kind == "mask":
        assert torch.equal(got, want)
    else:
        assert torch.allclose(got, want.detach(), rtol=2 ** -11, atol=1e-6)


def test_causal_costs_a_comparison_and_a_select_an_element():
    counts = ptx_counts(compile(trace(causal_mask, "mask").graph).ptx)
    assert 32 <= sum(n for op, n in counts.items() if op.startswith("setp")) <= 34
    # The one division splits the block index into batch and head.
    assert sum(n for op, n in counts.items() if op.startswith(("div", "rem"))) == 1


def test_softcap_hoists_its_reciprocal():
    counts = ptx_counts(compile(trace(tanh_softcap(20.0), "score").graph).ptx)
    assert counts["tanh.approx.f32"] == 32
    assert counts["rcp.approx.ftz.f32"] == 1
