"""What changes between the making of a BlockMask and its first use counts; and how a copy from a device is waited for."""
import pytest
import torch

from flexfa4 import create_block_mask
from flexfa4.tensors import streams

LENGTH = 200


def documents(count: int) -> torch.Tensor:
    return torch.arange(LENGTH) * count // LENGTH


def in_place(mask_mod, labels):
    labels.copy_(documents(7))


def another_tensor(mask_mod, labels):
    mask_mod.__closure__[0].cell_contents = documents(7)


def of_another_length(mask_mod, labels):
    mask_mod.__closure__[0].cell_contents = documents(7).repeat(2)


@pytest.mark.parametrize("change", [in_place, another_tensor, of_another_length])
@pytest.mark.parametrize("first", ["spans", "to_dense"])
def test_a_change_before_the_first_use_is_seen(change, first):
    labels = documents(3)

    def mask_mod(b, h, q, kv):
        return labels[q] == labels[kv]

    mask = create_block_mask(mask_mod, None, None, LENGTH, LENGTH)
    change(mask_mod, labels)
    now = documents(7)
    same = now[:, None] == now[None]
    if first == "to_dense":
        assert torch.equal(mask.to_dense()[0, 0], same)
    else:
        tiles = same.float().reshape(10, 20, 10, 20).amax((1, 3)) > 0
        assert torch.equal(mask.spans(20, 20).states()[0, 0] > 0, tiles)


class External:
    def __init__(self, stream, device):
        self.asked = stream, device

    def synchronize(self):
        waited.append(self.asked)


waited: list[tuple] = []


@pytest.mark.parametrize("stream, current, answer, expected", [
    (7, 0, 0, ["driver"]), (7, 1, 0, ["driver"]), (0, 0, 0, ["driver"]),
    (0, 1, 0, ["torch"]),                   # the driver would take the default stream of another device
    (7, 0, 700, ["driver", "torch"]),       # an error, which torch puts into words
    (7, 0, None, ["torch"]),                # no driver library
])
def test_who_waits_for_a_stream(monkeypatch, stream, current, answer, expected):
    asked = []
    waited.clear()
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current, raising=False)
    monkeypatch.setattr(torch.cuda, "ExternalStream", External)
    monkeypatch.setattr(streams, "_driver", lambda: None if answer is None else lambda at: (asked.append(at), answer)[1])
    device = torch.device("cuda", 0)
    streams.wait_for(device, stream)
    assert asked == [stream] * ("driver" in expected)
    assert waited == [(stream, device)] * ("torch" in expected)
