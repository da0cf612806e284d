"""`flexfa4 inspect --sass`: instructions a score, read from the kernels' machine code."""
import importlib.util
import shutil

import pytest

from flexfa4.cli import machine_code
from flexfa4.cli.main import main
from flexfa4.emit import sass

PLACE = "flexfa4.cli.machine_code"


def has_disassembler() -> bool:
    try:
        return bool(sass.nvdisasm())
    except FileNotFoundError:
        return False


needs_tools = pytest.mark.skipif(importlib.util.find_spec("cutlass") is None or not has_disassembler(),
                                 reason="needs nvidia-cutlass-dsl and nvdisasm")


def numbers(out: str, name: str) -> dict:
    """(kernel, tile) -> (MUFU, FMA, ALU, other, all)."""
    found = [line.split() for line in out.splitlines()]
    return {(w[0], w[2]): tuple(map(float, w[3:])) for w in found if len(w) == 8 and w[1] == name}


@needs_tools
@pytest.mark.compile
@pytest.mark.slow
def test_softcap_costs_a_tanh_a_score_and_a_mask_nothing_on_full_tiles(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["flexfa4"])
    assert main(["inspect", "softcap", "--sass"]) == 0
    out = capsys.readouterr().out
    plain, capped = numbers(out, "none"), numbers(out, "softcap")
    for kernel in ("sm_90a", "sm_100a"):
        assert 0.8 <= plain[kernel, "FULL"][0] <= 1.1 and 2.5 <= plain[kernel, "FULL"][4] <= 6
        assert 0.9 <= capped[kernel, "FULL"][0] - plain[kernel, "FULL"][0] <= 1.1
    for row in (*plain.values(), *capped.values()):
        assert sum(row[:4]) == pytest.approx(row[4], abs=0.03)
    causal = machine_code.rows(*machine_code.graphs_of("mods/causal.py:causal_mask", None), archs=("sm100",))
    full, partial = (float(row[7]) for row in causal)
    assert full <= plain["sm_100a", "FULL"][4] + 0.5 < partial


def test_what_is_missing_is_said(monkeypatch, capsys):
    def missing():
        raise FileNotFoundError("nvdisasm: pip install nvidia-cuda-nvdisasm")

    monkeypatch.setattr(f"{PLACE}.find_spec", lambda name: True)
    monkeypatch.setattr(sass, "nvdisasm", missing)
    assert main(["inspect", "softcap", "--sass"]) == 1
    assert "pip install nvidia-cuda-nvdisasm" in capsys.readouterr().err
    monkeypatch.setattr(f"{PLACE}.find_spec", lambda name: None)
    assert main(["inspect", "softcap", "--sass"]) == 1
    assert "flexfa4[cuda]" in capsys.readouterr().err


def test_an_unknown_name_lists_the_gallery(capsys):
    assert main(["inspect", "soft", "--sass"]) == 1
    assert "softcap" in capsys.readouterr().err


def test_no_disassembler_is_found_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(sass.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="nvidia-cuda-nvdisasm"):
        sass.nvdisasm()
