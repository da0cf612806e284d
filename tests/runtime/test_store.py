"""Kernels on disk: another process loads them without the compiler; whatever happens to the folder costs only the cache."""
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flexfa4.runtime import store

SCRIPT = Path(__file__).with_name("stored_kernels.py")


@pytest.fixture
def start(tmp_path):
    """start(*words): a process of stored_kernels.py, with the folder tmp_path / "kernels" unless `cache` says another."""
    def run(*words, cache=tmp_path / "kernels"):
        environment = {**os.environ, "FLEXFA4_KERNEL_CACHE": str(cache)}
        return subprocess.Popen([sys.executable, str(SCRIPT), *words], env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)
    return run


def result(process) -> dict:
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1])


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("arch, grid", [("sm90", [2, 1, 1]), ("sm100", [2, 1, 1])])
def test_a_new_process_launches_without_the_compiler(start, arch, grid):
    first, second = (result(start("launch", arch)) for _ in range(2))
    assert (first["compiled"], first["loaded"], first["cutlass"], first["said"]) == (1, 0, True, [])
    assert (second["compiled"], second["loaded"], second["cutlass"], second["said"]) == (0, 1, False, [])
    assert first["grids"] == second["grids"] == [grid]


@pytest.mark.compile
@pytest.mark.emulate
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_what_was_exported_computes_attention_in_another_process(start, arch):
    """Where the compiler cannot be imported, with other lengths and numbers than those it was compiled for."""
    first, second = result(start("export", arch)), result(start("load", arch))
    assert first["launches"] == first["made"] == 1 and first["error"] < 1e-2 and first["cutlass"]
    assert second["launches"] == 1 and second["error"] < 2e-3 and not second["cutlass"]


@pytest.mark.compile
@pytest.mark.slow
def test_a_damaged_entry_is_made_again(start, tmp_path):
    assert result(start("combine"))["compiled"] == 1
    (entry,) = (tmp_path / "kernels").glob("*.so")
    whole = entry.read_bytes()
    middle = len(whole) // 2
    entry.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1:])
    found = result(start("combine"))
    assert (found["compiled"], found["loaded"]) == (1, 0)
    assert any("is damaged" in text and entry.name in text for text in found["said"])
    assert result(start("combine"))["loaded"] == 1


@pytest.mark.parametrize("content", [b"", b"x" * 1000, b"flexfa4\0" + bytes(32), bytes(100) + b"flexfa4\0" + bytes(32)])
def test_what_is_no_whole_entry_is_never_opened(monkeypatch, tmp_path, content):
    monkeypatch.setenv("FLEXFA4_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(store, "_open", lambda path: pytest.fail("opened"))
    (tmp_path / "key.so").write_bytes(content)
    with pytest.warns(UserWarning, match="key.so is damaged"):
        assert store.load("key") is None
    assert store.load("another key") is None


def test_a_whole_entry_that_does_not_load_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("FLEXFA4_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(store, "_open", lambda path: (_ for _ in ()).throw(OSError("another machine's")))
    content = b"no library"
    (tmp_path / "key.so").write_bytes(content + b"flexfa4\0" + hashlib.sha256(content).digest())
    with pytest.warns(UserWarning, match="cannot be loaded .OSError: another machine's"):
        assert store.load("key") is None


@pytest.mark.compile
@pytest.mark.slow
def test_processes_that_compile_at_once_leave_one_whole_entry(start, tmp_path):
    found = [result(process) for process in [start("combine") for _ in range(2)]]
    assert all(f["compiled"] + f["loaded"] == 1 and f["said"] == [] for f in found)
    assert [p.suffix for p in (tmp_path / "kernels").iterdir()] == [".so"]
    assert result(start("combine"))["loaded"] == 1


@pytest.mark.compile
@pytest.mark.slow
def test_two_processes_let_one_compile_what_they_do_not_wait_for(start, tmp_path):
    """Each waits for its first kernel at most, one starts a compiler, and both end with the kernels that it made."""
    found = [result(process) for process in [start("sizes") for _ in range(2)]]
    for f in found:
        assert f["arrived"] and f["compiled"] <= 1 and f["said"] == []
        first, stood_in, own, combine = f["threads"]
        assert first == stood_in > own or f["begun"] == 0
        assert (own, combine) == (256, 128)
    assert sum(f["begun"] for f in found) == 1
    assert [path.suffix for path in (tmp_path / "kernels").iterdir()] == [".so"] * 3


@pytest.mark.compile
@pytest.mark.slow
def test_a_folder_that_cannot_be_costs_only_the_cache(start, tmp_path):
    (tmp_path / "a file").write_text("")
    found = result(start("combine", cache=tmp_path / "a file" / "kernels"))
    assert found["compiled"] == 1 and any("not kept in" in text for text in found["said"])
    assert result(start("combine", cache="off"))["said"] == []


def test_the_folder_is_chosen_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FLEXFA4_KERNEL_CACHE", str(tmp_path))
    assert store.folder() == tmp_path
    for word in ("", "0", "off"):
        monkeypatch.setenv("FLEXFA4_KERNEL_CACHE", word)
        assert store.folder() is None and not store.usable()
    monkeypatch.delenv("FLEXFA4_KERNEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.folder() == tmp_path / "flexfa4" / "kernels"


def test_artifacts_that_are_asked_for_are_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("FLEXFA4_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setenv("CUTE_DSL_KEEP", "ptx")
    assert not store.usable()


def test_entries_unused_for_longest_go_first(tmp_path):
    for i in range(6):
        entry = tmp_path / f"{i}.so"
        entry.write_bytes(b"x" * 100)
        os.utime(entry, (1000 + i, 1000 + i))
    store.prune(tmp_path, most_bytes=600)
    assert len(list(tmp_path.iterdir())) == 6
    store.prune(tmp_path, most_bytes=500)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3.so", "4.so", "5.so"]


def test_what_killed_processes_left_goes_after_an_hour(tmp_path):
    old, new = tmp_path / "tmp-old", tmp_path / "tmp-new"
    old.mkdir()
    new.mkdir()
    os.utime(old, (time.time() - 4000,) * 2)
    store.prune(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["tmp-new"]


def test_the_runtime_library_is_the_newest_that_the_driver_supports(monkeypatch, tmp_path):
    for toolkit in ("cu12", "cu13"):
        library = tmp_path / toolkit / "lib" / "libcute_dsl_runtime.so"
        library.parent.mkdir(parents=True)
        library.write_bytes(b"")
    spec = type("Spec", (), {"origin": str(tmp_path / "dsl_packages" / "cutlass" / "__init__.py")})
    monkeypatch.setattr(store, "find_spec", lambda name: spec)
    monkeypatch.delenv("CUTE_DSL_LIBS", raising=False)
    chosen = store.runtime_library.__wrapped__
    for driver, toolkit in ((None, "cu13"), (13, "cu13"), (12, "cu12"), (14, "cu13")):
        monkeypatch.setattr(store, "_driver_version", lambda: driver)
        assert chosen().parts[-3] == toolkit
    monkeypatch.setattr(store, "_driver_version", lambda: 11)
    with pytest.raises(FileNotFoundError, match="CUDA 11"):
        chosen()
    monkeypatch.setenv("CUTE_DSL_LIBS", "/elsewhere/libcute_dsl_runtime.so")
    assert str(chosen()) == "/elsewhere/libcute_dsl_runtime.so"
