"""Which masks are false wherever labels differ, and what is left of them where labels are the same."""
from dataclasses import replace

import pytest
import torch

from flexfa4.facts.documents import inside, label_tests, only_label_tests
from flexfa4.facts.simplify import simplify
from flexfa4.interpret import evaluate
from flexfa4.ir import Op
from flexfa4.trace import bind

IDS = torch.tensor([0, 0, 1, 1, 2])
WIDE = torch.stack([IDS, IDS.flip(0)])
SMALL = IDS.to(torch.int8)


def same(b, h, q, kv):
    return IDS[q] == IDS[kv]


def causal(b, h, q, kv):
    return q >= kv


MASKS = {
    "alone": (same, 1, lambda b, h, q, kv: q == q),
    "and causal": (lambda b, h, q, kv: (q >= kv) & (IDS[kv] == IDS[q]), 1, causal),
    "deep in a conjunction": (lambda b, h, q, kv: ((q - kv < 9) & ((WIDE[b, q] == WIDE[b, kv]) & (kv > 1))) & (q >= kv), 1,
                              lambda b, h, q, kv: ((q - kv < 9) & (kv > 1)) & (q >= kv)),
    "two": (lambda b, h, q, kv: (IDS[q] == IDS[kv]) & (WIDE[0, q] == WIDE[0, kv]) & (q >= kv), 2, causal),
    "cast": (lambda b, h, q, kv: (SMALL[q].long() == SMALL[kv].long()) & (q >= kv), 1, causal),
    "or": (lambda b, h, q, kv: (IDS[q] == IDS[kv]) | (kv < 2), 0, None),
    "unequal": (lambda b, h, q, kv: IDS[q] != IDS[kv], 0, None),
    "not": (lambda b, h, q, kv: ~((IDS[q] == IDS[kv]) & (q >= kv)), 0, None),
    "a number": (lambda b, h, q, kv: (IDS[q] == 1) & (q >= kv), 0, None),
}


@pytest.mark.parametrize("name", MASKS)
def test_label_tests(name):
    mask, count, rest = MASKS[name]
    bound = bind(mask, "mask")
    graph = simplify(bound.graph)
    assert len(label_tests(graph)) == count
    if count:
        assert inside(graph).root is simplify(bind(rest, "mask").graph).root or name == "deep in a conjunction"
        assert not label_tests(inside(graph)) and label_tests(only_label_tests(graph)) == label_tests(graph)
        assert (inside(graph).captures, inside(graph).slots) == (graph.captures, graph.slots)


def test_what_is_left_is_the_mask_where_labels_are_the_same():
    bound = bind(MASKS["deep in a conjunction"][0], "mask")
    graph = simplify(bound.graph)
    env = {Op.B: torch.arange(2)[:, None, None], Op.H: torch.zeros((), dtype=torch.long), Op.Q: torch.arange(5)[:, None],
           Op.KV: torch.arange(5)}
    graphs = graph, inside(graph), only_label_tests(graph)
    whole, left, holds = (evaluate(replace(bound, graph=g), env).expand(2, 5, 5) for g in graphs)
    assert torch.equal(whole, left & holds) and (left & ~holds).any()
