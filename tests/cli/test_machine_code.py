"""`flexfa4 inspect --sass`: instructions a score, read from the kernels' machine code."""
import importlib.util
import shutil

import pytest

from flexfa4.cli import info, machine_code
from flexfa4.cli.main import main
from flexfa4.emit import sass


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


def code_of(text: str) -> tuple[list, dict]:
    """Instructions by name, labels with a colon, `BRA label`s, which may be taken or not."""
    instructions, labels = [], {}
    for word in text.split():
        if word.endswith(":"):
            labels[f".L_x_{word[:-1]}"] = len(instructions)
        else:
            opcode, _, target = word.partition(">")
            instructions.append(sass.Instruction(opcode, f"`(.L_x_{target})" if target else "", bool(target)))
    return instructions, labels


def test_a_tile_is_told_from_a_work_item():
    """Products of one query tile in each pass of a loop over both, in a loop over tiles, in one over items, which passes over
    either where nobody sees the tile: not the item's 13 instructions."""
    tiles = "1: USHF 2: USHF BRA>3 UTCHMMA UTCHMMA 3: BRA>2 BRA>1"
    code = code_of(f"0: LDS R2UR BRA>4 UTCHMMA UTCHMMA {tiles} 4: BRA>0 EXIT")
    path = sass.role_path(code, "UTCHMMA", 4)
    assert sass.count(path, "UTCHMMA") == 4 and sass.count(path, "LDS") == 0 and len(path) == 12


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
        raise FileNotFoundError("nvdisasm is not found: pip install nvidia-cuda-nvdisasm")

    monkeypatch.setattr(info, "_installed", lambda distribution: "1.0")
    monkeypatch.setattr(sass, "nvdisasm", missing)
    assert main(["inspect", "softcap", "--sass"]) == 1
    assert "pip install nvidia-cuda-nvdisasm" in capsys.readouterr().err
    for name in (info.CUTLASS, info.TVM_FFI):
        monkeypatch.setattr(info, "_installed", lambda distribution: None if distribution == name else "1.0")
        assert main(["inspect", "softcap", "--sass"]) == 1
        said = capsys.readouterr().err
        assert name in said and "flexfa4[cuda]" in said


def test_an_unknown_name_lists_the_gallery(capsys):
    assert main(["inspect", "soft", "--sass"]) == 1
    assert "softcap" in capsys.readouterr().err


def test_no_disassembler_is_found_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(sass.sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="nvidia-cuda-nvdisasm"):
        sass.nvdisasm()
