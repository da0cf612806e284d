"""Who may import whom, read from the source, and what importing the package drags in, seen from a fresh interpreter."""
import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = "flexfa4"

# part -> (parts of flexfa4 it may import, packages from outside the standard library it may import)
MAY_IMPORT = {
    "errors": ("", ""),
    "threads": ("", ""),
    "ir": ("errors threads", ""),
    "tensors": ("errors ir", "torch"),
    "interpret": ("errors ir tensors", "torch numpy"),
    "facts": ("errors threads ir interpret", "torch numpy"),
    "trace": ("errors threads ir tensors", "torch numpy"),
    "sparsity": ("errors threads ir tensors interpret facts trace", "torch numpy matplotlib"),
    "schedule": ("errors threads", "numpy matplotlib"),
    "plan": ("errors threads ir facts schedule", ""),
    "emit": ("errors ir facts plan", "cutlass"),
    "kernels": ("errors threads ir facts plan schedule emit", "cutlass"),
    "engines": ("errors threads ir tensors interpret facts sparsity", "torch numpy"),
    "runtime": ("errors threads ir tensors interpret facts trace sparsity schedule plan engines", "torch numpy tvm_ffi"),
    "reference": ("", "torch"),
    "validate": ("errors ir sparsity", "torch"),
    "debug": ("errors trace reference", "torch"),
    "api": ("errors ir interpret facts trace sparsity schedule plan engines runtime reference validate debug", "torch numpy"),
    "interop": ("errors sparsity api", "torch numpy transformers"),
    "emulator": ("", "numpy torch cutlass matplotlib"),
    "mods": ("", "torch"),
    "demo": ("*", "torch numpy matplotlib tqdm transformers"),
    "cli": ("*", "torch numpy matplotlib"),
    "__init__": ("", ""),
}
# The one module of a part that may import more: (parts, packages)
MAY_IMPORT_TOO = {"flexfa4.runtime.compiler": ("kernels", "cutlass")}
LAZY_PARTS = {"cli", "demo", "emulator"}  # may import inside a function; elsewhere only the optional matplotlib is


