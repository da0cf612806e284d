"""Out-of-range lookups: seen where they reach the result, and only there."""
import pytest
import torch
from hypothesis import given, settings
from tests.random_graphs import cases

from flexfa4.errors import LookupOutOfRange
from flexfa4.interpret import Program, evaluate, evaluate_checked, lookup_error
from flexfa4.interpret.meaning import load
from flexfa4.ir import Capture, DType, Graph, Op, const, node
from flexfa4.ir.bound import BoundGraph, Origin
from flexfa4.ir.graph import KV, Q

I64, BOOL = DType.I64, DType.BOOL
SIZE = 4
FLAGS = torch.tensor([True, False, True, False])
KEYS = torch.arange(-6, 7)[None]
INSIDE = ((KEYS >= -SIZE) & (KEYS < SIZE))


def _bound(root, captures=(Capture(BOOL, 1),), tensors=(FLAGS,), lines=()):
    origin = Origin("short_table", "mods.py", 7, ("flags", "order"), dict(lines))
    return BoundGraph(Graph("mask", root, captures), tensors, (), origin)


LOOKUP = node(Op.LOAD, (KV,), BOOL, 0)
IN_RANGE = node(Op.AND, (node(Op.LT, (KV, const(SIZE, I64)), BOOL), node(Op.LE, (const(-SIZE, I64), KV), BOOL)), BOOL)
GUARDS = {
    "bare": (LOOKUP, ~INSIDE),
    "and": (node(Op.AND, (IN_RANGE, LOOKUP), BOOL), None),
    "and, guard second": (node(Op.AND, (LOOKUP, IN_RANGE), BOOL), None),
    "or": (node(Op.OR, (LOOKUP, node(Op.NOT, (IN_RANGE,), BOOL)), BOOL), None),
    "where": (node(Op.WHERE, (IN_RANGE, LOOKUP, const(False, BOOL)), BOOL), None),
    "where, wrong way": (node(Op.WHERE, (IN_RANGE, const(False, BOOL), LOOKUP), BOOL), ~INSIDE),
    "half a guard": (node(Op.AND, (node(Op.LT, (KV, const(SIZE, I64)), BOOL), LOOKUP), BOOL), KEYS < -SIZE),
    "in a condition": (node(Op.WHERE, (LOOKUP, IN_RANGE, IN_RANGE), BOOL), ~INSIDE),
}


@pytest.mark.parametrize("name", GUARDS)
def test_guards(name):
    root, expected = GUARDS[name]
    value, bad = evaluate_checked(_bound(root), {Op.KV: KEYS})
    assert value.shape == KEYS.shape
    assert torch.equal(bad.expand_as(KEYS), torch.zeros_like(INSIDE) if expected is None else expected)


def test_no_lookup_no_poison():
    value, bad = evaluate_checked(_bound(IN_RANGE, (), ()), {Op.KV: KEYS})
    assert bad is None and torch.equal(value, INSIDE)


def test_an_index_from_a_bad_lookup_is_bad():
    order = torch.tensor([0, 3, 9])
    inner = node(Op.LOAD, (KV,), I64, 1)
    bound = _bound(node(Op.LOAD, (inner,), BOOL, 0), (Capture(BOOL, 1), Capture(I64, 1)), (FLAGS, order))
    env = {Op.KV: torch.arange(5)}
    assert evaluate_checked(bound, env)[1].tolist() == [False, False, True, True, True]
    message = str(lookup_error(bound, env))
    assert "order" in message and "indices from 3 to 4" in message


def test_the_error_names_what_a_user_needs():
    bound = _bound(node(Op.AND, (node(Op.LE, (KV, Q), BOOL), LOOKUP), BOOL), lines={LOOKUP: 9})
    error = lookup_error(bound, {Op.Q: torch.arange(6)[:, None], Op.KV: torch.arange(8)[None]})
    assert isinstance(error, LookupOutOfRange) and isinstance(error, IndexError)
    assert "mods.py:9: short_table looks up flags (shape (4,)) with indices from 4 to 5 in dimension 0, whose size is 4" in str(
        error)
    allowed = torch.arange(8)[None] != 5
    restricted = lookup_error(bound, {Op.Q: torch.arange(6)[:, None], Op.KV: torch.arange(8)[None]}, allowed)
    assert "index 4 in dimension 0" in str(restricted)


def _garbage(flip):
    """A `load` whose out-of-range lookups give the opposite of, or something far from, what the nearest edge holds."""
    def load_garbage(captured, *index):
        value = load(captured, *index)
        index = [i if isinstance(i, torch.Tensor) else torch.tensor(i) for i in index]
        outside = torch.zeros((), dtype=torch.bool)
        for i, size in zip(index, captured.shape):
            outside = outside | (i >= size) | (i < -size)
        other = ~value if value.dtype is torch.bool else (value + flip if value.dtype.is_floating_point else value ^ 85)
        return torch.where(outside, other, value)
    return load_garbage


@given(cases("mask", specials=False))
@settings(max_examples=250, deadline=None)
def test_good_lanes_do_not_depend_on_what_lies_outside(case):
    value, bad = evaluate_checked(case.bound, case.env)
    assert torch.equal(value, evaluate(case.bound, case.env))
    twin = Program((case.bound.graph.root,))
    twin._run.__globals__["load"] = _garbage(1e6)
    other = twin(case.env, case.bound.tensors, case.bound.literals)[0]
    changed = value != other
    assert not (changed if bad is None else changed & ~bad).any()


@given(cases("mask", specials=False, in_range=True))
@settings(max_examples=100, deadline=None)
def test_lookups_that_are_clamped_are_never_bad(case):
    _, bad = evaluate_checked(case.bound, case.env)
    assert bad is None or not bad.any()
