"""`flexfa4 inspect`: what it prints of a mod, and the wording when the target is no mod."""

import subprocess
import sys
from pathlib import Path

import pytest

from flexfa4.cli.main import main

ROOT = Path(__file__).resolve().parents[2]

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

class Bucketed(torch.nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(heads, 4))

    def forward(self, score, b, h, q, kv):
        return score + self.table[h, torch.clamp(q - kv, 0, 3)]

class Banded(torch.nn.Module):
    def forward(self, b, h, q, kv):
        return q - kv < 64 * (h + 1)

def any_number(*positions):
    return positions[2] >= positions[3]

number = 7

LABELS = torch.repeat_interleave(torch.arange(3), torch.tensor([300, 200, 500]))

def packed(b, h, q, kv):
    return (LABELS[q] == LABELS[kv]) & (kv <= q)

def from_table(score, b, h, q, kv):
    return score + LABELS[q]
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
    assert "sm100, 148 SMs, one head: " in text and "unit: the time of one full tile" in text
    # a work tile of two partial tiles: 2.0 + 2 * 1.2; split pieces would each take 2.0 + 0.5 + 1.0 and more
    assert "the last ends at 4.4 (in natural order at 4.4, no schedule is under 3.5)" in text


@pytest.mark.parametrize("name, kinds, lengths", [
    ("causal", ["mask"], "2,048 queries"), ("alibi", ["score", "mask"], "2,048 queries"),
    ("causal_bottom_right", ["mask"], "512 queries")])
def test_a_name_of_the_gallery(capsys, name, kinds, lengths):
    assert main(["inspect", name]) == 0
    text = capsys.readouterr().out
    assert [word for word in ("score", "mask", "out") if f" {word}_mod, " in text] == kinds and lengths in text


@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--sass"], ["emulate"]])
def test_no_mod_lists_what_is_one(capsys, command):
    for name in ("nosuch", "mods/window.py", "window.py:"):
        assert main([command[0], name, *command[1:]]) == 1
        error = capsys.readouterr().err
        assert "FILE.py:NAME" in error and (".py" in name or "softcap" in error), (name, error)
    assert main([command[0], "causal", "--kind", "score", *command[1:]]) == 1
    assert "causal of the gallery has no score_mod" in capsys.readouterr().err


def test_documents(inspect):
    _, text, _ = inspect("packed", "--q-len", "1000")
    # 3 + 2 + 4 query tiles of documents of 300, 200 and 500; 1 + 2 + 3, 1 + 2 and 1 + 2 + 3 + 4 tiles, a diagonal one each
    assert "9 of 128 rows at most, where documents do; 10 full tiles of 128 keys, 0 partial, 9 partial in which labels" in text
    _, text, _ = inspect("causal", "--q-len", "1000")
    assert "labels" not in text


def test_query_tiles_that_skip_apart(inspect):
    # Of 8 work tiles of 256 queries, number j sees 2j + 2 tiles of keys; its upper half one less. The diagonal is partial.
    text = inspect("causal", "--q-len", "2048")[1]
    assert "136 tiles of 128 x 128, 16 of them partial; 5.6% less than the 144 of work tiles of 256 queries" in text
    # 1 + 2 + 3, 1 + 2 and 1 + 2 + 3 + 4 tiles of documents of 300, 200 and 500; by pairs 2 * (2 + 3), 2 * 2 and 2 * (2 + 4)
    assert "19 tiles of 128 x 128, 9 of them partial; 26.9% less than the 26 of" in inspect("packed", "--q-len", "1000")[1]
    assert "skip key tiles apart" not in inspect("causal", "--q-len", "128")[1]


def test_inputs_of_the_kernel(inspect):
    text = inspect("causal")[1]
    assert "takes float16 and bfloat16 up to head dim 256; float32 and float64, and wider ones, go to the tiled engine" in text
    assert "the other strides are multiples of 16 bytes; any other view is copied once a call" in text


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
    assert name == "distance" or "in tiles of 2 x 2" in text
    assert (image.imread(path)[..., :3].min(-1) < 0.7).mean() > 0.02


