# ruff: noqa: F811 (a fixture that is imported is named again as an argument)
"""Look-ups of score and output graphs past the end of a capture are refused before a kernel is launched, where positions decide;
the kernel is replaced by one that notes its launches."""
import pytest
import torch
from launched import launches  # noqa: F401

from flexfa4 import create_block_mask, flex_attention
from flexfa4.errors import LookupOutOfRange
from flexfa4.runtime import kernels

S = 300
T, LABELS, PLANE = torch.zeros(S - 1), torch.zeros(S, dtype=torch.long), torch.zeros(3, S, S - 1)
LONG = torch.zeros(5000)


def causal(b, h, q, kv):
    return q >= kv


def within(reach):
    return lambda b, h, q, kv: (q - kv <= reach) & (q >= kv)


PAST = {
    "a key": dict(score_mod=lambda s, b, h, q, kv: s + T[kv]),
    "a query": dict(score_mod=lambda s, b, h, q, kv: torch.tanh(s * T[q])),
    "a distance": dict(score_mod=lambda s, b, h, q, kv: s + T[q - kv], mask_mod=causal),
    "a distance below zero": dict(score_mod=lambda s, b, h, q, kv: s + T[kv - q]),
    "the edge of a window": dict(score_mod=lambda s, b, h, q, kv: s + T[:40][q - kv], mask_mod=within(40)),
    "a head": dict(score_mod=lambda s, b, h, q, kv: s + PLANE[h, q, q]),
    "the branch that positions take": dict(score_mod=lambda s, b, h, q, kv: torch.where(kv > 5, s + T[kv], s)),
    "both branches": dict(score_mod=lambda s, b, h, q, kv: torch.where(s > 0, s + T[kv], s - T[kv])),
    "a decision": dict(score_mod=lambda s, b, h, q, kv: torch.where((T[kv] > 0) & (q >= 0), s, -s)),
    "an index into an index": dict(score_mod=lambda s, b, h, q, kv: s + LONG[LABELS[2:][kv]]),
    "a row of the output": dict(out_mod=lambda out, lse, b, h, q: out * T[q], mask_mod=causal),
    "a column": dict(out_mod=lambda out, lse, b, h, q, d: out + T[:63][d]),
}
FINE = {
    "masked": dict(score_mod=lambda s, b, h, q, kv: s + T[kv], mask_mod=lambda b, h, q, kv: kv < S - 1),
    "inside a window": dict(score_mod=lambda s, b, h, q, kv: s + T[:41][q - kv], mask_mod=within(40)),
    "the branch that is not taken": dict(score_mod=lambda s, b, h, q, kv: torch.where(kv < S - 1, s + T[kv], s)),
    "what contents choose": dict(score_mod=lambda s, b, h, q, kv: torch.where(s > 0, s + T[kv], s)),
    "beside False": dict(score_mod=lambda s, b, h, q, kv: torch.where((kv < S - 1) & (T[kv] > 0), s, -s)),
    "beside True": dict(score_mod=lambda s, b, h, q, kv: torch.where((T[kv] > 0) | (kv >= S - 1), s, -s)),
    "clamped": dict(score_mod=lambda s, b, h, q, kv: s + T[kv.clamp(max=S - 2)]),
    "negative": dict(score_mod=lambda s, b, h, q, kv: s + T[-1 - (q - kv).abs() // 2]),
    "a mask of contents": dict(score_mod=lambda s, b, h, q, kv: s + T[kv], mask_mod=lambda b, h, q, kv: LABELS[kv] > 0),
}


def inputs(heads=4):
    return [torch.zeros(1, heads, S, 64, dtype=torch.bfloat16) for _ in range(3)]


@pytest.mark.parametrize("form", ["mask_mod", "block_mask", "gradients"])
@pytest.mark.parametrize("name", PAST)
def test_refused_before_the_launch(launches, name, form):
    given, tensors = dict(PAST[name]), inputs()
    if form == "block_mask" and "mask_mod" in given:
        given["block_mask"] = create_block_mask(given.pop("mask_mod"), None, None, S, S)
    if form == "gradients":
        tensors[0].requires_grad_()
    for _ in range(2):
        with pytest.raises(LookupOutOfRange, match=r"test_past_ends.py:\d+: .* looks up .* in dimension \d"):
            flex_attention(*tensors, **given)
    assert not launches or form == "gradients" and "out_mod" in given      # of a recorded call the output graph comes after


@pytest.mark.parametrize("name", FINE)
def test_harmless(launches, name):
    for _ in range(2):
        flex_attention(*inputs(), **FINE[name])
    assert len([kind for kind, *_ in launches if kind == "forward"]) == 2


def test_the_message_names_what_is_read(launches):
    with pytest.raises(LookupOutOfRange, match=r"looks up T \(shape \(299,\)\) with index 299 in dimension 0, whose size is 299"):
        flex_attention(*inputs(), **PAST["a key"])


def test_a_table_that_is_shorter_in_a_later_call(launches):
    def call(table):
        flex_attention(*inputs(), score_mod=lambda s, b, h, q, kv: s + table[kv])

    for _ in range(3):
        call(torch.zeros(S))
        call(torch.zeros(S + 1))
        with pytest.raises(LookupOutOfRange, match="looks up table"):
            call(torch.zeros(S - 1))
    assert len(kernels._found) == 1 and len(launches) == 6
