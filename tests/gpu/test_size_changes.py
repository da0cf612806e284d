"""Calls of one mod whose sizes choose other kernels, on a GPU: none waits for the compiler but the first, and the kernel that is
compiled apart is used when it is there. Each test runs in a process with an empty store."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from one_size import NEEDS_A_KERNEL

pytestmark = [pytest.mark.gpu, NEEDS_A_KERNEL]
ROOT = Path(__file__).resolve().parents[2]
# Of the largest output: P and the output are rounded to bfloat16.
ROUNDING = 2.0**-7
# (heads, KV heads, queries, keys): rows that fill tiles, and few of many keys, whose heads share a tile and which are split.
MANY, FEW = (8, 8, 700, 900), (8, 2, 2, 20000)


def inputs(size, seed=0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    heads, kv_heads, q_len, kv_len = size
    return [torch.randn(1, h, n, 64, generator=g, device="cuda").bfloat16()
            for h, n in ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))]


def score_mod(score, b, h, q, kv):
    return score * 0.5 + 0.01 * h * (q - kv) / 100


def mask_mod(b, h, q, kv):
    return (kv % 5 != q % 3) & (kv > 7)


def call(tensors):
    """(out, seconds), right against float64."""
    from flexfa4 import flex_attention, reference

    given = dict(score_mod=score_mod, mask_mod=mask_mod)
    torch.cuda.synchronize()
    began = time.perf_counter()
    out = flex_attention(*tensors, **given, enable_gqa=True)
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    want, _ = reference.attention(*tensors, **given)
    assert not out.isnan().any() and (out.double() - want).abs().max() <= ROUNDING * want.abs().max()
    return out.detach(), took


def sizes(gradients: bool) -> dict:
    from flexfa4 import wait_for_kernels
    from flexfa4.runtime import apart, kernels

    many, few = inputs(MANY), inputs(FEW)
    few[0].requires_grad_(gradients)
    first = call(many)[1]
    compiled = kernels.compile_count()
    times = [call(few)[1] for _ in range(3)]
    stood_in = [out for out, _ in (call(inputs(FEW, seed)) for seed in (1, 2))]
    began = time.perf_counter()
    arrived = wait_for_kernels(100)
    after, loaded = time.perf_counter() - began, kernels.load_count()
    own = [call(inputs(FEW, seed))[0] for seed in (1, 2)]
    call(few)
    alike = [torch.equal(one, other) for one, other in zip(stood_in, own)]
    call(many)
    return dict(first=first, times=times, after=after, arrived=arrived, jobs=len(apart._jobs), alike=alike,
                compiled_later=kernels.compile_count() - compiled, loaded=[loaded, kernels.load_count()])


def captured(_: bool) -> dict:
    """A capture waits for the kernel that its replays keep."""
    from flexfa4 import flex_attention
    from flexfa4.runtime import apart, kernels

    many, few = inputs(MANY), inputs(FEW)
    given = dict(score_mod=score_mod, mask_mod=mask_mod, enable_gqa=True)
    call(many)
    before = kernels.compile_count()
    call(few)
    begun = [job.state for job in apart._jobs.values()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(*few, **given)
    states = [job.state for job in apart._jobs.values()]
    for t, fresh in zip(few, inputs(FEW, 3)):
        t.copy_(fresh)
    graph.replay()
    torch.cuda.synchronize()
    right = torch.equal(out, flex_attention(*few, **given))
    call(few)
    return dict(begun=begun, states=states, right=right, compiled_later=kernels.compile_count() - before,
                loaded=kernels.load_count())


def compiled_by_torch(_: bool) -> dict:
    from flexfa4 import flex_attention, wait_for_kernels
    from flexfa4.runtime import apart, kernels

    run = torch.compile(lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod, enable_gqa=True) * 1.0,
                        backend="aot_eager", dynamic=False, fullgraph=True)
    many, few = inputs(MANY), inputs(FEW)
    run(*many)
    before = kernels.compile_count()
    one = run(*few)
    jobs, arrived = len(apart._jobs), wait_for_kernels(100)
    other = run(*few)
    want = call(few)[0]
    close = [bool((out.double() - want.double()).abs().max() <= 2 * ROUNDING * want.abs().max()) for out in (one, other)]
    return dict(jobs=jobs, arrived=arrived, close=close, compiled_later=kernels.compile_count() - before)


def printed(name: str, cache: Path, gradients: bool = False) -> dict:
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}, {str(Path(__file__).parent)!r}]\n" \
           f"import conftest, json, test_size_changes; print(json.dumps(test_size_changes.{name}({gradients})))"
    environment = {**os.environ, "FLEXFA4_KERNEL_CACHE": str(cache)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("gradients", [False, True])
def test_only_the_first_kernel_is_waited_for(tmp_path, gradients):
    found = printed("sizes", tmp_path, gradients)
    assert found["arrived"] and found["jobs"] == 1 and found["compiled_later"] == 0
    assert max(found["times"]) < found["first"] / 4
    assert found["loaded"] == [0, 2] and not all(found["alike"])


def test_a_capture_waits_for_what_it_replays(tmp_path):
    found = printed("captured", tmp_path)
    assert found["begun"] == ["running"] and found["states"] == ["arrived"] and found["right"]
    assert (found["compiled_later"], found["loaded"]) == (0, 2)


def test_a_call_in_a_compiled_graph_takes_it_too(tmp_path):
    found = printed("compiled_by_torch", tmp_path)
    assert found["jobs"] == 1 and found["arrived"] and found["close"] == [True, True] and found["compiled_later"] == 0
