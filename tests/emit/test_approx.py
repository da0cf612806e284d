"""The approximations: stated bounds against the formulas in float32, and `precise=True`, which turns every one off."""
from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flexfa4.emit.approx import APPROXIMATIONS
from flexfa4.interpret import program
from flexfa4.ir import DType, Op, node

F = np.float32
X = np.concatenate([s * np.exp2(np.linspace(-20, 20, 4001)) for s in (1, -1)]).astype(F)


def hardware(exact, relative: float):
    """A hardware function at its worst: off by its own relative bound, to either side."""
    return [lambda x, s=s: (exact(x.astype(np.float64)) * (1 + s * relative)).astype(F) for s in (-1, 0, 1)]


EX2, LG2, RCP = hardware(np.exp2, 2**-22), hardware(np.log2, 2**-22), hardware(np.reciprocal, 2**-23)


def erf(x, ex2, rcp):
    size = np.abs(x)
    t = rcp(F(0.3275911) * size + F(1))
    polynomial = F(1.061405429)
    for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        polynomial = polynomial * t + F(c)
    return np.copysign(F(1) - polynomial * t * ex2((-size * size) * F(math.log2(math.e))), x)


# op -> (values it is asked at, the formula for one choice of hardware errors)
FORMULAS = {
    Op.EXP: (X[np.abs(X) <= 88], lambda x, ex2, lg2, rcp: ex2(x * F(math.log2(math.e)))),
    Op.LOG: (np.abs(X), lambda x, ex2, lg2, rcp: lg2(x) * F(math.log(2))),
    Op.LOG10: (np.abs(X), lambda x, ex2, lg2, rcp: lg2(x) * F(math.log10(2))),
    Op.SIGMOID: (X[np.abs(X) <= 87], lambda x, ex2, lg2, rcp: rcp(F(1) + ex2(-x * F(math.log2(math.e))))),
    Op.ERF: (X, lambda x, ex2, lg2, rcp: erf(x, ex2, rcp)),
}


@pytest.mark.parametrize("op", FORMULAS, ids=repr)
@pytest.mark.parametrize("side", range(3))
def test_the_bound_holds_where_the_hardware_is_as_wrong_as_it_may_be(op, side):
    x, formula = FORMULAS[op]
    with np.errstate(all="ignore"):
        got = formula(x, EX2[side], LG2[side], RCP[side]).astype(np.float64)
    leaf = node(Op.SCORE, (), DType.F64)
    want = program((node(op, (leaf,), DType.F64),))({Op.SCORE: torch.from_numpy(x.astype(np.float64))})[0].numpy()
    bound = APPROXIMATIONS[op]
    error = np.abs(got - want) - (bound.absolute + bound.relative * np.abs(want))
    # ".ftz": results below the normal range are 0.
    assert np.all((error <= 0) | (np.abs(want) < 2.0**-126)), x[error > 0][:5]


def test_bounds_are_small_and_conditions_are_stated():
    for op, a in APPROXIMATIONS.items():
        assert 0 < a.relative + a.absolute <= 2**-11 and a.form, op
    assert APPROXIMATIONS[Op.TANH].relative == max(a.relative for a in APPROXIMATIONS.values())


@pytest.mark.compile
@pytest.mark.parametrize("op", sorted(APPROXIMATIONS, key=lambda op: op.value), ids=repr)
def test_precise_is_exact_to_rounding(op):
    pytest.importorskip("cutlass")
    import elementwise_emulated as emulated
    from test_ops import SAMPLES, SMALL, agrees, bind, environment, inputs

    from flexfa4.emit.elementwise import compile
    from flexfa4.interpret import evaluate
    graph = SAMPLES[f"{op!r} f32"]
    quick, exact = (compile(graph, "sm_100a", precise=p, fragment=SMALL) for p in (False, True))
    assert quick.ptx != exact.ptx
    x, bound = inputs(op), bind(graph)
    env = {leaf: v.double() if v.is_floating_point() else v for leaf, v in environment(graph, x).items()}
    want = evaluate(bound, env).expand(x.shape).double()
    got = emulated.run(exact, graph, x, x[..., 0].contiguous(), bound.tensors, bound.literals, fragment=SMALL)
    # libdevice's functions are good to a few units in the last place.
    good = agrees(got, want, 2.0**-21, 1e-37)
    assert good.all(), f"x {x[~good][:4]} got {got[~good][:4]} want {want[~good][:4]}"
