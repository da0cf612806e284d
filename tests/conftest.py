"""Makes `flexfa4` and `flexfa4.mods` importable from a plain checkout, and keeps torch on few threads."""
import importlib
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


def _importable_from_checkout() -> None:
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    if importlib.util.find_spec("flexfa4.mods") is None and (ROOT / "mods" / "__init__.py").exists():
        spec = importlib.util.spec_from_file_location(
            "flexfa4.mods", ROOT / "mods" / "__init__.py", submodule_search_locations=[str(ROOT / "mods")])
        module = importlib.util.module_from_spec(spec)
        sys.modules["flexfa4.mods"] = module
        spec.loader.exec_module(module)


_importable_from_checkout()
torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(autouse=True)
def own_kernels(request, monkeypatch):
    """Tests on a GPU compare calls bit for bit: each waits for its own kernel. How others stand in has its own tests."""
    if request.node.get_closest_marker("gpu") is not None:
        monkeypatch.setattr(importlib.import_module("flexfa4.runtime.apart"), "possible", lambda: False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """What this machine cannot run is skipped by name: GPU tests without a GPU, kernels without their compiler, the emulator's
    tests without one for C++. Long tests come first, so that no worker is left with one when the others are done; and not after
    short ones, as a worker that is quick with those gets many that follow (`make test`)."""
    marks = {item: {mark.name for mark in item.iter_markers()} for item in items}
    items.sort(key=lambda item: [mark not in marks[item] for mark in ("emulate", "slow", "compile")])
    lacking = {}
    if not torch.cuda.is_available():
        lacking["gpu"] = pytest.mark.skip(reason="no CUDA device")
    if importlib.util.find_spec("cutlass") is None:
        lacking["compile"] = pytest.mark.skip(reason="nvidia-cutlass-dsl is not installed")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        for item in items:
            if item.path.parent == ROOT / "tests" / "emulator":
                item.add_marker(pytest.mark.skip(reason="needs a C++ compiler"))
    for item in items:
        for marker in lacking.keys() & marks[item]:
            item.add_marker(lacking[marker])
