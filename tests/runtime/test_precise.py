# ruff: noqa: F811 (a fixture that is imported is named again as an argument)
"""`precise=True` reaches the kernel's plan on every way a call can take. The kernel is replaced by one that notes its launch."""
import pytest
import torch
from launched import launches  # noqa: F401

from flexfa4 import create_block_mask, flex_attention, mods
from flexfa4.emit import sass
from flexfa4.ir import DType
from flexfa4.plan import Signature, plan_forward
from flexfa4.runtime import engine
from flexfa4.trace import bind

MASK = create_block_mask(mods.causal_mask, None, None, 300, 300)


def inputs(gradients: bool = False):
    return [torch.zeros(1, 2, 300, 64, dtype=torch.bfloat16, requires_grad=gradients) for _ in range(3)]


def launched(launches, precise: bool, **given) -> Signature:
    del launches[:]
    flex_attention(*inputs(**given), score_mod=mods.tanh_softcap(20.0), block_mask=MASK, precise=precise)
    ((kind, signature, _),) = launches
    assert kind == "forward"
    return signature


@pytest.mark.parametrize("gradients", [False, True])
def test_first_and_repeated_calls_of_both_kinds(launches, gradients):
    found = [launched(launches, precise, gradients=gradients).plan.precise for precise in (False, True, False, True, True, False)]
    assert found == [False, True, False, True, True, False]


def test_under_torch_compile(launches):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def call(q, k, v, precise):
        return flex_attention(q, k, v, mask_mod=mods.causal_mask, precise=precise)

    for precise in (False, True):
        del launches[:]
        call(*inputs(), precise)
        assert [signature.plan.precise for _, signature, _ in launches] == [precise]


def test_under_a_transform(launches):
    def total(q, k, v):
        return flex_attention(q, k, v, precise=True).sum()

    torch.func.grad(total)(*inputs())
    assert [signature.plan.precise for _, signature, _ in launches] == [True]


def test_the_output_graph_is_combined_precisely(launches):
    """Split rows run it in a kernel of its own."""
    q, k, v = (torch.zeros(1, 1, 1500, 64, dtype=torch.bfloat16) for _ in range(3))
    flex_attention(q[:, :1, :50], k[:, :1], v[:, :1], out_mod=lambda out, lse, b, h, i: out * torch.sigmoid(lse), precise=True)
    kinds = {kind: signature for kind, signature, _ in launches}
    assert kinds["forward"].plan.precise and kinds["combine"].plan.precise


def test_exponentials_are_the_hardwares(launches, monkeypatch):
    monkeypatch.setattr(engine, "architecture", lambda device: "sm100")
    assert launched(launches, False).plan.tiles.software_exp > 0
    assert launched(launches, True).plan.tiles.software_exp == 0


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_kernels_have_no_approximate_instruction(monkeypatch, arch):
    """None of the mod's, that is: the softmax has exponentials, a logarithm and a reciprocal of its own."""
    pytest.importorskip("cutlass")
    try:
        sass.nvdisasm()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    monkeypatch.setattr("sys.argv", ["pytest"])        # the compiler parses the options of the process
    from flexfa4.runtime import compiler

    def mod(score, b, h, q, kv):
        return torch.tanh(score) + torch.sqrt(torch.abs(score) + h)

    found = []
    for precise in (False, True):
        plan = plan_forward(arch, DType.BF16, 64, 64, (bind(mod, "score").graph,), precise=precise)
        code, _ = sass.disassemble(compiler.cubin(Signature(plan)))
        found.append({"MUFU.TANH", "MUFU.SQRT"} & {i.opcode for i in code})
    assert found == [{"MUFU.TANH", "MUFU.SQRT"}, set()]


def test_the_tiled_engine_takes_it_too():
    q, k, v = (torch.randn(1, 2, 30, 16) for _ in range(3))
    edit = mods.tanh_softcap(20.0)
    assert torch.equal(flex_attention(q, k, v, edit, precise=True), flex_attention(q, k, v, edit))
