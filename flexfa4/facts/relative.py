"""Masks that look only at the distance q - kv: tiles at one distance from the diagonal then hide the same lanes."""
from __future__ import annotations

from functools import lru_cache

from flexfa4.ir import DType, Graph, Node, Op, topological

from .affine import Affine, affine_forms

_COMPARISONS = frozenset({Op.EQ, Op.NE, Op.LT, Op.LE})
_POSITIONS = frozenset({Op.Q, Op.KV})
# Beyond it, position + number could leave int64, and a comparison of wrapped sums is not one of distances.
_LARGE = 1 << 40


@lru_cache(maxsize=256)
def is_relative(graph: Graph) -> bool:
    """True if the graph's value at (q + n, kv + n) is its value at (q, kv) for every n, given the same b and h, and literals for
    which `small_literals` holds. Look-ups are taken as different at each position, unless they have no index."""
    if any(n.op is Op.LOAD and n.args for n in topological(graph.root)):
        return False
    forms = affine_forms(graph.root)
    relative: dict[Node, bool] = {}
    for n in topological(graph.root):
        relative[n] = n.op not in _POSITIONS and (
            all(relative[a] for a in n.args) or _is_distance(forms[n]) or n.op in _COMPARISONS and _of_distance(n, forms))
    return relative[graph.root]


def small_literals(literals) -> bool:
    """True if no literal is so large that a sum of a position and two of them wraps around."""
    return all(abs(x) < _LARGE for x in literals)     # False for NaN


def _is_distance(form: Affine | None) -> bool:
    return form is not None and form.scale is None and form.is_toeplitz and _sums_only(form)


def _of_distance(n: Node, forms: dict[Node, Affine | None]) -> bool:
    """A comparison of two integer forms whose difference is one of q - kv."""
    a, b = (forms[arg] for arg in n.args)
    if a is None or b is None or n.args[0].dtype is not DType.I64 or not (_sums_only(a) and _sums_only(b)):
        return False
    return a.q_coef - b.q_coef == b.kv_coef - a.kv_coef


def _sums_only(form: Affine) -> bool:
    """True for +-q, +-kv, or both, plus a plain number: what `small_literals` is enough for."""
    coefs = (form.q_coef, form.kv_coef)
    plain = _is_sum_of_numbers(form.rest)
    return form.scale is None and all(isinstance(c, int) and abs(c) <= 1 for c in coefs) and plain


def _is_sum_of_numbers(n: Node) -> bool:
    """At most a few numbers, the batch or the head added, subtracted or negated."""
    nodes = list(topological(n))
    return len(nodes) <= 8 and all(
        x.op in (Op.B, Op.H, Op.SLOT, Op.ADD, Op.SUB, Op.NEG) or x.op is Op.CONST and abs(x.attr) < _LARGE for x in nodes)