def part_of(module: str) -> str:
    """"flexfa4.ir.graph" -> "ir"; "flexfa4" -> "__init__"."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def imports_of(source: str, module: str, is_package: bool) -> list[tuple[str, bool, int]]:
    """(absolute module name, inside a function, line) of each import that runs; `if TYPE_CHECKING:` blocks do not."""
    found = []
    package = module.split(".") if is_package else module.split(".")[:-1]

    def visit(node, lazy):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, lazy, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            deeper = node.level and node.module is None or target == OURS
            found.extend((f"{target}.{alias.name}" if deeper else target, lazy, node.lineno) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    visit(ast.parse(source), False)
    return found


def offences(source: str, module: str, is_package: bool = False) -> list[str]:
    """What a file does against the table, one line each."""
    part = part_of(module)
    more = MAY_IMPORT_TOO.get(module, ("", ""))
    inner, outer = ({*words.split(), *extra.split()} for words, extra in zip(MAY_IMPORT[part], more))
    bad = []
    for name, lazy, line in imports_of(source, module, is_package):
        top = name.split(".")[0]
        if top == "mods":
            bad.append(f"{module}:{line} imports 'mods', a second copy of flexfa4.mods")
        elif top == OURS:
            target = part_of(name)
            if target != part and "*" not in inner and target not in inner:
                bad.append(f"{module}:{line} ({part}) imports {name}")
        elif top not in sys.stdlib_module_names and top not in outer:
            bad.append(f"{module}:{line} ({part}) imports {top}")
        if lazy and part not in LAZY_PARTS and top in {*outer, OURS} - {"matplotlib"}:
            bad.append(f"{module}:{line} imports {name} inside a function")
    return bad


def modules():
    for folder, prefix in ((ROOT / OURS, OURS), (ROOT / "mods", f"{OURS}.mods")):
        for path in sorted(folder.rglob("*.py")):
            names = list(path.relative_to(folder).with_suffix("").parts)
            is_package = names[-1] == "__init__"
            yield path, ".".join([prefix, *(names[:-1] if is_package else names)]), is_package


def test_every_import_follows_the_table():
    bad = [line for path, module, is_package in modules() for line in offences(path.read_text(), module, is_package)]
    assert not bad, "\n".join(bad)


def test_every_part_has_a_row():
    assert {part_of(module) for _, module, _ in modules()} <= set(MAY_IMPORT)


def test_no_cycle_in_the_table():
    below = {part: set(inner.replace("*", "").split()) for part, (inner, _) in MAY_IMPORT.items()}
    for module, (inner, _) in MAY_IMPORT_TOO.items():
        below[part_of(module)] |= set(inner.split())
    while below:
        leaves = {part for part, targets in below.items() if not targets & below.keys()}
        assert leaves, f"these import each other: {sorted(below)}"
        below = {part: targets for part, targets in below.items() if part not in leaves}


@pytest.mark.parametrize("source, module, is_package, said", [
    ("import torch", "flexfa4.ir.graph", False, "flexfa4.ir.graph:1 (ir) imports torch"),
    ("from ..trace import bind", "flexfa4.facts.axes", False, "flexfa4.facts.axes:1 (facts) imports flexfa4.trace"),
    ("from .. import trace", "flexfa4.facts.axes", False, "flexfa4.facts.axes:1 (facts) imports flexfa4.trace"),
    ("from flexfa4 import emit", "flexfa4.api", False, "flexfa4.api:1 (api) imports flexfa4.emit"),
    ("from ..ir import Op", "flexfa4.emulator", True, "flexfa4.emulator:1 (emulator) imports flexfa4.ir"),
    ("import flexfa4.ir", "flexfa4.mods.alibi", False, "flexfa4.mods.alibi:1 (mods) imports flexfa4.ir"),
    ("from mods import causal_mask", "flexfa4.demo", True, "flexfa4.demo:1 imports 'mods', a second copy of flexfa4.mods"),
    ("def f():\n    import torch", "flexfa4.trace.mode", False, "flexfa4.trace.mode:2 imports torch inside a function"),
    ("try:\n    import cutlass\nexcept ImportError:\n    pass", "flexfa4.runtime.op", False,
     "flexfa4.runtime.op:2 (runtime) imports cutlass"),
])
def test_the_check_sees_broken_code(source, module, is_package, said):
    assert offences(source, module, is_package) == [said]


def test_the_check_lets_good_code_pass():
    source = ("from __future__ import annotations\nimport math\nfrom typing import TYPE_CHECKING\nimport torch\n"
              "from ..ir import Op\nfrom ..errors import FlexError\nfrom .axes import axes\n"
              "if TYPE_CHECKING:\n    from ..trace import Tracer\n")
    assert offences(source, "flexfa4.facts.affine") == []
    assert offences("def draw():\n    import matplotlib", "flexfa4.sparsity.draw") == []


LIGHT = ["flexfa4", "flexfa4.errors", "flexfa4.ir"]
CPU_PARTS = ["flexfa4.interpret", "flexfa4.facts", "flexfa4.trace", "flexfa4.sparsity", "flexfa4.schedule", "flexfa4.plan",
             "flexfa4.engines.tiled", "flexfa4.runtime", "flexfa4.api", "flexfa4.reference", "flexfa4.mods"]


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in sys.modules after a statement, in a fresh interpreter that sees the checkout."""
    script = "\n".join([f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})", statement,
                        "print(*{name.split('.')[0] for name in sys.modules})"])
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize("module", LIGHT)
def test_light_parts_load_neither_torch_nor_cutlass(module):
    loaded = loaded_by(f"sys.path.insert(0, {str(ROOT)!r}); import {module}")
    assert "flexfa4" in loaded and not loaded & {"torch", "cutlass", "numpy"}


def test_the_schedule_and_emulator_load_no_torch():
    loaded = loaded_by(f"sys.path.insert(0, {str(ROOT)!r}); import flexfa4.schedule")
    assert "numpy" in loaded and not loaded & {"torch", "cutlass"}


def test_cpu_parts_never_load_cutlass():
    loaded = loaded_by("import conftest\n" + "\n".join(f"import {module}" for module in CPU_PARTS))
    assert "torch" in loaded and not loaded & {"cutlass", "transformers", "matplotlib"}


def test_public_names_load_without_cutlass():
    loaded = loaded_by("import conftest, flexfa4\nassert all(getattr(flexfa4, name) for name in flexfa4.__all__)")
    assert "torch" in loaded and not loaded & {"cutlass", "transformers", "matplotlib"}


def test_modules_that_messages_name_need_no_import_of_their_own():
    path = f"sys.path.insert(0, {str(ROOT)!r}); import flexfa4\n"
    assert "torch" not in loaded_by(path + "flexfa4.errors.TraceError")
    assert "torch" in loaded_by(path + "flexfa4.reference.attention")


def test_the_fresh_interpreter_would_show_cutlass():
    assert "json" in loaded_by("import json") and "json" not in loaded_by("pass")
