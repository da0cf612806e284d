"""flex_attention in CUDA graphs: captured as the first call of a process or after others, replayed with other inputs and on other
streams, and after everything but the graph is gone."""
import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from one_size import HEADS, LENGTH, NEEDS_A_KERNEL, inputs

from flexfa4 import create_block_mask, flex_attention, mods
from flexfa4.errors import UnsupportedError
from flexfa4.runtime import kernels, lists, repeat, spans_cache

pytestmark = [pytest.mark.gpu, NEEDS_A_KERNEL]

ROOT = Path(__file__).resolve().parents[2]


def captured(q, k, v, **given):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(q, k, v, **given)
    return graph, out


def cases():
    """name -> (inputs, arguments): kernels that differ."""
    slopes = mods.alibi_slopes(HEADS, device="cuda")
    causal = create_block_mask(mods.causal_mask, None, None, LENGTH, LENGTH, device="cuda")
    gate = torch.tensor(1.5, device="cuda")
    return {
        "plain": (inputs(), {}),
        "BlockMask": (inputs(), dict(block_mask=causal)),
        "mask_mod, captures": (inputs(), dict(mask_mod=mods.sliding_window(70), score_mod=mods.alibi_bias(slopes))),
        "rows split over keys": (inputs(1, 20000), {}),
        "rows split over keys, masked": (inputs(1, 20000), dict(mask_mod=lambda b, h, q, kv: kv > 37)),
        "output": (inputs(), dict(out_mod=lambda out, lse, b, h, q: out * gate)),
    }


def replay_and_compare(name: str) -> None:
    """Captures a call, and replays it with inputs that were not there then."""
    tensors, given = cases()[name]
    graph, out = captured(*tensors, **given)
    for seed in (1, 2, 3):
        for t, fresh in zip(tensors, inputs(tensors[0].shape[2], tensors[1].shape[2], seed)):
            t.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize()
        replayed = out.clone()
        assert torch.equal(replayed, flex_attention(*tensors, **given)) and replayed.isfinite().all(), name


@pytest.mark.parametrize("name", cases().keys() if torch.cuda.is_available() else [])
def test_the_first_call_of_a_process_may_be_captured(name):
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}, {str(Path(__file__).parent)!r}]\n" \
           f"import conftest, test_graphs; test_graphs.replay_and_compare({name!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", cases().keys() if torch.cuda.is_available() else [])
def test_a_later_call_may_be_captured(name):
    tensors, given = cases()[name]
    for _ in range(2):
        flex_attention(*tensors, **given)
    replay_and_compare(name)


def test_a_mask_of_contents_is_made_before_the_capture():
    ids = (torch.arange(LENGTH) // 100).cuda()
    tensors = inputs()
    for given in (dict(mask_mod=lambda b, h, q, kv: ids[q] == ids[kv]),
                  dict(block_mask=create_block_mask(lambda b, h, q, kv: ids[q] == ids[kv], None, None, LENGTH, LENGTH))):
        with pytest.raises(UnsupportedError, match="once"):
            captured(*tensors, **given)
        want = flex_attention(*tensors, **given)
        graph, out = captured(*tensors, **given)
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, want)


def test_a_graph_outlives_what_it_was_made_of():
    tensors = inputs()
    mask = create_block_mask(mods.sliding_window(90), None, None, LENGTH, LENGTH, device="cuda")
    want = [flex_attention(*tensors, block_mask=mask), flex_attention(*tensors, mask_mod=mods.sliding_window(40))]
    made = [captured(*tensors, block_mask=mask), captured(*tensors, mask_mod=mods.sliding_window(40))]
    del mask
    for table in (spans_cache._entries, repeat._known, repeat._ready, repeat._hints, lists._made):
        table.clear()
    gc.collect()
    # What was freed is written over.
    sizes = (1, 8, 64, 128, 512, 1024, 4096)
    junk = [torch.full((n,), 1 << 30, dtype=torch.int32, device="cuda") for n in sizes for _ in range(64)]
    for (graph, out), right in zip(made, want):
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, right)
    assert len(junk)


def test_graphs_run_beside_each_other_and_beside_calls():
    long = inputs(4096, 4096)
    want = flex_attention(*long)
    made = [captured(*long) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(5):
        for (graph, _), stream in zip(made, streams):
            with torch.cuda.stream(stream):
                graph.replay()
        eager = flex_attention(*long)
    torch.cuda.synchronize()
    assert all(torch.equal(out, want) for out in (eager, *(out for _, out in made)))


def test_a_call_on_another_stream_is_captured_there():
    tensors, side = inputs(), torch.cuda.Stream()
    want = flex_attention(*tensors)
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        out = flex_attention(*tensors) * 2
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want * 2) and kernels.stream_of(tensors[0].device) is not None
