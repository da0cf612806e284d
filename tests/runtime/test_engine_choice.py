"""Which kernel a call gets, and the reason where it gets none. No GPU: devices are named, not used."""

import warnings

import pytest
import torch

from flexfa4 import flex_attention
from flexfa4.runtime import engine


@pytest.fixture
def capability(monkeypatch):
    """Sets the compute capability of every device."""
    engine.architecture.cache_clear()
    yield lambda value: monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: value)
    engine.architecture.cache_clear()


@pytest.mark.parametrize("value, arch", [((9, 0), "sm90"), ((10, 0), "sm100"), ((10, 3), None), ((8, 0), None)])
def test_a_device_has_the_kernel_of_its_capability(capability, value, arch):
    capability(value)
    assert engine.architecture(torch.device("cuda:0")) == arch
    assert engine.architecture(torch.device("cpu")) is None


def inputs(dim: int, dim_v: int, dtype=torch.bfloat16):
    shapes = (1, 2, 300, dim), (1, 1, 200, dim), (1, 1, 200, dim_v)
    return tuple(torch.zeros(shape, dtype=dtype) for shape in shapes)


@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (128, 128), (192, 128), (31, 17)])
def test_blackwell_takes_the_head_dims_of_the_paper(dims):
    choice = engine.choose("sm100", *inputs(*dims), 0.1, [None] * 3)
    assert choice.plan.arch == "sm100" and not choice.reason


@pytest.mark.parametrize(
    "made, scale, reason",
    [
        (inputs(512, 512), 0.1, "head_dim=512"),
        (inputs(64, 64, torch.float32), 0.1, "not torch.float32"),
        (inputs(64, 64), -0.1, "scale=-0.1"),
    ],
)
def test_blackwell_says_why_it_does_not_take_a_call(made, scale, reason):
    choice = engine.choose("sm100", *made, scale, [None] * 3)
    assert choice.plan is None and reason in choice.reason


def test_what_blackwell_does_not_take_is_announced_once(monkeypatch):
    """Tensors of the CPU say that they are on a GPU; the registered op runs them, as those that want gradients."""
    monkeypatch.setattr(engine, "architecture", lambda device: "sm100")
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    engine.announce.cache_clear()
    for made, reason in ((inputs(64, 64, torch.float32), "not torch.float32"), (inputs(272, 64), "head_dim=272")):
        made[0].requires_grad_()
        with pytest.warns(UserWarning, match=f"runs on the tiled engine, which is slower than a kernel: .*{reason}"):
            flex_attention(*made, enable_gqa=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            flex_attention(*made, enable_gqa=True)
    engine.announce.cache_clear()
