# ruff: noqa: F811 (a fixture that is imported is named again as an argument)
"""Calls whose kernel is not there run with another one of the same mod. Kernels note their launches and arrive by hand
(`by_hand`); processes that compile are real ones with another program, so that they end at once, and as a test wants."""
import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from by_hand import by_hand  # noqa: F401
from launched import launches  # noqa: F401
from test_recompiles import tensors

from flexfa4 import create_block_mask, flex_attention, wait_for_kernels
from flexfa4.plan import signature_from_json
from flexfa4.runtime import apart, capture, kernels, repeat, standin, store

TESTS = Path(__file__).resolve().parents[1]
LONG, FEW = (1, 8, 2, 1000, 700), (1, 8, 2, 1, 5000)


def masked(size):
    """A call with a mask: a function of no arguments."""
    mask = create_block_mask(lambda b, h, q, kv: kv > 3, None, None, *size[3:])
    qkv = tensors(*size)
    return lambda: flex_attention(*qkv, enable_gqa=True, block_mask=mask)


def plain(size, **given):
    qkv = tensors(*size)
    return lambda: flex_attention(*qkv, enable_gqa=True, **given)


def ran(launches) -> list:
    return [signature for kind, signature, _ in launches if kind == "forward"]


def as_repeated(call) -> bool:
    """Whether the call was a repeated one."""
    again, found = repeat.again, []
    repeat.again = lambda *a: found.append(again(*a)) or found[-1]
    try:
        call()
    finally:
        repeat.again = again
    return found[0] is not None


