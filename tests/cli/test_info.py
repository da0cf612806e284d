"""`flexfa4 info` says what is there, and what is missing and why."""

import pytest
import torch

from flexfa4.cli import info
from flexfa4.cli.main import main


def by_name():
    return {line.what: line for line in info.lines()}


def test_every_line_has_a_reason(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for line in info.lines():
        assert line.reason and f"{'yes' if line.there else 'no '} {line.what}" in text
    assert by_name()["torch"].reason.startswith(torch.__version__)
    assert by_name()["tiled engine"].there


def test_missing_parts_say_what_to_do(monkeypatch):
    monkeypatch.setattr(info, "_installed", lambda distribution: None)
    monkeypatch.setattr(info.shutil, "which", lambda name: None)
    lines = by_name()
    assert not lines["CuTe DSL"].there and "pip install 'flexfa4[cuda]'" in lines["CuTe DSL"].reason
    assert not lines["compiling mods"].there and "flexfa4[cuda]" in lines["compiling mods"].reason
    assert not lines["C++ compiler"].there and "none of c++, g++, clang++" in lines["C++ compiler"].reason
    assert not lines["demo"].there and "missing: tqdm" in lines["demo"].reason


def test_the_compiler_is_useless_without_tvm_ffi(monkeypatch):
    monkeypatch.setattr(info, "_installed", lambda distribution: None if distribution == info.TVM_FFI else "1.0")
    lines = by_name()
    for what in ("CuTe DSL", "compiling mods", "emulator", "sm90 kernels"):
        assert not lines[what].there and lines[what].reason == "apache-tvm-ffi is missing: pip install 'flexfa4[cuda]'"


@pytest.mark.parametrize("capability, ready", [((9, 0), True), ((10, 0), False), ((8, 0), False)])
def test_kernels_want_their_device(monkeypatch, capability, ready):
    monkeypatch.setattr(info, "devices", lambda: [("a card", capability)])
    monkeypatch.setattr(info, "_installed", lambda distribution: "1.0")
    line = by_name()["sm90 kernels"]
    assert line.there is ready
    assert line.reason.startswith("forward") if ready else line.reason == "no device of compute capability 9.x"


def test_old_torch_is_named(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.4.1")
    line = by_name()["torch"]
    assert not line.there and line.reason.startswith("2.4.1") and line.reason.endswith("2.11 to 2.13 is tested")
