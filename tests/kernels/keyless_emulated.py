"""Rows that see no key, and others beside them, where what a score mod adds to a whole row, or multiplies all scores by, is NaN
or infinite: a kernel in the emulator against dense float64; run by test_row_terms.py.

Argument: the architecture. Prints one JSON object. "keyless": a row for each call: the largest errors, infinite where NaN or
infinities differ; how many rows see no key, how many are NaN; for Hopper how many warpgroups. "terms": see
row_terms_emulated.py."""
import json

import forward_emulated as emulated
import row_terms_emulated
import torch
from forward_emulated import Case
from row_terms_emulated import errors

from flexfa4.trace import bind

ODD = torch.tensor([0.0, torch.nan, 2.0, torch.inf, -3.0, -torch.inf, 1.0]).repeat(100)
SLOPES = torch.tensor([0.01, torch.nan, -0.02, torch.inf])
NO_NUMBER = torch.tensor(torch.nan)


def apart(b, h, q, kv):
    """Of three rows one sees some of the first keys, one some of the last, one nothing; row 7 sees all."""
    return (q == 7) | ((q % 3 == 0) & (kv < 90)) | ((q % 3 == 1) & (kv > 1500))


def late(b, h, q, kv):
    """Of two rows one sees keys, the first of them none of the last tiles, where walks begin."""
    return (q % 2 == 0) & (q + 1300 >= kv)


def even(b, h, q, kv):
    return (q % 2 == 0) & (q >= kv)


def one(b, h, q, kv):
    return (q % 2 == 0) & (q == kv)


def by_row(s, b, h, q, kv):
    return s + ODD[q]


LONG = (400, 1700)
CASES = [
    Case("a row", LONG, dims=(64, 64), score_mod=by_row, mask_mod=apart),
    Case("a row, late", LONG, dims=(64, 64), score_mod=by_row, mask_mod=late),
    Case("a row, split", LONG, dims=(64, 64), score_mod=by_row, mask_mod=apart, split_over=24),
    Case("a row, packed", (9, 1700), (8, 2), dims=(64, 64), score_mod=by_row, mask_mod=apart, pack=4),
    Case("a row, one query tile", (130, 1700), dims=(256, 256), score_mod=by_row, mask_mod=apart),
    Case("a head and a row", LONG, (4, 4), dims=(64, 64), mask_mod=apart,
         score_mod=lambda s, b, h, q, kv: s - SLOPES[h] + ODD[q]),
    Case("a slope", LONG, (4, 4), dims=(64, 64), score_mod=lambda s, b, h, q, kv: s + SLOPES[h] * (kv - q), mask_mod=even),
    Case("scores of NaN", (300, 330), dims=(64, 64), mask_mod=one,
         score_mod=lambda s, b, h, q, kv: torch.where(q % 3 == 0, NO_NUMBER, s) + ODD[q]),
    Case("a factor", LONG, dims=(64, 64), score_mod=lambda s, b, h, q, kv: s * NO_NUMBER, mask_mod=apart),
]


def dense(case: Case, q, k, v):
    group = case.heads[0] // case.heads[1]
    q, k, v = q.double(), *(x.double().repeat_interleave(group, 1) for x in (k, v))
    at = torch.arange(case.heads[0]).view(-1, 1, 1), torch.arange(case.lengths[0]).view(-1, 1), torch.arange(case.lengths[1])
    seen = case.mask_mod(0, *at).expand(case.heads[0], *case.lengths)
    scores = case.score_mod(q @ k.mT * case.dims[0]**-0.5, 0, *at).double().masked_fill(~seen, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    empty = top == -torch.inf
    weights = torch.exp(scores - top.masked_fill(empty, 0.0))
    total = weights.sum(-1, keepdim=True)
    lse = (top + total.log()).masked_fill(empty, -torch.inf)
    return (weights / total.masked_fill(empty, 1.0)) @ v, lse.squeeze(-1), ~seen.any(-1)


def run(case: Case) -> dict:
    tensors = emulated.inputs(case)
    out, lse, keyless = dense(case, *tensors)
    kernel, bounds = emulated.KERNEL, [bind(case.score_mod, "score"), bind(case.mask_mod, "mask"), None]
    plan = emulated.engine.choose(kernel, *tensors, case.dims[0]**-0.5, bounds, False).plan
    assert case.pack in (None, plan.pack)
    lists = emulated.lists_of(case, plan, *tensors[:2])
    with emulated.places.emulator.device(emulated.ARCH, seed=1, completion="random", races=True) as dev:
        crew = emulated.kernels.Crew(emulated.kernels.work_items(plan, *tensors[:2], lists), None, dev.tensor)
        got, got_lse = emulated.kernels.forward(plan, tensors, case.dims[0]**-0.5, bounds, lists, crew)
    return dict(case=case.name, out=errors(got, out), lse=errors(got_lse, lse), findings=dev.findings,
                warpgroups=getattr(plan.tiles, "consumers", 0), keyless=int(keyless.sum()), nan=int(lse.isnan().sum()),
                numbers=int(lse.isfinite().sum()))


if __name__ == "__main__":
    LEFT_OUT = {"sm90": (), "sm100": ("scores of NaN", "a factor")}[emulated.KERNEL]
    found = dict(keyless=[run(case) for case in CASES if case.name not in LEFT_OUT], terms=row_terms_emulated.run())
    print("\n" + json.dumps(found))