@pytest.mark.parametrize("sizes", [(LONG, FEW), (FEW, LONG)])
@pytest.mark.parametrize("made", [plain, masked])
def test_spans_and_work_are_those_of_the_kernel_that_runs(launches, by_hand, made, sizes):
    first, other = map(made, sizes)
    first(), other(), by_hand.arrive(), other()
    one, stood_in, own = ran(launches)
    assert one == stood_in and one.plan.q_tile != own.plan.q_tile
    short = one if sizes[0] == FEW else own
    assert short.plan.split and short.plan.pack == 4
    for signature, size, (_, _, given) in zip(ran(launches), (*sizes, sizes[1]), [x for x in launches if x[0] == "forward"]):
        spans, work, parts, _ = given[2]
        rows = -(-size[3] // signature.plan.q_tile)
        heads = 2 if signature.plan.pack > 1 else 8
        assert (spans is None) == (made is plain) and (parts is not None) == signature.plan.split
        if spans is not None:
            assert len(spans[0]) == rows + 1
        if work is not None:
            covered = {tuple(place[:3]) for place in work.tolist()}
            assert len(covered) == rows * heads and work[:, 4].max() * signature.plan.tiles.kv_tile >= size[4]
        if parts is not None:
            assert parts[0].shape[1] == signature.plan.tiles.rows and len(parts[0]) == max(work[:, 5].max() + 1, 1)
    assert "combine" in [kind for kind, *_ in launches]


def test_a_kernel_that_splits_stands_in_for_whole_rows(launches, by_hand):
    for made in (plain, masked):
        by_hand.begun.clear()
        made(FEW)()
        made(LONG)()
        few, long = ran(launches)[-2:]
        assert few == long and few.plan.split
        (_, _, given), = [x for x in launches if x[0] == "forward" and x[2][0][0].shape[2] == LONG[3]][-1:]
        assert set(given[2][1][:, 5].tolist()) == {-1} and len(given[2][2][0]) == 1
        assert launches[-1][0] == "forward"                  # nothing is combined
    assert [kind for kind, _ in by_hand.waited] == ["combine", "forward", "forward"]


def test_a_fixed_mask_takes_another_kernel_of_its_tiles_alone(launches, by_hand):
    """Buffers of other tiles would be written anew in all later replays."""
    split = 1, 1, 1, 300, 8000
    mask = create_block_mask(lambda b, h, q, kv: kv > 3, None, None, *split[3:])
    for given in (mask, mask.reserve()):
        flex_attention(*tensors(*split), block_mask=given)
    one, stood_in = ran(launches)
    assert one == stood_in and one.plan.split and len(by_hand.begun) == 1
    (_, _, given), = [x for x in launches if x[0] == "forward"][-1:]
    assert set(given[2][1][:, 5].tolist()) == {-1}
    waited = len(by_hand.waited)
    few = 1, 1, 1, 16, 8000
    fixed = create_block_mask(lambda b, h, q, kv: kv > 3, None, None, *few[3:]).reserve()
    flex_attention(*tensors(*few), block_mask=fixed)
    assert ran(launches)[-1].plan.tiles != one.plan.tiles and len(by_hand.waited) == waited + 1


def test_repeated_calls_take_the_kernel_when_it_is_there(launches, by_hand, monkeypatch):
    plain(LONG)()
    few = plain(FEW)
    few()
    assert as_repeated(few) and as_repeated(few)
    looked = []
    look = apart.Job.look
    monkeypatch.setattr(apart.Job, "look", lambda job: looked.append(0) or look(job))
    for _ in range(20):
        assert as_repeated(few)
    assert len(looked) <= 2                                  # one in 50 ms
    tall = ran(launches)[0]
    assert set(ran(launches)) == {tall}
    by_hand.arrive()
    launches.clear()
    assert not as_repeated(few)
    few()
    looked.clear()
    assert as_repeated(few) and as_repeated(few) and not looked
    assert set(ran(launches)) == by_hand.signatures() != {tall}


def test_gradients_are_recorded_with_either(launches, by_hand):
    plain(LONG)()
    qkv = tensors(*FEW)
    qkv[0].requires_grad_()

    def call():
        return flex_attention(*qkv, enable_gqa=True)

    assert call().requires_grad and as_repeated(call) and call().requires_grad
    by_hand.arrive()
    assert not as_repeated(call) and call().requires_grad and as_repeated(call)
    assert ran(launches)[0] == ran(launches)[3] != ran(launches)[4] == ran(launches)[-1]


@pytest.fixture
def deterministic():
    """Does what torch.use_deterministic_algorithms(True) does, whose import of the compiler takes seconds."""
    yield lambda: torch._C._set_deterministic_algorithms(True)
    torch._C._set_deterministic_algorithms(False)


@pytest.mark.parametrize("why", ["deterministic", "captured", "no store", "no Python", "no place"])
def test_where_calls_wait(launches, by_hand, deterministic, monkeypatch, tmp_path, why):
    plain(LONG)()
    few = plain(FEW)
    if why in ("deterministic", "captured"):                 # what runs with a stand-in does not go on with it
        few(), few()
        assert len(set(ran(launches))) == 1 and len(by_hand.begun) == 1
        monkeypatch.setattr(apart.Job, "wait", lambda job: by_hand.arrive() or True)
    if why == "deterministic":
        deterministic()
    elif why == "captured":
        monkeypatch.setattr(capture, "active", lambda device: True)
        monkeypatch.setattr(capture, "relaxed", lambda device: warnings.catch_warnings())
        monkeypatch.setattr(kernels, "stream_of", lambda device: None)
        monkeypatch.setattr(kernels, "counter_of", lambda device: torch.zeros(1, dtype=torch.int32))
    elif why == "no store":
        monkeypatch.setattr(store, "usable", lambda: False)
    elif why == "no Python":
        monkeypatch.setattr(sys, "executable", "")
        monkeypatch.setattr("multiprocessing.spawn._python_exe", None)
    elif why == "no place":
        (tmp_path / "a file").write_text("")
        monkeypatch.setenv("FLEXFA4_KERNEL_CACHE", str(tmp_path / "a file" / "kernels"))
    few()
    assert ran(launches)[-1].plan.split
    # What is being compiled is waited for, and not compiled twice.
    assert len(by_hand.waited) == (1 if why in ("deterministic", "captured") else 3)


def test_what_calls_wait_for_while_deterministic_is_not_begun_apart(launches, by_hand, deterministic):
    plain(LONG)()
    deterministic()
    plain(FEW)()
    assert len(by_hand.waited) == 3 and not by_hand.begun


def test_integers_of_32_bits_never_stand_in_for_64(launches, by_hand):
    def shifted(by):
        return plain(LONG, score_mod=lambda s, b, h, q, kv: s + (q * by - kv) % 7)

    shifted(3)(), shifted(1 << 40)()
    assert len(by_hand.waited) == 2 and not by_hand.begun
    narrow, wide = ran(launches)
    assert narrow.plan.assume != wide.plan.assume
    launches.clear(), repeat._known.clear(), kernels._found.pop(narrow), kernels._functions.clear()
    shifted(5)()
    assert ran(launches) == [wide] and len(by_hand.begun) == 1


def test_another_mod_or_type_does_not_stand_in(launches, by_hand):
    plain(LONG)(), plain(LONG, score_mod=lambda s, b, h, q, kv: s * 2)()
    flex_attention(*[t.half() for t in tensors(*LONG)], enable_gqa=True)
    flex_attention(*tensors(*LONG), enable_gqa=True, precise=True)
    assert len(by_hand.waited) == 4 and not by_hand.begun


def test_a_much_slower_kernel_is_not_worth_it(launches, by_hand, monkeypatch):
    plain(FEW)()
    monkeypatch.setattr(standin, "_FLOPS", 1e6)
    plain(LONG)()
    assert len(ran(launches)) == 2 and not by_hand.begun


def test_a_kernel_whose_entry_is_gone_is_waited_for(launches, by_hand, tmp_path):
    plain(LONG)()
    few = plain(FEW)
    few(), by_hand.arrive()
    for entry in tmp_path.glob("*.so"):
        entry.unlink()
    few(), few()
    assert len(by_hand.waited) == 3 and ran(launches)[-1].plan.split


def test_two_compilers_run_at_once_and_the_others_after_them(launches, by_hand):
    for size in (LONG, FEW, (1, 8, 8, 1, 5000), (1, 8, 1, 16, 64), (4, 8, 2, 2000, 2000)):
        plain(size)()
    jobs = list(apart._jobs.values())
    assert len(jobs) >= 3 and len(by_hand.begun) == 2
    by_hand.arrive()
    assert len(by_hand.begun) == len(jobs) == sum(job.state == "arrived" for job in jobs) and wait_for_kernels(0)


def test_what_runs_and_what_is_compiled_is_logged(launches, by_hand, caplog):
    standin._say.cache_clear()
    caplog.set_level(logging.INFO, "flexfa4")
    plain(LONG)(), plain(FEW)(), plain(FEW)()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "run with the sm90 kernel of 128 rows" in said or "run with the sm90 kernel of 192 rows" in said
    assert "until there is the sm90 kernel of 64 rows a work tile" in said and "places for 4 heads in each, rows split" in said
    by_hand.arrive()
    assert "compiled beside process" in caplog.records[-1].getMessage()


def test_a_signature_travels_as_text(launches, by_hand):
    for size in (LONG, FEW):
        masked(size)(), plain(size, score_mod=lambda s, b, h, q, kv: s * 2)()
    for signature in {signature for _, signature, _ in launches} | by_hand.signatures():
        copy = signature_from_json(signature.to_json())
        assert copy == signature and copy.compile_key() == signature.compile_key()


# Processes that do what a test says instead of compiling.

KEYS = "import json, os, pathlib, signal, sys, time; given = json.load(sys.stdin); " \
       "folder = pathlib.Path(os.environ['FLEXFA4_KERNEL_CACHE']); key = given['wanted'][0][1]; "


@pytest.fixture
def process(by_hand, monkeypatch):
    """process(program): compilers run that; it has `folder` and `key`. The rest is as `by_hand` has it."""
    def use(program):
        monkeypatch.setattr(apart, "_BOOT", KEYS + program)
        monkeypatch.setattr(apart.Job, "_launch", REAL_LAUNCH)
    return use


REAL_LAUNCH = apart.Job._launch


@pytest.mark.parametrize("program, reason", [
    ("raise ValueError('no such instruction')", "ValueError: no such instruction"),
    ("os.kill(os.getpid(), signal.SIGKILL)", "ended with -9"),
    ("sys.exit(3)", "ended with 3"),
])
def test_a_failure_is_said_once_and_the_stand_in_goes_on(launches, process, by_hand, program, reason):
    process(program)
    plain(LONG)()
    few = plain(FEW)
    with pytest.warns(UserWarning, match="goes on with another kernel.*" + reason) as said:
        few()
        assert not wait_for_kernels(20)
    (job,) = apart._jobs.values()
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few(), few(), plain(FEW)()
        assert not wait_for_kernels(0)
    assert as_repeated(few) and job.due == float("inf") and list(apart._jobs.values()) == [job]
    assert len(set(ran(launches))) == 1 and len(by_hand.waited) == 1


def test_a_failed_kernel_is_tried_again_by_another_process(launches, process, tmp_path):
    """The lock of a process that failed, or was killed, is free, and what it said is of another time."""
    process("raise ValueError('once')")
    with pytest.warns(UserWarning, match="once"):
        plain(LONG)(), plain(FEW)()
        wait_for_kernels(20)
    apart._jobs.clear()
    process("(folder / (key + '.so')).touch()")
    for table in (repeat._known, repeat._ready, repeat._hints, kernels._functions):
        table.clear()
    plain(FEW)()
    (job,) = apart._jobs.values()
    job.keys = job.keys[:1]                                  # the program makes one of the two
    assert wait_for_kernels(20) and job.state == "arrived"


class TestAnotherProcess:
    """Who holds the lock of an entry by another open file is another process to `apart`."""

    @pytest.fixture
    def job(self, launches, by_hand, tmp_path, monkeypatch):
        plain(LONG)()
        holds = []
        begin = apart.begin

        def meanwhile(wanted, about):
            holds.append(open(tmp_path / (wanted[0].entry + store.LOCK), "a"))
            fcntl.flock(holds[0], fcntl.LOCK_EX)
            return begin(wanted, about)

        monkeypatch.setattr(apart, "begin", meanwhile)
        plain(FEW)()
        (found,) = apart._jobs.values()
        assert found.state == "elsewhere" and not by_hand.begun and len(set(ran(launches))) == 1
        found.lock = holds[0]
        yield found
        holds[0].close()

    def test_its_kernel_arrives_here(self, job, launches, tmp_path):
        assert not job.wait(0.05)
        for key in job.keys:
            (tmp_path / f"{key}.so").touch()
        assert job.wait(1)

    def test_its_failure_is_said_here(self, job, by_hand):
        job.lock.write("Traceback ...\nRuntimeError: out of registers\n")
        job.lock.close()
        with pytest.warns(UserWarning, match="RuntimeError: out of registers"):
            assert not job.wait(1)
        assert job.state == "failed" and not by_hand.begun

    def test_what_it_did_not_finish_is_compiled_here(self, job, by_hand):
        job.lock.close()
        assert not job.look() and by_hand.begun == [job]


def test_no_process_is_left_behind(launches, process):
    process("time.sleep(0.05)")
    with pytest.warns(UserWarning, match="ended with 0"):
        plain(LONG)(), plain(FEW)()
        (job,) = apart._jobs.values()
        pid = job._process.pid
        job.wait(20)
    until = time.monotonic() + 5
    while time.monotonic() < until and os.path.exists(f"/proc/{pid}"):
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")


def test_a_compiler_that_never_ends_is_ended(launches, process, monkeypatch):
    process("time.sleep(60)")
    plain(LONG)(), plain(FEW)()
    monkeypatch.setattr(apart, "_MOST_S", 0.0)
    with pytest.warns(UserWarning, match=f"ended with -{int(signal.SIGKILL)}"):
        assert not wait_for_kernels(20)


def test_a_forked_process_looks_for_what_its_parent_compiles(launches, process):
    process("time.sleep(0.3); [(folder / (kernel[1] + '.so')).touch() for kernel in given['wanted']]")
    plain(LONG)(), plain(FEW)()
    (job,) = apart._jobs.values()
    child = os.fork()
    if child == 0:
        right = job.state == "elsewhere" and job._process is None and job.wait(20)
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and job.wait(20)


def test_a_process_ends_while_its_compiler_goes_on(tmp_path):
    """And what that makes is there afterwards; neither waits for the other."""
    script = f"""
import sys, types; sys.path[:0] = [{str(TESTS)!r}]
import conftest
from flexfa4.runtime import apart
apart._BOOT = {KEYS!r} + "time.sleep(4); (folder / (key + '.so')).touch()"
text = types.SimpleNamespace(to_json=lambda: "")
job = apart.begin([types.SimpleNamespace(entry="key", kind="forward", signature=text)], "a kernel")
print(job.state, job._process.pid)
"""
    environment = os.environ | dict(FLEXFA4_KERNEL_CACHE=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("running") and done.stderr == ""
    entry, until = tmp_path / "key.so", time.monotonic() + 20
    assert not entry.exists()
    while not entry.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert entry.exists()
