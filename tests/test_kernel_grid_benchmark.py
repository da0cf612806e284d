"""What benchmarks/kernel_grid.py keeps, prints and returns, whatever runs its calls."""
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import kernel_grid  # noqa: E402

ROW = dict(half="bfloat16", largest=1.0, largest_lse=1.0, findings=[])
BOUND = kernel_grid.OUT_BOUND["bfloat16"]
PRINTS = "import json, sys; print('call: the last one', file=sys.stderr); {}"


def row(case: str, out: float = 0.5 * BOUND, **more) -> dict:
    return {**ROW, "case": case, "out": out, "lse": 0.0, **more}


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """Makes a grid of scripts, one a slice, and gives what runs it."""
    def make(*slices: str, part: str = "graphs"):
        for i, code in enumerate(slices):
            (tmp_path / f"{part}{i}.py").write_text(PRINTS.format(code))
        parts = {name: [] for name in kernel_grid.PARTS} | {part: [(f"{part}{i}.py",) for i in range(len(slices))]}
        monkeypatch.setattr(kernel_grid, "PARTS", parts)

    def run(*words: str) -> tuple[int, dict]:
        code = kernel_grid.main(["sm90", "--gpu", "--out", str(tmp_path), *words])
        kept = tmp_path / "sm90_grid_gpu.json"
        return code, json.loads(kept.read_text()) if kept.exists() else {}

    monkeypatch.setattr(kernel_grid, "KERNELS", tmp_path)
    return make, run


def printing(*rows: dict, before: str = "") -> str:
    return f"{before}print(json.dumps(json.loads({json.dumps(rows)!r})))"


def test_a_slice_that_fails_is_told_and_the_others_are_kept(grid, capfd):
    make, run = grid
    make(printing(row("a")), "raise SystemExit('no such memory')", printing(row("c")))
    code, kept = run("graphs")
    assert code == 1 and list(kept["graphs"]) == ["a", "c"]
    said = capfd.readouterr().err
    assert "graphs:1: exit code 1\ncall: the last one" in said and "no such memory" in said
    make(printing(row("a")), printing(row("b"), row("b")), printing(row("c")))
    code, kept = run("graphs:1")
    assert code == 0 and kept["graphs"]["b"] == [2, 0, 0.5, 0.0] and set(kept["graphs"]) == {"a", "b", "c"}


def test_slices_are_in_order_whichever_is_done_first(grid):
    make, run = grid
    make(printing(row("a"), before="import time; time.sleep(1); "), printing(row("b")))
    assert list(run("graphs", "--at-once", "2")[1]["graphs"]) == ["a", "b"]


def test_a_launch_that_hangs_ends(grid, capfd, monkeypatch):
    monkeypatch.setattr(kernel_grid, "GPU_SECONDS", 0.5)
    make, run = grid
    make("import time; time.sleep(30)")
    assert run("graphs")[0] == 1
    assert "longer than 0.5 s" in capfd.readouterr().err


@pytest.mark.parametrize("bad", [dict(findings=[["repeated", "out"]]), dict(out=2.1 * BOUND), dict(out=float("inf")),
                                 dict(lse=float("inf"))])
def test_findings_and_errors_fail(grid, capfd, bad):
    make, run = grid
    # JSON of Python has Infinity.
    make(printing(row("fine"), {**row("wrong"), **bad}))
    assert run("graphs")[0] == 1
    assert "graphs, wrong" in capfd.readouterr().out


def test_what_the_kernel_does_not_take_is_no_failure(grid):
    make, run = grid
    make(printing(row("a", 1.5 * BOUND), dict(case="b", not_covered="why")))
    assert run("graphs") == (0, {"graphs": {"b": ["why"], "a": [1, 0, 1.5, 0.0]}})


def test_the_emulator_is_another_file_and_word(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(kernel_grid, "rows_of", lambda kernel, *words: asked.append(kernel) or [row("a")])
    for more, name in ((["--gpu"], "sm90_grid_gpu"), ([], "sm90_grid")):
        assert kernel_grid.main(["sm90", "cases", "--out", str(tmp_path), *more]) == 0
        assert (tmp_path / f"{name}.json").exists() and (tmp_path / f"{name}.md").exists()
    assert asked == ["sm90-gpu", "sm90"]
