"""Whether a graph needs the digits of float64, which kernels hold in float32. Standard library only."""
from __future__ import annotations

from functools import lru_cache

from flexfa4.ir import DType, Graph, Node, Op, const, topological
from flexfa4.ir.ops import COMPARISONS, FLOAT_LEAVES

from .axes import axes

# What makes much of a small change of its operands: decisions, remainders, and phases of what may be large. Differences do where
# what is subtracted is nearly the same.
_SHARP = COMPARISONS | {Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.SIGN, Op.FLOORDIV, Op.TRUNCDIV, Op.MOD, Op.FMOD, Op.ISINF,
                        Op.SIN, Op.COS, Op.TAN}


@lru_cache(maxsize=512)
def needs_doubles(graph: Graph) -> bool:
    """Whether a node may come out quite another in float32: a comparison, rounding, remainder or difference of float64 values, or
    their cast to an integer, such as of time stamps. Of what depends on a score, which is float32 itself, no more digits are
    asked."""
    if not any(n.dtype is DType.F64 for n in graph.nodes):
        return False
    found = axes(graph.root)
    for n in graph.nodes:
        operands = [a for a in n.args if a.dtype is DType.F64]
        sharp = n.op in _SHARP or n.op is Op.CAST and not n.dtype.is_float or _subtracts(n)
        if sharp and not found[n] & FLOAT_LEAVES and any(map(_has_own_digits, operands)) and not _asks_for_sign(n):
            return True
    return False


def _asks_for_sign(n: Node) -> bool:
    """A comparison of what was looked up with 0, which float32 answers alike."""
    return n.op in COMPARISONS and sorted(a.op.name for a in n.args) == ["CONST", "LOAD"] and const(0, DType.F64) in n.args


def _subtracts(n: Node) -> bool:
    return n.op is Op.SUB or n.op is Op.ADD and any(a.op is Op.NEG for a in n.args)


def _has_own_digits(operand: Node) -> bool:
    """False for numbers, and for float32 or less as float64, whose differences and comparisons float32 has too."""
    if operand.op in (Op.CONST, Op.SLOT):
        return False
    if operand.op is Op.CAST:
        return not (operand.args[0].dtype.is_float and operand.args[0].dtype is not DType.F64)
    return any(n.dtype is DType.F64 for n in topological(operand))
