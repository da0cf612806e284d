"""`flexfa4 inspect`: what it prints of a mod, and the wording when the target is no mod."""

import pytest

from flexfa4.cli.main import main

MODS = """
import torch

TABLE = torch.linspace(0, 1, 8)

def window(width):
    def mask_mod(b, h, q, kv):
        return (kv <= q) & (q - kv < width)
    return mask_mod

def causal(b, h, q, kv):
    return kv <= q

def distance(score, b, h, q, kv):
    return score - TABLE[h] * (q - kv)

def per_row(score, b, h, q, kv):
    return score + q * 0.5

def gate(out, lse, b, h, q):
    return out * torch.sigmoid(lse)

def branch(b, h, q, kv):
    if q > kv:
        return q > 3
    return q > 4

def four(a, b, c, d):
    return lambda b, h, q, kv: q >= kv

def broken():
    return 1 / 0

number = 7
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("mods") / "mine.py"
    path.write_text(MODS)
    return path


@pytest.fixture
def inspect(file, capsys):
    def call(name, *options):
        status = main(["inspect", f"{file}:{name}", *options])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def test_mask(inspect, file):
    status, text, _ = inspect("window(100)", "--q-len", "1000")
    assert status == 0
    assert f"window(100): a mask_mod, {file}:7" in text
    for title in ("Graph", "Facts", "Computed", "Tiles", "Schedule"):
        assert f"\n\n{title}\n" in text
    assert "depends on query position and key position" in text
    assert "slot[0] = 100 (a new value is no new kernel)" in text
    assert "constant along diagonals" in text
    # 8 tiles of 128: the diagonal, and all of the one below it but for distances over 100
    assert "0 full (0.0%), 15 partial (23.4%), 49 empty (76.6%)" in text
    assert "sm100, 148 SMs, one head: " in text and "no schedule is under" in text


def test_text_map(inspect):
    _, text, _ = inspect("causal", "--q-len", "64", "--kv-len", "96")
    rows = [line.strip() for line in text.splitlines() if set(line.strip()) <= set("#+.") and line.strip()]
    assert rows == ["++....", "##++.."]


def test_score(inspect):
    status, text, _ = inspect("distance")
    assert status == 0 and "a score_mod" in text
    assert "depends on head, query position, key position and score" in text
    assert "reads TABLE: float32[8]" in text
    assert "* (query - key): constant along diagonals" in text
    assert "Tiles" not in text
    assert "cancels in the softmax" not in text
    assert "the added term is the same for every key of a row: it cancels in the softmax" in inspect("per_row")[1]


def test_out_and_kind(inspect):
    status, text, _ = inspect("gate")
    assert status == 0 and "an out_mod" in text and "depends on output and LSE" in text
    status, text, error = inspect("causal", "--kind", "score")
    assert status == 1 and "flexfa4 inspect:" in error


@pytest.mark.parametrize("name", ["window(30)", "distance"])
def test_picture(inspect, tmp_path, name):
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "picture.png"
    status, text, _ = inspect(name, "--q-len", "300", "--out", str(path))
    assert status == 0 and f"Drawn: {path}" in text
    assert (image.imread(path)[..., :3].min(-1) < 0.7).mean() > 0.02


@pytest.mark.parametrize(
    "name, message",
    [
        ("window", "window takes (width): a mask_mod takes (b, h, q, kv)"),
        ("window", "If it is a factory that returns a mod, write the call: FILE.py:window(width=...)"),
        ("four", "four returns a function: it is a factory"),
        ("missing", "name 'missing' is not defined"),
        ("missing", "it defines branch, broken, causal, distance, four, gate, per_row, window"),
        ("broken()", "broken() fails: ZeroDivisionError: division by zero"),
        ("number", "number is int: expected a function"),
        ("", "expected FILE.py:NAME"),
        ("branch", "mine.py:24: `if` on a traced value"),
    ],
)
def test_errors(inspect, name, message):
    status, text, error = inspect(name)
    assert status == 1 and text == "" and message in error, error


def test_file_errors(tmp_path, capsys):
    assert main(["inspect", f"{tmp_path}/absent.py:f"]) == 1
    assert "absent.py: no such file" in capsys.readouterr().err
    bad = tmp_path / "bad.py"
    bad.write_text("import a_module_that_is_not_there\n")
    assert main(["inspect", f"{bad}:f"]) == 1
    assert (
        "bad.py fails when it is run: ModuleNotFoundError: No module named 'a_module_that_is_not_there'"
        in capsys.readouterr().err
    )
    with pytest.raises(SystemExit) as stopped:
        main(["inspect"])
    assert stopped.value.code == 2


def test_out_has_no_picture(inspect, tmp_path):
    status, _, error = inspect("gate", "--out", str(tmp_path / "x.png"))
    assert status == 1 and "an out_mod has no picture" in error and not (tmp_path / "x.png").exists()
