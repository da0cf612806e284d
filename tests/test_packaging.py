"""What pyproject.toml says about the package is what the tree holds, and the set-up's pins cover it."""
import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def setting(name: str):
    """The literal after `name = ` in pyproject.toml (Python 3.10 has no TOML reader)."""
    text = (ROOT / "pyproject.toml").read_text()
    return ast.literal_eval(re.search(rf'^"?{re.escape(name)}"? = (\[.*?\]$)', text, re.M | re.S)[1])


def test_packages_are_those_of_the_tree():
    tree = {"flexfa4.mods"} | {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "flexfa4").rglob("__init__.py")}
    assert set(setting("packages")) == tree


def test_every_module_lies_in_a_package():
    for path in (ROOT / "flexfa4").rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), f"{path} would not be installed"


def test_files_that_are_no_modules_are_package_data():
    globs = [("flexfa4/emulator", pattern) for pattern in setting("flexfa4.emulator")]
    packed = {path for folder, pattern in globs for path in (ROOT / folder).glob(pattern)}
    tracked = subprocess.run(["git", "ls-files", "flexfa4", "mods"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    assert {ROOT / name for name in tracked if not name.endswith(".py")} <= packed


def test_module_and_function_names_differ_in_the_gallery():
    """`flexfa4.mods.alibi` must stay the module: an exported function of the same name would hide it."""
    from flexfa4 import mods
    assert not {p.stem for p in (ROOT / "mods").glob("*.py")} & set(mods.__all__)


def test_pins_cover_what_the_extras_name():
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / ".ci" / "constraints.txt").read_text(), re.M)
    for extra in ("dependencies", "cuda", "draw", "demo", "models", "test"):
        for requirement in setting(extra):
            name = re.match(r"[\w.-]+", requirement)[0]
            assert name in pinned, f"{name} of {extra} is not pinned"


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_one_pin_for_each_python(version):
    """The markers of a package that is pinned by Python version neither overlap nor leave a version out."""
    holds = {"<": lambda a, b: a < b, ">=": lambda a, b: a >= b, "==": lambda a, b: a == b}
    minor = int(version.split(".")[1])
    seen, named = {}, set()
    for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines():
        if not (pin := re.fullmatch(r'([\w.-]+)==\S+?(?:; python_version (<|>=|==) "3\.(\d+)")?', line)):
            assert line.startswith("#"), line
            continue
        named.add(pin[1])
        if pin[2] is None or holds[pin[2]](minor, int(pin[3])):
            assert pin[1] not in seen, f"{pin[1]} is pinned twice for Python {version}"
            seen[pin[1]] = line
    backports = {"backports.strenum", "exceptiongroup", "six", "tomli"}
    assert named - set(seen) <= backports


def test_set_up_script_chooses_a_supported_python():
    found = subprocess.run(["sh", str(ROOT / ".ci" / "find_python")], capture_output=True, text=True)
    assert found.returncode == 0 and found.stdout.startswith("python3")
    none = subprocess.run(["sh", str(ROOT / ".ci" / "find_python"), "no-such-python"], capture_output=True, text=True)
    assert none.returncode == 1
    assert "flexfa4 needs Python 3.10, 3.11, 3.12 or 3.13, and found none as no-such-python" in none.stderr


def test_no_two_test_files_share_a_name():
    """Test folders are no packages, so pytest knows a file by its name alone."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py")]
    assert len(names) == len(set(names))