@pytest.mark.parametrize(
    "name, message",
    [
        ("window", "window takes (width): a mask_mod takes (b, h, q, kv)"),
        ("window", "If it is a factory that returns a mod, write the call: FILE.py:window(width=...)"),
        ("four", "four returns a function: it is a factory"),
        ("missing", "name 'missing' is not defined"),
        ("missing", "Banded, Bucketed, any_number, branch, broken, causal, distance, four, from_table, gate, packed, per_row,"),
        ("Bucketed", "Bucketed takes (heads)"),
        ("any_number", "any_number takes (*positions)"),
        ("any_number", "say which it is: --kind mask, score or out"),
        ("broken()", "broken() fails: ZeroDivisionError: division by zero"),
        ("number", "number is int: expected a function"),
        ("", "expected FILE.py:NAME"),
        ("branch", "mine.py:24: `if` on a traced value"),
    ],
)
def test_errors(inspect, name, message):
    status, text, error = inspect(name)
    assert status == 1 and text == "" and message in error, error


@pytest.mark.parametrize("name, options", [("packed", ()), ("from_table", ("--out", "unused.png"))])
def test_a_table_that_is_shorter_than_the_lengths(inspect, name, options):
    status, text, error = inspect(name, "--q-len", "1200", *options)
    assert status == 1 and text == "" and "indices from 1000 to" in error
    assert "This is with 1,200 queries and 1,200 keys: --q-len and --kv-len give other lengths" in error
    assert inspect(name, "--q-len", "1000")[0] == 0


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
    bad.write_text("import sys\nif __name__ != '__main__':\n    sys.exit('not here')\n")
    assert main(["inspect", f"{bad}:f"]) == 1
    assert "bad.py fails when it is run: SystemExit: not here" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["inspect"])
    assert stopped.value.code == 2


def test_out_has_no_picture(inspect, tmp_path):
    status, _, error = inspect("gate", "--out", str(tmp_path / "x.png"))
    assert status == 1 and "an out_mod has no picture" in error and not (tmp_path / "x.png").exists()


def test_modules(inspect):
    status, text, error = inspect("Bucketed(4)")
    assert status == 0 and "Bucketed(4): a score_mod" in text and "wants a gradient" in text, error
    status, text, _ = inspect("Banded()", "--q-len", "256")
    assert status == 0 and "Tiles of head 0 alone\n" in text and "Schedule of head 0 alone\n" in text
    assert "alone" not in inspect("causal")[1]
    assert inspect("any_number", "--kind", "mask")[0] == 0


@pytest.mark.parametrize("path, said", [("absent/x.png", "No such file or directory"), ("", "is a folder"),
                                        ("x.txt", "Format 'txt' is not supported")])
@pytest.mark.parametrize("name", ["causal", "distance"])
def test_a_picture_that_cannot_be_written_is_said_before_the_work(inspect, tmp_path, name, path, said, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("flexfa4.cli.inspect._of_one", lambda *_: pytest.fail("the mod was looked at"))
    status, _, error = inspect(name, "--q-len", "64", "--out", str(tmp_path / path))
    assert status == 1 and said in error and error.startswith(f"flexfa4 inspect: --out {tmp_path}") and error.count("\n") == 1


def test_the_picture_is_called_as_the_target(monkeypatch, inspect, tmp_path):
    pytest.importorskip("matplotlib")
    titles = []
    monkeypatch.setattr("flexfa4.cli.inspect._save", lambda figure, path: titles.append(figure.axes[0].get_title()))
    for name in ("window(30)", "Banded()", "distance"):
        inspect(name, "--q-len", "64", "--out", str(tmp_path / "x.png"))
    assert titles == ["window(30)", "Banded(), head 0", "distance on a score of 0, head 0"]


def test_a_reader_that_stops_early_is_no_error(file):
    writer = subprocess.Popen([sys.executable, "-m", "flexfa4.cli.main", "inspect", f"{file}:causal"], cwd=ROOT,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    writer.stdout.close()
    assert writer.stderr.read() == b"" and writer.wait() == 0
    writer.stderr.close()
