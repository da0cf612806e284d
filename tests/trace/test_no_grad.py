"""Gradients that a mod would lose: switched off inside it, or read from a trainable capture as a number."""
import pytest
import torch

from flexfa4 import flex_attention
from flexfa4.errors import TraceError
from flexfa4.trace import bind, trace

W = torch.nn.Parameter(torch.full((4,), 1.5))
FROZEN = torch.full((4,), 1.5)


@torch.no_grad()
def decorated(score, b, h, q, k):
    return score * 2.5


def inside(score, b, h, q, k):
    with torch.no_grad():
        factor = score * 2.5
    return factor + score


def inference(score, b, h, q, k):
    with torch.inference_mode():
        return score * 2.5


def switched(score, b, h, q, k):
    with torch.set_grad_enabled(False):
        return score + W[h]


@pytest.mark.parametrize("mod", [decorated, inside, inference, switched])
def test_switching_gradients_off_is_refused(mod):
    with torch.no_grad():
        bind(mod, "score")                   # nothing is lost here, and nothing is kept for later
    with pytest.raises(TraceError, match="no_grad.. or inference_mode.. in a mod.*detached") as caught:
        bind(mod, "score")
    assert str(caught.value).startswith(f"{__file__}:")
    x = torch.randn(1, 1, 4, 8, requires_grad=True)
    with pytest.raises(TraceError, match="in a mod"):
        flex_attention(x, x, x, score_mod=mod)


def test_what_has_no_gradient_anyway_is_accepted():
    @torch.no_grad()
    def mask(b, h, q, k):
        return (q >= k) & (W[h] > 0)

    def positions(score, b, h, q, k):
        with torch.no_grad():
            near = (q - k).abs() < 3
        return torch.where(near, score, 0.0)

    assert trace(mask, "mask").origin.file == __file__ and trace(positions, "score")


LOST = {
    "item": lambda s: s * W[0].item(), "float": lambda s: s * float(W[1]), "tolist": lambda s: s * W.tolist()[0],
    "of a computed one": lambda s: s * (W * 2)[0].item(),
}


@pytest.mark.parametrize("name", LOST)
def test_a_trainable_capture_read_as_a_number_is_refused(name):
    read = LOST[name]

    def mod(score, b, h, q, k):
        return read(score)

    with torch.no_grad():
        assert bind(mod, "score").literals
    with pytest.raises(TraceError, match=r"requires a gradient.*detach\(\) outside the mod") as caught:
        bind(mod, "score")
    assert str(caught.value).startswith(f"{__file__}:")


KEPT = {
    "frozen": lambda s: s * FROZEN[0].item(), "detached": lambda s: s * W.detach()[0].item(),
    "decision": lambda s: s * (2.5 if W[0] > 1 else 3.5), "rounded": lambda s: s * (int(W[0]) + 1.5),
}


@pytest.mark.parametrize("name", KEPT)
def test_reads_that_lose_no_gradient(name):
    read = KEPT[name]
    mod = lambda score, b, h, q, k: read(score)  # noqa: E731
    assert bind(mod, "score") is bind(mod, "score") and len(bind(mod, "score").literals) == 1


def test_a_capture_that_becomes_trainable():
    w = torch.full((4,), 1.5)
    mod = lambda score, b, h, q, k: score * w[0].item()  # noqa: E731
    assert bind(mod, "score").literals == (1.5,)
    w.requires_grad_()
    with pytest.raises(TraceError, match="requires a gradient"):
        bind(mod, "score")


def test_masks_may_read_numbers_of_trainable_captures():
    assert trace(lambda b, h, q, k: q - k < W[0].item(), "mask").literals == (1.5,)
