"""Axes and affine forms: random graphs by evaluation, and the forms of well-known mods."""
import pytest
import torch
from hypothesis import given, settings

from flexfa4.facts.affine import Affine, affine, affine_forms
from flexfa4.facts.axes import axes
from flexfa4.interpret import program
from flexfa4.ir import DType, Op, cast, const, node
from flexfa4.ir.graph import KV, SCORE, B, H, Q
from flexfa4.tensors import torch_dtype
from tests.random_graphs import cases, same

F32, I64, I32 = DType.F32, DType.I64, DType.I32
LINEAR = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.SHL, Op.CAST, Op.MIN})


def _i(op, *args):
    return node(op, args, I64)


def _c(value, dtype=I64):
    return const(value, dtype)


def _value(n, case):
    return program((n,))(case.env, case.bound.tensors, case.bound.literals)[0]


def _integer(form: Affine, case) -> torch.Tensor:
    dtype = torch_dtype(form.rest.dtype)

    def number(c):
        return _value(c, case) if not isinstance(c, int) else torch.tensor(c).to(dtype)
    q, kv = case.env[Op.Q].to(dtype), case.env[Op.KV].to(dtype)
    return number(form.q_coef) * q + number(form.kv_coef) * kv + number(form.rest)


@pytest.mark.parametrize("dtypes", [(I64,), (I64, I32, DType.U8), (I64, F32)], ids=repr)
def test_forms_equal_the_value(dtypes):
    found = []

    @given(cases("score", ops=LINEAR, dtypes=dtypes, max_ops=12, float_to_int=False))
    @settings(max_examples=150, deadline=None)
    def check(case):
        for n, form in affine_forms(case.bound.graph.root).items():
            if form is None:
                continue
            found.append(form)
            again = _integer(form, case)
            if form.scale is not None:
                again = _value(form.scale, case) * again.to(torch_dtype(n.dtype))
            assert same(_value(n, case), again)
            for part in (form.q_coef, form.kv_coef, form.rest, form.scale):
                assert not isinstance(part, type(n)) or axes(part)[part] <= {Op.B, Op.H}
    check()
    assert any(not f.is_free for f in found)


SLOT = node(Op.SLOT, (), I64, 0)
DISTANCE = _i(Op.SUB, KV, Q)
SLOPE = node(Op.LOAD, (H,), F32, 0)
FORMS = {
    "distance": (DISTANCE, Affine(-1, 1, _c(0))),
    "distance + window": (_i(Op.ADD, DISTANCE, SLOT), Affine(-1, 1, SLOT)),
    "strided": (_i(Op.SUB, _i(Op.MUL, _c(3), Q), _i(Op.SHL, KV, _c(2))), Affine(3, -4, _c(0))),
    "runtime stride": (_i(Op.ADD, _i(Op.MUL, Q, SLOT), KV), Affine(SLOT, 1, _c(0))),
    "rows of a head": (_i(Op.ADD, _i(Op.MUL, H, SLOT), Q), Affine(1, 0, _i(Op.MUL, H, SLOT))),
    "cancelled": (_i(Op.ADD, DISTANCE, Q), Affine(0, 1, _c(0))),
    "free": (_i(Op.FLOORDIV, H, _c(2)), Affine(0, 0, _i(Op.FLOORDIV, H, _c(2)))),
    "narrowed": (cast(DISTANCE, I32), Affine(-1, 1, _c(0, I32))),
    "alibi": (node(Op.MUL, (SLOPE, cast(DISTANCE, F32)), F32), Affine(-1, 1, _c(0), SLOPE)),
    "negated": (node(Op.NEG, (cast(DISTANCE, F32),), F32), Affine(-1, 1, _c(0), _c(-1.0, F32))),
    "widened after wrapping": (cast(node(Op.ADD, (cast(Q, I32), cast(KV, I32)), I32), I64), None),
    "product of positions": (_i(Op.MUL, Q, KV), None),
    "quotient": (_i(Op.FLOORDIV, Q, _c(2)), None),
    "lookup": (node(Op.LOAD, (Q,), I64, 0), None),
    "score": (SCORE, None),
    "twice scaled": (node(Op.MUL, (node(Op.MUL, (SLOPE, cast(Q, F32)), F32), SLOPE), F32), None),
    "scaled by the score": (node(Op.MUL, (SCORE, cast(Q, F32)), F32), None),
    "comparison": (node(Op.LE, (KV, Q), DType.BOOL), None),
}


@pytest.mark.parametrize("name", FORMS)
def test_form(name):
    n, expected = FORMS[name]
    got = affine(n)
    if name == "rows of a head":
        # Its product is in canonical order.
        assert (got.q_coef, got.kv_coef) == (1, 0) and set(got.rest.args) == {H, SLOT}
    else:
        assert got == expected


def test_toeplitz():
    assert affine(DISTANCE).is_toeplitz and affine(FORMS["alibi"][0]).is_toeplitz
    assert not affine(Q).is_toeplitz and not affine(H).is_toeplitz and not affine(FORMS["runtime stride"][0]).is_toeplitz


def test_axes():
    bias = node(Op.LOAD, (B, _i(Op.SUB, Q, KV)), F32, 0)
    total = node(Op.ADD, (SCORE, node(Op.MUL, (bias, SLOPE), F32)), F32)
    on = axes(total)
    assert on[total] == {Op.SCORE, Op.B, Op.H, Op.Q, Op.KV}
    assert on[bias] == {Op.B, Op.Q, Op.KV} and on[SLOPE] == {Op.H} and on[SCORE] == {Op.SCORE}
    assert axes(SLOT)[SLOT] == frozenset()


@given(cases("score"))
@settings(max_examples=100, deadline=None)
def test_values_vary_only_along_their_axes(case):
    """A node's value has more than one element along q or kv only where its axes say so."""
    graph = case.bound.graph
    values = program(graph.nodes)(case.env, case.bound.tensors, case.bound.literals)
    on = axes(graph.root)
    for n, value in zip(graph.nodes, values):
        rows, columns = ((1, 1) + tuple(value.shape))[-2:]
        assert rows == 1 or on[n] & {Op.Q, Op.SCORE}
        assert columns == 1 or on[n] & {Op.KV, Op.SCORE}
