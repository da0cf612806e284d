"""What is written in place to a result: to its argument too where torch gives the same tensor or a view of it, and only there.

torch on plain 0-d tensors is the reference, function by function, over every name of the table.
"""
import copy

import pytest
import torch
from at_positions import INDEX, assert_same_as_called

from flexfa4.errors import FlexError
from flexfa4.interpret import evaluate
from flexfa4.ir import Op
from flexfa4.trace import trace
from flexfa4.trace.tracer import METHODS

NAMES = sorted(name for name in METHODS if name.rstrip("_") == name)
ROW = torch.tensor([[2.5], [-1.0]])
COUNTS = torch.tensor([[3], [-7]])


def method(name):
    return lambda x: getattr(x, name)()


def called(name):
    return lambda x: (getattr(torch, name, None) or getattr(torch.nn.functional, name))(x)


CALLS = {
    **{f"x.{name}()": method(name) for name in NAMES}, **{f"{name}(x)": called(name) for name in NAMES},
    "to its type": lambda x: x.to(x.dtype), "to its type, copied": lambda x: x.to(x.dtype, copy=True),
    "to its type, copied by position": lambda x: x.to(x.dtype, False, True),
    "to its type, not copied": lambda x: x.to(x.dtype, True, False), "to another type": lambda x: x.to(torch.float64),
    "to another's type": lambda x: x.to(x * 1), "type_as": lambda x: x.type_as(x * 1), "type": lambda x: x.type(x.dtype),
    "to a device": lambda x: x.to("cpu"), "to a device, copied": lambda x: x.to("cpu", copy=True),
    "new_tensor": lambda x: x.new_tensor(x), "full": lambda x: torch.full_like(x, x),
    "where": lambda x: torch.where(x == x, x, x),
    "...": lambda x: x[...], "the same": lambda x: x, "dropout": lambda x: torch.nn.functional.dropout(x, 0.0),
    "maximum": lambda x: torch.maximum(x, x), "masked_fill": lambda x: x.masked_fill(x != x, 0),
    "clamp": lambda x: x.clamp(max=99),
    "copy": copy.copy, "deepcopy": copy.deepcopy,
}


def written_after(function, x):
    y = function(x)
    y *= 2
    y += 3
    return x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind, x, least", [("score", torch.tensor(-2.5), 80), ("mask", torch.tensor(5), 40)])
def test_a_write_to_a_result(kind, x, least):
    compared = []
    for name, function in CALLS.items():
        try:
            if written_after(function, x.clone()).dtype is not x.dtype:
                continue
        except Exception:                  # torch has no such function of one number
            continue

        def of_score(score, b, h, q, k, function=function):
            return written_after(function, score)

        def of_position(b, h, q, k, function=function):
            return written_after(function, q) < 3 * k

        try:
            assert_same_as_called(of_score if kind == "score" else of_position, kind, (2, 2, 9, 9), count=6)
        except FlexError:                  # refused, and said so
            continue
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        compared.append(name)
    assert len(compared) >= least, compared


@pytest.mark.parametrize("name", ["sum", "amax", "amin"])
@pytest.mark.parametrize("table", [ROW, COUNTS], ids=["floats", "integers"])
def test_a_write_to_a_reduction_of_one_entry(name, table):
    def mod(score, b, h, q, k):
        row = table[h].to(torch.float64)
        total = getattr(row, name)()
        total += 1
        return score + row[0].float() + 10 * total.float()

    assert_same_as_called(mod, "score", (2, 2, 9, 9))


@pytest.mark.parametrize("copy_of", [lambda x: x.clone(), lambda x: x.to(torch.float32, copy=True), lambda x: x * 1])
def test_a_copy_and_its_source_are_two_numbers(copy_of):
    def mod(score, b, h, q, k):
        other = copy_of(score)
        other += ROW[h, 0]
        other.clamp_(min=0.5)
        return torch.where(q >= k, other, score)

    assert_same_as_called(mod, "score", (2, 2, 9, 9))


@pytest.mark.parametrize("function", ["relu", "relu6", "silu", "mish", "hardsigmoid", "hardswish", "leaky_relu", "elu",
                                      "hardtanh"])
@pytest.mark.parametrize("how", ["named", "by position", "False"])
def test_the_option_to_write_to_the_argument(function, how):
    apply = getattr(torch.nn.functional, function)
    more = {"leaky_relu": (0.3,), "elu": (0.7,), "hardtanh": (-2.0, 0.5)}.get(function, ())

    def mod(score, b, h, q, k):
        if how == "by position":
            apply(score, *more, True)
        else:
            apply(score, *more, inplace=how == "named")
        return score * 2

    assert_same_as_called(mod, "score", (2, 2, 9, 9))


TABLE = torch.tensor([[[0.5, -1.0, 2.0], [3.0, 0.25, -0.5]], [[1.5, 4.0, -2.0], [0.75, -3.0, 1.0]]])


def entry(row):
    row[0, 1].add_(10)


def entry_of_a_slice(row):
    row[1, 1:][-1].mul_(3)


def entry_under_two_names(row):
    one, other = row[0, 0], row[0][0]
    one += 5
    other *= 2


def entry_that_was_summed(row):
    row[1].sum()
    row[1, 0].fill_(7)


def entries_in_turn(row):
    for line in row:
        for x in line:
            x *= x


def entry_after_none(row):
    row[None][0, 0, 2].zero_()


@pytest.mark.parametrize("write", [entry, entry_of_a_slice, entry_under_two_names, entry_that_was_summed, entries_in_turn,
                                   entry_after_none])
def test_a_write_to_an_entry_of_a_row(write):
    """torch's vmap, under which flex_attention calls mods, is the reference: there a look-up is a copy."""
    def mod(score, b, h, q, k):
        row = TABLE[h]
        write(row)
        return score + row[0, 0] + 2 * row[0, 1] + (row[0] * row[0]).sum() + row[1].sum() + 100 * TABLE[h, 0].sum()

    bound, heads = trace(mod, "score"), torch.arange(2)
    zero = torch.zeros(2, dtype=torch.int64)
    want = torch.vmap(mod)(torch.zeros(2), zero, heads, zero, zero)
    got = [float(evaluate(bound, {**dict.fromkeys(INDEX, 0), Op.H: h, Op.SCORE: torch.tensor(0.0)})) for h in range(2)]
    assert got == pytest.approx(want.tolist(), rel=1e-6)


def test_a_look_up_by_a_traced_index_is_a_copy():
    def mod(score, b, h, q, k):
        row = TABLE[h, 0]
        x = row[k % 3]
        x += 1
        return score + row.sum() + 10 * x

    bound = trace(mod, "score")
    for k in range(3):
        got = evaluate(bound, {**dict.fromkeys(INDEX, 0), Op.H: 1, Op.KV: k, Op.SCORE: torch.tensor(0.0)})
        assert float(got) == TABLE[1, 0].sum() + 10 * (TABLE[1, 0, k] + 1)
