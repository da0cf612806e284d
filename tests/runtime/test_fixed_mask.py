# ruff: noqa: F811 (a fixture that is imported is named again as an argument)
"""flex_attention over a FixedMask: it follows the captured tensors with buffers that stay, on every engine, or says why not."""
import gc
import re

import pytest
import torch
from launched import launches  # noqa: F401

from flexfa4 import and_masks, create_block_mask, flex_attention, mods, reference
from flexfa4.errors import LookupOutOfRange, ShapeError, UnsupportedError
from flexfa4.runtime import capture, engine, lists, repeat
from flexfa4.runtime.lists import fixed_lists
from flexfa4.schedule import make_schedule
from flexfa4.sparsity import fixed as fixed_masks
from flexfa4.trace import bind

S = 300


def inputs(heads=(4, 2), length=S, dtype=torch.float32, batch=2, dim=32, grad=False):
    g = torch.Generator().manual_seed(0)
    counts = heads[0], heads[1], heads[1]
    return [torch.randn(batch, n, length, dim, generator=g).to(dtype).requires_grad_(grad) for n in counts]


def labels_of(*ends: int) -> torch.Tensor:
    return torch.bucketize(torch.arange(S), torch.tensor(ends), right=True)


CONTENTS = (labels_of(), labels_of(100, 150), labels_of(1, 2, 299), torch.arange(S) % 7)


def exactly(tensors, mask_mod, score_mod=None, out_mod=None):
    return reference.attention(*[t.detach().double() for t in tensors], score_mod, mask_mod, tensors[0].shape[3] ** -0.5, out_mod)


def same_mask(labels: torch.Tensor):
    """As the mask over `labels`, and of no kin to it."""
    fixed = labels.clone()
    return lambda b, h, q, kv: (fixed[q] == fixed[kv]) & (q >= kv)


@pytest.mark.parametrize("capacity", [None, 3])
def test_calls_follow_the_labels(capacity):
    """3 runs overflow in some contents: the results are the same."""
    labels = torch.zeros(S, dtype=torch.int64)
    mask = create_block_mask(mods.document_causal(labels), None, None, S, S)
    fixed, tensors, overflows = mask.reserve(capacity), inputs(), 0
    for content in CONTENTS:
        labels.copy_(content)
        for _ in range(2):
            out, lse = flex_attention(*tensors, block_mask=fixed, enable_gqa=True, return_lse=True)
            out64, lse64 = exactly(tensors, same_mask(content))
            assert (out - out64).abs().max() < 2e-6 and (lse - lse64).abs().max() < 2e-6
        try:
            fixed.check()
        except ShapeError:
            overflows += 1
    assert (overflows > 0) == (capacity is not None) and len(fixed._buffers) == 1


def test_rows_without_keys():
    limit = torch.tensor(0)
    mask = create_block_mask(lambda b, h, q, kv: kv < limit - q, 1, 1, S, S)
    fixed, tensors = mask.reserve(), inputs()
    for value in (0, 40, 1000):
        limit.fill_(value)
        out, lse = flex_attention(*tensors, block_mask=fixed, enable_gqa=True, return_lse=True)
        out64, lse64 = exactly(tensors, lambda b, h, q, kv, value=value: kv < value - q)
        assert torch.equal(lse == float("-inf"), lse64 == float("-inf")) and (out - out64).abs().max() < 2e-6
        assert (out[lse == float("-inf")] == 0).all()
    fixed.check()


def test_a_score_mod_and_an_out_mod_beside_it():
    labels = CONTENTS[1].clone()
    fixed = create_block_mask(mods.document_causal(labels), None, None, S, S).reserve()
    bias, gate = torch.linspace(0, 1, 4), torch.tensor(0.5)
    given = dict(score_mod=lambda s, b, h, q, kv: s - bias[h] * (q - kv), out_mod=lambda out, lse, b, h, q: out * gate + lse)
    for content in CONTENTS:
        labels.copy_(content)
        out = flex_attention(*inputs(), block_mask=fixed, enable_gqa=True, **given)
        assert (out - exactly(inputs(), same_mask(content), **given)[0]).abs().max() < 5e-6


