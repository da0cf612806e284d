"""Every program of `micro` in the emulator against values that do not come from it, under all completions; and through ptxas."""

import dataclasses
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from flexfa4.emulator import EmulatorError
from micro import ALL
from micro.program import emulate

ASYNCHRONOUS = ("cp.async", "wgmma", "tcgen05", "st.async", "clusterlaunchcontrol")


@pytest.mark.parametrize("name", sorted(ALL))
def test_program_computes_what_is_expected(name):
    program = ALL[name]
    program.check(emulate(program, completion="random", seed=1))
    if any(op in program.body for op in ASYNCHRONOUS):
        for completion, seed in (("immediate", 0), ("late", 2), ("random", 3)):
            program.check(emulate(program, completion=completion, seed=seed))
    program.check(emulate(program, completion="random", seed=4, races=True))


def test_a_tensor_store_before_the_start_is_refused():
    """An H200 ends such a kernel with "illegal instruction"; loads may start there (zeros are filled in)."""
    good = ALL["cp.async.bulk.tensor store 2d uint16 swizzle 128, inside"]
    bad = dataclasses.replace(good, body=good.body.replace("mov.b32 %r31, 2;", "mov.b32 %r31, -1;"))
    with pytest.raises(EmulatorError, match="starts at coordinate -1 of dimension 1"):
        emulate(bad)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
def test_every_program_is_valid_ptx(tmp_path):
    def assemble(item):
        number, program = item
        path = tmp_path / f"{number}.ptx"
        path.write_text(program.ptx)
        done = subprocess.run(["ptxas", f"-arch={program.arch}", str(path), "-o", "/dev/null"], capture_output=True, text=True)
        return f"{program.name}: {done.stderr[-600:]}" if done.returncode else ""

    with ThreadPoolExecutor(2) as pool:
        wrong = [x for x in pool.map(assemble, enumerate(ALL.values())) if x]
    assert not wrong, "\n".join(wrong[:20])
