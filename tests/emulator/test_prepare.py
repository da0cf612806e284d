"""What `emulator.prepare` tells the compiler of the process."""
import os
import sys
import tempfile

import pytest

from flexfa4 import emulator


@pytest.fixture
def environment(monkeypatch):
    """Variables of a process that has not imported the compiler."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("CUTE_DSL_")}
    monkeypatch.setattr(os, "environ", found)
    monkeypatch.delitem(sys.modules, "cutlass", raising=False)
    return found


def test_one_folder_of_dumps_and_quick_machine_code(environment, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for arch in ("sm_90a", "sm_100a"):
        emulator.prepare(arch)
        assert [str(path) for path in tmp_path.iterdir()] == [environment["CUTE_DSL_DUMP_DIR"]]
    assert environment["CUTE_DSL_COMPILER_OPT"] == "ptx-options=-O1" and environment["CUTE_DSL_ARCH"] == "sm_100a"


def test_what_the_user_asks_of_the_compiler_stays(environment, tmp_path):
    environment.update(CUTE_DSL_COMPILER_OPT="remarks{ptx}", CUTE_DSL_DUMP_DIR=str(tmp_path))
    emulator.prepare("sm_90a")
    assert (environment["CUTE_DSL_COMPILER_OPT"], environment["CUTE_DSL_DUMP_DIR"]) == ("remarks{ptx}", str(tmp_path))
