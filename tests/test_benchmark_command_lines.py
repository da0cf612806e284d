"""Benchmarks say what they do, and what they do not take, before they measure anything: a word that one ignored would have it
overwrite its results. All of them in one process, which also shows that each can be imported on a machine without a GPU."""
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# With a main of their own, less one whose words are names that the user chooses.
SCRIPTS = sorted(p.name for p in (ROOT / "benchmarks").glob("*.py") if 'if __name__ == "__main__"' in p.read_text()
                 or p.name == "emulator_speed.py")
SCRIPTS.remove("ncu_table.py")
NEED_FA4 = {"emulator_fa4.py", "emulator_sensitivity.py", "emulator_speed.py", "emulator_vs_h200.py"}

RUN = """
import contextlib, io, json, runpy, sys
found = {}
path, modules = list(sys.path), set(sys.modules)
for script in sys.argv[1:]:
    for word in ("--help", "--nosuch"):
        said = io.StringIO()
        sys.argv = [f"benchmarks/{script}", word]
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                runpy.run_path(sys.argv[0], run_name="__main__")
            status = "ran"
        except SystemExit as stop:
            status = stop.code
        except Exception as error:
            status = repr(error)
        found[f"{script} {word}"] = status, said.getvalue()
        sys.path[:] = path
print("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def answers():
    scripts = [s for s in SCRIPTS if s not in NEED_FA4 or importlib.util.find_spec("flash_attn")]
    done = subprocess.run([sys.executable, "-c", RUN, *scripts], cwd=ROOT, capture_output=True, text=True, timeout=200,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])})
    assert "FOUND" in done.stdout, done.stderr[-2000:]
    return json.loads(done.stdout.rpartition("FOUND")[2])


def test_help_is_given_and_nothing_runs(answers):
    wrong = {name: status for name, (status, said) in answers.items() if name.endswith("--help") and (status != 0 or not said)}
    assert not wrong and len(answers) > 40


def test_what_a_benchmark_does_not_take_is_refused(answers):
    wrong = {name: said[-300:] for name, (status, said) in answers.items()
             if name.endswith("--nosuch") and not (status == 2 and len(said) > 40)}
    assert not wrong
