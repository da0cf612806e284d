"""Calls like one before, on a GPU: gradients equal the first call's, threads share a stream, an LSE is not asked for."""
import threading

import pytest
import torch
from one_size import HEADS, LENGTH, NEEDS_A_KERNEL, inputs

from flexfa4 import create_block_mask, flex_attention, mods
from flexfa4.runtime import repeat

pytestmark = [pytest.mark.gpu, NEEDS_A_KERNEL]



@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_repeated_calls(masked):
    slopes = mods.alibi_slopes(HEADS, device="cuda").requires_grad_()
    leaves = [t.requires_grad_() for t in inputs()]
    given = dict(score_mod=lambda score, b, h, q, kv: score + slopes[h] * (kv - q))
    if masked:
        given["block_mask"] = create_block_mask(mods.causal_mask, None, None, LENGTH, LENGTH, device="cuda")

    def gradients():
        out, lse = flex_attention(*leaves, **given, return_lse=True)
        return out, *torch.autograd.grad(out.float().square().sum() + lse.sum(), (*leaves, slopes))

    repeat._ready.clear()
    first, second = gradients(), gradients()
    assert "Recorded" in str(second[0].grad_fn) and "Recorded" not in str(first[0].grad_fn)
    assert all(torch.allclose(a.float(), b.float(), rtol=1e-4, atol=1e-4) for a, b in zip(first, second))


def test_threads_that_share_a_stream_do_not_share_parts():
    calls = [inputs(1, 20000, seed) for seed in range(2)]
    want = [flex_attention(*tensors) for tensors in calls]
    got = [[], []]

    def work(i):
        for _ in range(200):
            got[i].append(flex_attention(*calls[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert all(torch.equal(out, want[i]) for i in range(2) for out in got[i])


@pytest.mark.parametrize("q_len, kv_len", [(LENGTH, LENGTH), (1, 20000)])
def test_an_lse_is_whole_between_calls_that_ask_for_none(q_len, kv_len):
    first, second = inputs(q_len, kv_len, 1), inputs(q_len, kv_len, 2)
    want, want_lse = flex_attention(*first, return_lse=True)
    for _ in range(3):
        out, lse = flex_attention(*first, return_lse=True)
        other = flex_attention(*second)
        assert torch.equal(out, want) and torch.equal(lse, want_lse) and not torch.equal(other, want)
        assert torch.equal(flex_attention(*second, return_lse=True)[0], other)
