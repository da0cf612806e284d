"""Which ops are approximated, and how far they can be off, as data. Standard library only.

`precise=True` turns every approximation off. The bounds of the hardware functions are those of the PTX ISA (9.x, section
"Floating Point Instructions"); subnormal inputs and results are flushed to zero by the `.ftz` forms. A bound holds for one op:
errors of its inputs come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexfa4.ir import Op


@dataclass(frozen=True)
class Approximation:
    """`form`: the expression in hardware functions. The result r for the exact value x satisfies
    |r - x| <= absolute + relative * |x| inside `where` (an empty string: for every normal input)."""

    form: str
    relative: float
    absolute: float = 0.0
    where: str = ""


APPROXIMATIONS: dict[Op, Approximation] = {
    Op.DIV: Approximation(
        "div.approx, or a * rcp.approx(b) with the reciprocal hoisted", 2**-22, where="2**-126 <= |b| <= 2**126"
    ),
    Op.RECIPROCAL: Approximation("rcp.approx", 2**-23),
    Op.EXP2: Approximation("ex2.approx", 2**-22),
    Op.EXP: Approximation(
        "ex2.approx(x * log2 e)", 2**-16, where="|x| <= 88: the rounding of the product costs |x| * 2**-24 more"
    ),
    Op.LOG2: Approximation("lg2.approx", 2**-22, 2**-22),
    Op.LOG: Approximation("lg2.approx(x) * ln 2", 2**-21, 2**-22),
    Op.LOG10: Approximation("lg2.approx(x) * log10 2", 2**-21, 2**-23),
    Op.SQRT: Approximation("sqrt.approx", 2**-22),
    Op.RSQRT: Approximation("rsqrt.approx", 2**-22),
    Op.TANH: Approximation("tanh.approx", 2**-11),
    Op.SIGMOID: Approximation("rcp.approx(1 + ex2.approx(-x * log2 e))", 2**-16, where="|x| <= 87"),
    Op.ERF: Approximation("Abramowitz and Stegun 7.1.26 with rcp.approx and ex2.approx", 0.0, 5 * 2**-22),
    Op.SIN: Approximation("sin.approx after reduction by 2 pi in two pieces", 0.0, 2**-19, where="|x| <= 2**15"),
    Op.COS: Approximation("cos.approx after reduction by 2 pi in two pieces", 0.0, 2**-19, where="|x| <= 2**15"),
    Op.TAN: Approximation("sin / cos, both approximate", 2**-16, 2**-16, where="|x| <= 2**15 and |cos x| >= 2**-3"),
    Op.POW: Approximation(
        "ex2.approx(y * lg2.approx(|x|)) with the sign of an odd power",
        2**-15,
        where="|y * log2 x| <= 126 and |log2 x| >= 1/2, or y a small constant",
    ),
}
