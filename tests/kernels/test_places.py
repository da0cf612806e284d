"""Where calls are launched (`places.py`): what the GPU's place does around a launch, rehearsed on the host."""
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from own_process import printed
from places import OnGpu, Rehearsed, bits, filled
from test_sm90 import LSE_TOLERANCE, OUT_TOLERANCE


class Alone(OnGpu):
    """Launches are calls of Python functions."""

    device = torch.device("cpu")

    def __init__(self):
        pass

    def launched(self, launch, seed, workers, counter):
        return *launch(seed), dict(completion="none", findings=[])


def test_copies_lie_in_memory_as_the_tensors_do():
    room = torch.arange(60.0)
    tensors = (room.view(6, 10)[:, 3:], room.view(6, 10).T, room[7:8].expand(4), torch.tensor(2.0), room.bfloat16()[::2])
    copies = Alone().placed(tensors)
    for t, copy in zip(tensors, copies):
        assert torch.equal(t, copy) and (t.stride(), t.storage_offset()) == (copy.stride(), copy.storage_offset())
        assert t.untyped_storage().data_ptr() != copy.untyped_storage().data_ptr()
    assert len({copy.untyped_storage().data_ptr() for copy in copies}) == 3


def test_a_negative_view_keeps_its_values():
    view = torch.complex(torch.ones(3), torch.ones(3)).conj().imag
    assert view.is_neg() and torch.equal(Alone().placed([view])[0], torch.full((3,), -1.0))


def test_launches_that_differ_by_a_bit_are_a_finding():
    one, lse = torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(2)
    assert Alone().run(lambda seed: (one, lse), 0, 1, None)[2]["findings"] == []
    for out, other in ((one, lse + seed_of_bit(lse)), (one + seed_of_bit(one), lse), (torch.where(one > 0, torch.nan, one), lse)):
        ran = Alone().run(lambda seed: ((out, other) if seed == 8 else (one, lse)), 7, 1, None)
        assert [kind for kind, _ in ran[2]["findings"]] == ["repeated"]


def seed_of_bit(t: torch.Tensor) -> torch.Tensor:
    """The smallest step above 1."""
    return torch.full_like(t, torch.finfo(t.dtype).eps)


def test_equal_numbers_of_other_bits_differ():
    assert not torch.equal(bits(torch.tensor([0.0])), bits(torch.tensor([-0.0])))


def test_memory_of_a_launch_is_filled():
    like = torch.ones(2)
    with filled():
        assert like.new_empty((3, 5), dtype=torch.bfloat16).isnan().all() and torch.empty(7).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("script", [("forward_emulated.py", "sm90-gpu", "plain"),
                                    ("kernel_grid.py", "sm90-gpu", "graphs", "1", "1")], ids=lambda words: words[0])
def test_without_a_gpu_the_process_fails_and_says_why(script):
    done = subprocess.run([sys.executable, Path(__file__).with_name(script[0]), *script[1:]], capture_output=True, text=True)
    assert done.returncode == 1 and "no CUDA device for sm90" in done.stderr


@pytest.mark.compile
@pytest.mark.emulate
def test_calls_of_the_grid_run_as_on_a_gpu():
    """Aliased inputs, a capture that is expanded, parts that no kernel writes."""
    rows = printed("kernel_grid.py", "sm90-rehearsed", "cases", "case59_q_k_v_same_tensor")
    rows += printed("forward_emulated.py", "sm90-rehearsed", "split, parts without keys", "bias on a grid, packed heads")
    assert len(rows) == 3 * Rehearsed.inputs and len({row["out"] for row in rows}) == len(rows)
    for row in rows:
        assert row["findings"] == [] and row["out"] <= OUT_TOLERANCE[row["half"]] * row["largest"], row
        assert row["lse"] <= LSE_TOLERANCE + 2.0**-22 * row["largest_lse"], row
