"""flex_attention on a GPU from call to call: who waits for the device, what captures may be and when they are read, scores of any
size, keys of batch 1, and one mask on several devices."""
import threading

import pytest
import torch
from one_size import HEADS, LENGTH, NEEDS_A_KERNEL, inputs

from flexfa4 import create_block_mask, flex_attention, mods, reference
from flexfa4.runtime import kernels

pytestmark = [pytest.mark.gpu, NEEDS_A_KERNEL]

# Of the largest output: P and the output are rounded to bfloat16.
ROUNDING = 2.0**-7
# About a second of an H200.
LONG = 2_000_000_000


def check_out(tensors, **given):
    out = flex_attention(*tensors, **given)
    want, _ = reference.attention(*tensors, **given)
    assert not out.isnan().any() and (out.double() - want).abs().max() <= ROUNDING * want.abs().max()
    return out


def documents() -> torch.Tensor:
    return (torch.arange(LENGTH) // 100).cuda()


CALLS = {
    "plain": lambda: (inputs(), {}),
    "BlockMask": lambda: (inputs(), dict(
        block_mask=create_block_mask(mods.causal_mask, None, None, LENGTH, LENGTH, device="cuda"))),
    "BlockMask of documents": lambda: (inputs(), dict(
        block_mask=create_block_mask(mods.document_causal(documents()), None, None, LENGTH, LENGTH, device="cuda"))),
    "mask_mod of documents": lambda: (inputs(), dict(mask_mod=mods.document_causal(documents()))),
    "captures": lambda: (inputs(), dict(mask_mod=mods.sliding_window(70),
                                        score_mod=mods.alibi_bias(mods.alibi_slopes(HEADS, device="cuda")))),
    "rows split over keys": lambda: (inputs(1, 20000), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_like_one_before_waits_for_nothing(name):
    """The GPU is kept busy for a second, and is still busy when the call is back."""
    tensors, given = CALLS[name]()
    want = flex_attention(*tensors, **given)
    flex_attention(*tensors, **given)
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    asleep = torch.cuda.Event()
    asleep.record()
    out = flex_attention(*tensors, **given)
    was_busy = not asleep.query()
    torch.cuda.synchronize()
    assert was_busy and torch.equal(out, want)


def test_a_captured_number_is_read_in_every_call():
    tensors, cap = inputs(), torch.tensor(5.0, device="cuda")

    def capped(score, b, h, q, kv):
        return cap * torch.tanh(score / cap)

    first = check_out(tensors, score_mod=capped, mask_mod=mods.causal_mask)
    compiled = kernels.compile_count()
    cap.fill_(0.5)
    second = check_out(tensors, score_mod=capped, mask_mod=mods.causal_mask)
    cap.data = torch.tensor(5.0, device="cuda")
    third = flex_attention(*tensors, score_mod=capped, mask_mod=mods.causal_mask)
    assert torch.equal(third, first) and not torch.equal(second, first)
    assert kernels.compile_count() == compiled


def test_a_graph_reads_captures_when_it_is_replayed():
    tensors, gain, table = inputs(), torch.tensor(1.0, device="cuda"), torch.zeros(LENGTH, device="cuda")

    def score_mod(score, b, h, q, kv):
        return score * gain + table[kv]

    flex_attention(*tensors, score_mod=score_mod, mask_mod=mods.causal_mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(*tensors, score_mod=score_mod, mask_mod=mods.causal_mask)
    for seed in range(2):
        gain.fill_(0.5 - seed)
        table.copy_(torch.randn(LENGTH, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        torch.cuda.synchronize()
        want, _ = reference.attention(*tensors, score_mod=score_mod, mask_mod=mods.causal_mask)
        assert (out.double() - want).abs().max() <= ROUNDING * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
                                   torch.bfloat16, torch.float32, torch.float64])
def test_captures_of_every_type(dtype):
    """Along keys, along rows, by distance and as strided views; of bytes those above 127 too."""
    g = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        values = torch.randn(2 * LENGTH, generator=g).to(dtype)
    else:
        least, most = (0, 2) if dtype is torch.bool else (0, 256) if dtype is torch.uint8 else (-100, 100)
        values = torch.randint(least, most, (2 * LENGTH,), generator=g).to(dtype)
    line = values.cuda()
    strided = line.expand(HEADS, -1)[:, ::2]
    factor = 0.01 if dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64) else 0.5

    def score_mod(score, b, h, q, kv):
        return score + factor * line[kv] - factor * line[q] + line[q - kv + LENGTH] * factor + strided[h, kv] * factor

    check_out(inputs(), score_mod=score_mod)
    check_out(inputs(), mask_mod=lambda b, h, q, kv: (line[kv] > 0) | (q == kv))


def far_below(score, b, h, q, kv):
    least = torch.where(q % 3 == 0, -1e10, torch.finfo(torch.float32).min)
    return torch.where((kv < 140) & (q % 5 == 0) | (q % 7 == 0), score.float(), least)


def far_above(score, b, h, q, kv):
    return score.float() + torch.where(q % 2 == 0, 1e10, 2e38) * torch.where(kv % 64 == q % 64, 1.0, -1.0)


SCORES = {
    "far below": far_below,
    "far above": far_above,
    "rising": lambda s, b, h, q, kv: s - 0.75 * kv,
    "jumps": lambda s, b, h, q, kv: s + (kv // 32 * 37 % 11) * 40.0,
    "one key": lambda s, b, h, q, kv: torch.where(kv == 3, s + 1000.0, s),
    "tiles without keys": lambda s, b, h, q, kv: torch.where((kv // 64 + q // 64) % 2 == 0, s, -torch.inf),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_any_size(name):
    check_out(inputs(), score_mod=SCORES[name])
    check_out(inputs(), score_mod=SCORES[name], mask_mod=mods.causal_mask)


def test_keys_and_values_of_batch_one_are_shared():
    q, k, v = inputs()
    q = torch.cat([q, q.flip(2)])
    check_out((q, k, v), mask_mod=mods.causal_mask)
    assert torch.equal(flex_attention(q, k, v), flex_attention(q, k.expand(2, -1, -1, -1), v.expand(2, -1, -1, -1)))


def test_a_mask_and_its_kernel_on_two_devices_at_once():
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    mask = create_block_mask(mods.sliding_window(90), None, None, LENGTH, LENGTH)
    there = [[t.to(f"cuda:{i}") for t in inputs()] for i in range(2)]
    want = flex_attention(*there[0], block_mask=mask)
    got = [[], []]

    def work(i):
        for _ in range(50):
            got[i].append(flex_attention(*there[i], block_mask=mask))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2):
        torch.cuda.synchronize(i)
        assert len(got[i]) == 50 and all(torch.equal(out.to("cuda:0"), want) for out in got[i])
