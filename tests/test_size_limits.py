"""Files, functions, argument lists and lines stay small enough to read."""
import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("flexfa4", "mods", "tests", "benchmarks", ".ci")
SUFFIXES = {".py", ".cpp", ".h", ".c"}
FILE_LINES, FUNCTION_LINES, PARAMETERS, WIDTH = 600, 120, 10, 130
# The public call has torch's parameters and ours; no other function may be so wide.
WIDE = {"flex_attention"}


def files():
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]


def too_big(source: str, name: str, python: bool) -> list[str]:
    """What a file does against the limits, one line each."""
    lines = source.splitlines()
    bad = [f"{name}: {len(lines)} lines"] if len(lines) > FILE_LINES else []
    bad += [f"{name}:{i}: {len(line)} columns" for i, line in enumerate(lines, 1) if len(line) > WIDTH]
    if not python:
        return bad
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if (length := node.end_lineno - node.lineno + 1) > FUNCTION_LINES:
                bad.append(f"{name}:{node.lineno}: {node.name} has {length} lines")
            arguments = node.args
            count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
            if count > PARAMETERS and node.name not in WIDE:
                bad.append(f"{name}:{node.lineno}: {node.name} has {count} parameters")
    return bad


def test_everything_is_small_enough():
    bad = [line for path in files() for line in too_big(path.read_text(), str(path.relative_to(ROOT)), path.suffix == ".py")]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("source, said", [
    ("x = 1\n" * 601, "f: 601 lines"),
    ("def g():\n" + "    x = 1\n" * 120, "f:1: g has 121 lines"),
    (f"def g({', '.join('abcdefghijk')}):\n    pass\n", "f:1: g has 11 parameters"),
    (f"x = '{'a' * 126}'\n", "f:1: 132 columns"),
])
def test_the_limits_bite(source, said):
    assert said in too_big(source, "f", True)


def test_files_are_found():
    assert len(files()) > 50 and ROOT / "mods" / "alibi.py" in files()
