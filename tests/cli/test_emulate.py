"""`flexfa4 emulate`: the kernel of a mod on the CPU, in a process of its own: the compiler reads its environment once."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flexfa4.cli import emulate, info
from flexfa4.cli.main import main
from flexfa4.cli.target import TargetError, writing

ROOT = Path(__file__).resolve().parents[2]
RUN = "import sys; sys.path[:0] = {paths!r}; import conftest; from flexfa4.cli.main import main; sys.exit(main(sys.argv[1:]))"
MODS = """
import torch

TABLE = torch.ones(10)

def near(score, b, h, q, kv):
    return torch.where(kv < 10, score + TABLE[kv], score)

def past(score, b, h, q, kv):
    return score + TABLE[kv]

def window(width):
    return lambda b, h, q, kv: (kv <= q) & (q - kv < width)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MODS)
    return path


def emulated(*words) -> subprocess.CompletedProcess:
    code = RUN.format(paths=[str(ROOT), str(ROOT / "tests")])
    return subprocess.run([sys.executable, "-c", code, "emulate", *words], capture_output=True, text=True, timeout=500)


def test_a_name_that_the_gallery_lacks_lists_it(capsys):
    assert main(["emulate", "nosuch"]) == 1
    assert "softcap" in capsys.readouterr().err


@pytest.mark.parametrize("name", [info.CUTLASS, info.TVM_FFI])
def test_what_compiling_lacks_is_said(name, monkeypatch, capsys):
    monkeypatch.setattr(info, "_installed", lambda distribution: None if distribution == name else "1.0")
    assert main(["emulate", "causal"]) == 1
    said = capsys.readouterr().err
    assert name in said and "pip install 'flexfa4[cuda]'" in said


def test_what_a_file_does_not_have_is_said(file, capsys):
    for name, said in (("window", "write the call: FILE.py:window(width=...)"), ("nosuch", "it defines near, past, window")):
        assert main(["emulate", f"{file}:{name}"]) == 1
        assert said in capsys.readouterr().err
    assert main(["emulate", str(file)]) == 1
    assert f"{file}: expected FILE.py:NAME; it defines near, past, window" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("emulate", "causal", "--seq-len", "-5"), ("emulate", "causal", "--seq-len", "0"),
                                   ("emulate", "causal", "--seq-len", "1.5"), ("inspect", "x.py:x", "--q-len", "0"),
                                   ("inspect", "x.py:x", "--kv-len", "-1")], ids=" ".join)
def test_a_length_is_a_positive_number(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    assert stopped.value.code == 2
    assert f"argument {words[2]}: '{words[3]}': expected a positive number of positions" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("emulate", "causal", "--seq-len", "100000000000"), ("inspect", "causal", "--q-len", "1" * 12),
                                   ("inspect", "x.py:x", "--kv-len", str(2**28 + 1))], ids=" ".join)
def test_a_length_that_no_memory_holds_is_refused(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    assert stopped.value.code == 2
    assert f"argument {words[2]}: '{words[3]}': expected at most 268435456 positions" in capsys.readouterr().err


def test_a_length_beyond_the_reference_is_refused_before_the_kernel_runs(capsys, monkeypatch):
    monkeypatch.setattr(emulate, "_run", lambda *_: pytest.fail("the kernel ran"))
    assert main(["emulate", "causal", "--seq-len", "6000"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("flexfa4 emulate: --seq-len 6000: 2 heads of 6000 queries and 6000 keys") and error.count("\n") == 1


@pytest.mark.parametrize("path, said", [("absent/x.png", "No such file or directory"), ("", "is a folder"),
                                        ("x.txt", "Format 'txt' is not supported")])
def test_a_picture_that_cannot_be_written_is_said_before_the_kernel_runs(path, said, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(emulate, "_run", lambda *_: pytest.fail("the kernel ran"))
    assert main(["emulate", "causal", "--out", str(tmp_path / path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"flexfa4 emulate: --out {tmp_path}") and said in error and error.count("\n") == 1


def test_a_picture_that_cannot_be_written_after_all_is_one_line(tmp_path):
    """Such as on a disk that is full: the kernel has run."""
    with pytest.raises(TargetError, match="--out .*x.png: No space left"):
        with writing(tmp_path / "x.png"):
            raise OSError("No space left")


@pytest.mark.compile
@pytest.mark.emulate
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl")
@pytest.mark.parametrize("words", [("causal", "--arch", "sm90", "--seq-len", "200"), ("document_causal", "--seq-len", "131"),
                                   ("prefix_lm", "--seq-len", "1", "--completion", "late")], ids=lambda words: words[0])
def test_it_prints_error_tiles_and_timeline(words):
    done = emulated(*words)
    assert done.returncode == 0, done.stderr[-2000:]
    error = re.search(r"out (\S+) \(largest value (\S+)\), logarithm (\S+)", done.stdout)
    # The Blackwell kernel's exponentials are from a polynomial in part, with a relative error of 7.6e-5.
    assert float(error[1]) <= 2.0**-7 * float(error[2]) and float(error[3]) <= (1e-5 if "sm90" in words else 8e-5)
    assert "reports: none" in done.stdout and "full" in done.stdout and re.search(r"load .*#", done.stdout)


@pytest.mark.compile
@pytest.mark.emulate
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl")
def test_a_mod_of_a_file(file):
    """One of which plain Python reads past the end of a table where the result does not depend on it, and one where it does."""
    done = emulated(f"{file}:near", "--seq-len", "131")
    assert done.returncode == 0, done.stderr[-2000:]
    out, largest = re.search(r"out (\S+) \(largest value (\S+)\)", done.stdout).groups()
    assert float(out) <= 2.0**-7 * float(largest) and "reports: none" in done.stdout
    assert "in tiles of 128 x 128: no mask, all 4 are computed" in done.stdout and re.search(r"load .*#", done.stdout)
    done = emulated(f"{file}:past")
    assert done.returncode == 1 and f"{file}:10: past looks up TABLE" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.compile
@pytest.mark.emulate
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl")
def test_modelled_time():
    done = emulated("causal", "--timeline", "--seq-len", "600")
    assert done.returncode == 0, done.stderr[-2000:]
    clocks = int(re.search(r"modelled time of (\d+) clocks", done.stdout)[1])
    assert f"clocks 0 to {clocks}" in done.stdout and "reports: none" in done.stdout
    assert re.search(r"special +4 .*E", done.stdout) and re.search(r"exponentials \(E\): \d+ sections", done.stdout)
