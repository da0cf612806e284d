"""Every table that gives ops a meaning has one row for every Op, and docs/ir.md shows the tables as they are."""
import importlib
from pathlib import Path

import pytest

from flexfa4.cli.op_table import comments, derivative_text, render
from flexfa4.facts.derivative import DERIVATIVE, NO_DERIVATIVE, STRUCTURAL
from flexfa4.ir import Op
from flexfa4.ir import ops as op_sets

ROOT = Path(__file__).resolve().parents[2]
TABLES = {
    "type": ("flexfa4.ir.verify", "RULES"),
    "evaluate": ("flexfa4.interpret.meaning", "EVALUATE"),
    "interval": ("flexfa4.facts.interval_rules", "INTERVAL"),
    "simplify": ("flexfa4.facts.simplify", "RULES"),
}


def _table(module: str, name: str) -> dict:
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", TABLES)
def test_one_row_for_every_op(name):
    table = _table(*TABLES[name])
    assert set(table) == set(Op)
    assert all(row is not None for row in table.values())


@pytest.mark.compile
def test_one_row_for_every_op_in_kernels():
    assert set(_table("flexfa4.emit.table", "EMIT")) == set(Op)


def test_every_op_has_a_derivative_or_is_listed_without_one():
    assert set(DERIVATIVE) | NO_DERIVATIVE | STRUCTURAL == set(Op)
    assert not set(DERIVATIVE) & NO_DERIVATIVE and not set(DERIVATIVE) & STRUCTURAL and not NO_DERIVATIVE & STRUCTURAL
    zero = {op for op in DERIVATIVE if set(derivative_text(op).split("; ")) == {"0"}}
    assert zero == {Op.FLOORDIV, Op.TRUNCDIV, Op.SIGN, Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC}


def test_the_named_sets_cover_the_ops_once():
    sets = (op_sets.LEAVES, op_sets.COMPARISONS, op_sets.BITWISE, op_sets.SHIFTS, op_sets.ARITHMETIC, op_sets.FLOAT_BINARY,
            op_sets.NUMBER_UNARY, op_sets.FLOAT_UNARY, op_sets.FLOAT_TESTS, {Op.LOAD, Op.NOT, Op.WHERE, Op.CAST})
    assert frozenset().union(*sets) == frozenset(Op) and sum(map(len, sets)) == len(Op)


def test_every_op_is_found_in_its_source():
    assert set(comments()) == set(Op)


def test_the_document_is_current():
    """Rewrite it with: python -m flexfa4.cli.op_table > docs/ir.md"""
    assert (ROOT / "docs" / "ir.md").read_text() == render()