def test_gradients_are_those_of_the_labels_of_the_call():
    labels = CONTENTS[0].clone()
    mask = create_block_mask(mods.document_causal(labels), None, None, S, S)
    fixed = mask.reserve()
    for content in CONTENTS:
        labels.copy_(content)
        tensors = inputs((2, 2), grad=True)
        out = flex_attention(*tensors, block_mask=fixed)
        mask.rebuild_into(fixed)                       # before the backward pass, as another layer's call might
        wrong = torch.autograd.grad(out.square().sum(), tensors)
        doubles = [t.detach().double().requires_grad_() for t in tensors]
        scores = doubles[0] @ doubles[1].mT * 32**-0.5
        at = torch.arange(S)
        scores = scores.masked_fill(~same_mask(content)(0, 0, at[:, None], at), float("-inf"))
        right = torch.autograd.grad((scores.softmax(-1) @ doubles[2]).square().sum(), doubles)
        for a, b in zip(wrong, right):
            assert (a - b).abs().max() < 2e-5
    labels.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out = flex_attention(*tensors, block_mask=fixed)
        labels.add_(1)
        out.sum().backward()


def test_debug_and_transforms_take_the_function():
    labels = (torch.arange(12) // 5)
    mask = create_block_mask(mods.document_causal(labels), None, None, 12, 12)
    tensors = inputs((1, 1), 12, batch=1, dim=4)
    want = flex_attention(*tensors, block_mask=mask)
    assert torch.allclose(flex_attention(*tensors, block_mask=mask.reserve(), debug=True), want, atol=1e-6)
    mapped = torch.vmap(lambda q: flex_attention(q, *tensors[1:], block_mask=mask.reserve()))(tensors[0][None])
    assert torch.allclose(mapped[0], want, atol=1e-6)


def test_what_is_refused():
    labels = CONTENTS[1].clone()
    mask = create_block_mask(mods.document_causal(labels), None, None, S, S)
    fixed, tensors = mask.reserve(), inputs((2, 2))
    with pytest.raises(UnsupportedError, match="block_mask is a FixedMask and mask_mod is given too.*and_masks"):
        flex_attention(*tensors, block_mask=fixed, mask_mod=mods.causal_mask)
    both = create_block_mask(and_masks(mask.mask_mod, mods.sliding_window(40)), None, None, S, S).reserve()
    assert flex_attention(*tensors, block_mask=both).shape == tensors[0].shape
    with pytest.raises(ShapeError, match=f"made for Q_LEN={S}, KV_LEN={S}.*length 200"):
        flex_attention(*(t[:, :, :200] for t in tensors), block_mask=fixed)
    assert flex_attention(*(t[:, :, :200] for t in tensors), block_mask=fixed.resize(200, 200)).shape[2] == 200
    with pytest.raises(ShapeError, match="capacity=1, and the mask of .* has 2 rows of tiles of 256 x 128: expected"):
        flex_attention(*tensors, block_mask=mask.reserve(1))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_runs_the_call_between_two_graphs(backend, recwarn):
    """With the labels of each call, and gradients; fullgraph=True says what to do."""
    torch._dynamo.reset()
    labels = torch.zeros(S, dtype=torch.int64)
    fixed = create_block_mask(mods.document_causal(labels), None, None, S, S).reserve()
    tensors = inputs(grad=True)

    def model(q, k, v):
        return flex_attention(q * 2, k, v, block_mask=fixed, enable_gqa=True) + 1

    compiled = torch.compile(model, backend=backend)
    for content in CONTENTS:
        labels.copy_(content)
        out = compiled(*tensors)
        q, k, v = tensors
        assert (out - 1 - exactly((q * 2, k, v), same_mask(content))[0]).abs().max() < 4e-6
        found, expected = (torch.autograd.grad((o * o).sum(), tensors) for o in (out, model(*tensors)))
        assert all((a - b).abs().max() <= 1e-5 * b.abs().max() for a, b in zip(found, expected))
    assert not [w for w in recwarn if "flexfa4" in str(w.message)]
    torch._dynamo.reset()                # else what is compiled already is taken
    whole = torch.compile(model, backend=backend, fullgraph=True)
    with pytest.raises(Exception, match="inside torch.compile block_mask is a FixedMask.*pass the BlockMask"):
        whole(*tensors)


@pytest.mark.parametrize("length", [60, 5000], ids=["evaluated", "tile by tile"])
def test_a_look_up_past_a_capture_is_said_as_for_a_block_mask(length):
    """Where it is on the CPU; 5,000 positions are more than are evaluated in full. What the mask decides without it is none."""
    labels = torch.arange(length - 3)

    def same(b, h, q, kv):
        return labels[q] == labels[kv]

    def guarded(b, h, q, kv):
        return (q < length - 3) & (kv < length - 3) & (labels[q] == labels[kv])

    mask = create_block_mask(same, None, None, length, length)
    place = re.escape(f"{__file__}:{same.__code__.co_firstlineno + 1}: same looks up labels")
    fixed, tensors = mask.reserve(), inputs((1, 1), length, batch=1, dim=4)
    for ask in (mask.spans, fixed.spans, lambda: flex_attention(*tensors, block_mask=fixed), fixed.to_dense):
        for _ in range(2):
            with pytest.raises(LookupOutOfRange, match=place + f".*from {length - 3} to {length - 1}"):
                ask()
    with pytest.raises(LookupOutOfRange, match=place):
        mask.rebuild_into(fixed)
    fine = create_block_mask(guarded, None, None, length, length).reserve()
    assert torch.equal(fine.spans().row_ptr, fine.mask.spans().row_ptr)


def test_a_capture_that_grows_short_is_said_and_one_that_grows_again_is_not():
    holder = [torch.arange(S)]
    mask = create_block_mask(lambda b, h, q, kv: holder[0][q] >= kv, None, None, S, S)
    fixed, tensors = mask.reserve(), inputs((1, 1))
    for labels, fits in ((holder[0], True), (torch.arange(S - 1), False), (torch.arange(S) // 2, True)):
        holder[0] = labels
        if fits:
            out = flex_attention(*tensors, block_mask=fixed)
            assert (out - exactly(tensors, lambda b, h, q, kv, at=labels: at[q] >= kv)[0]).abs().max() < 2e-6
        else:
            with pytest.raises(LookupOutOfRange, match="index 299 in dimension 0, whose size is 299"):
                flex_attention(*tensors, block_mask=fixed)


def test_what_a_block_mask_tells_of_itself():
    labels = CONTENTS[1].clone()
    mask = create_block_mask(mods.document_mask(labels), None, None, S, S)
    fixed = mask.reserve()
    for content in CONTENTS[2:]:
        labels.copy_(content)
        assert torch.equal(fixed.to_dense()[0, 0], content[:, None] == content)
        assert fixed.sparsity() == mask.sparsity()
        assert torch.equal(fixed.to_torch().to_dense(), mask.to_torch().to_dense())


@pytest.mark.parametrize("grad, arch, said", [
    (False, None, "the tiled engine takes this call .no kernel exists for cpu. and reads its tiles on the host"),
    (True, "sm90", "wants a gradient.*capture the call under torch.no_grad"),
])
def test_what_a_capture_refuses(launches, monkeypatch, grad, arch, said):
    """Before anything is launched or written."""
    labels = CONTENTS[1].clone()
    fixed = create_block_mask(mods.document_causal(labels), None, None, S, S).reserve()
    monkeypatch.setattr(engine, "architecture", lambda device: arch)
    monkeypatch.setattr(capture, "active", lambda device: True)
    with pytest.raises(UnsupportedError, match=f"block_mask is a FixedMask of .*a CUDA graph is being captured: .*{said}"):
        flex_attention(*inputs(dtype=torch.bfloat16, grad=grad), block_mask=fixed, enable_gqa=True)
    assert not launches and not fixed._buffers


def test_repeated_calls_launch_with_the_same_lists(launches, monkeypatch):
    """What a kernel reads stays where it is, over new labels too; and is what the labels are when it is launched."""
    known = []
    again = repeat.again
    monkeypatch.setattr(repeat, "again", lambda *a, **given: known.append(again(*a, **given)) or known[-1])
    labels = CONTENTS[0].clone()
    mask = create_block_mask(mods.document_causal(labels), None, None, S, S)
    fixed, tensors = mask.reserve(), inputs(dtype=torch.bfloat16)
    found = []
    for content in CONTENTS:
        labels.copy_(content)
        for _ in range(3):
            flex_attention(*tensors, block_mask=fixed, enable_gqa=True)
            _, signature, (_, _, given, _, captures, _) = launches[-1]
            spans, work, parts = given[:3]
            assert parts is None and signature.ordered and not signature.placed and captures[0] is labels
            expected = mask.spans(fixed_tiles(fixed).q_tile, fixed_tiles(fixed).kv_tile)
            assert torch.equal(spans[0], expected.row_ptr) and torch.equal(spans[1][:len(expected.runs)], expected.runs)
            found.append((spans[0].data_ptr(), spans[1].data_ptr(), work.data_ptr()))
        assert known[-2] is not None and known[-1] is not None
    assert len(launches) == 12 and len(set(found)) == 1


def fixed_tiles(fixed):
    (spans,) = fixed._buffers.values()
    return spans.tiling


def plan_of(tensors, mask, arch="sm90"):
    return engine.choose(arch, *tensors, 0.2, (None, bind(mask.mask_mod, "mask"), None)).plan


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("heads, batch", [((4, 4), 1), ((4, 2), 3), ((2, 2), 2)])
def test_rows_are_longest_first(heads, batch, arch, monkeypatch):
    """The order of a schedule without splits, where batches and heads see the same."""
    monkeypatch.setattr(lists, "section_of", lambda plan, key: 2)
    length = 3000
    labels = torch.zeros(length, dtype=torch.int64)
    mask = create_block_mask(mods.document_causal(labels), None, None, length, length)
    tensors = inputs(heads, length, torch.bfloat16, batch, 128)
    plan, fixed, orders = plan_of(tensors, mask, arch), mask.reserve(), set()
    spans = fixed.kept_spans(plan.q_tile, plan.tiles.kv_tile, plan.halves)
    found = fixed_lists(spans, plan, *tensors[:2])
    for ends in ((), (700, 1900), (1, 130, 2999)):
        labels.copy_(torch.bucketize(torch.arange(length), torch.tensor(ends), right=True))
        fixed.check_fresh()
        halved_or_not = mask.kept_spans(plan.q_tile, plan.tiles.kv_tile) if not plan.halves else None
        runs = spans if halved_or_not is None else halved_or_not
        work = lists.Work(runs.row_ptr.numpy(), runs.runs.numpy(), *lists.heads_of(plan, *tensors[:2]), halved=plan.halves)
        made = make_schedule(work, 4, 2, split=False)
        if made.strategy == "longest first":
            orders.add(tuple(made.tiles[:, 2].tolist()))
            assert torch.equal(found.work[:, :3], torch.from_numpy(made.tiles[:, :3]))
    assert len(orders) > 1


def test_rows_of_masks_that_differ_are_all_there():
    labels = torch.stack([CONTENTS[1], CONTENTS[3]])
    mask = create_block_mask(lambda b, h, q, kv: (labels[b, q] == labels[b, kv]) & (q >= kv + 20 * h), 2, 4, S, S)
    tensors = inputs(dtype=torch.bfloat16, dim=128)
    plan = plan_of(tensors, mask)
    spans = mask.reserve().kept_spans(plan.q_tile, plan.tiles.kv_tile)
    work = fixed_lists(spans, plan, *tensors[:2]).work
    tiles = spans.tiling.q_tiles
    assert sorted(map(tuple, work[:, :3].tolist())) == [(b, h, q) for b in range(2) for h in range(4) for q in range(tiles)]
    counts = [run[1] - run[0] for run in spans.runs.tolist()]
    ends = spans.row_ptr.tolist()
    costs = [sum(counts[a:b]) for a, b in zip(ends, ends[1:])]
    for b in range(2):
        for h in range(4):
            mine = [costs[(b * 4 + h) * tiles + q] for bb, hh, q in work[:, :3].tolist() if (bb, hh) == (b, h)]
            assert mine == sorted(mine, reverse=True)


def test_what_a_graph_writes_outlives_the_mask(monkeypatch):
    monkeypatch.setattr(fixed_masks, "capture_on", lambda device: 5)
    monkeypatch.setattr(fixed_masks, "_of_graphs", {})
    fixed = create_block_mask(mods.causal_mask, None, None, S, S).reserve()
    address = fixed.spans(64, 64).order.data_ptr()
    del fixed
    gc.collect()
    assert [kept.order.data_ptr() for kept in fixed_masks._of_graphs.values()] == [address]
