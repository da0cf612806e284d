"""What benchmarks/forward.py measures, and what it takes from an earlier run. No GPU: nothing is timed."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import forward  # noqa: E402
from forward_rivals import MODS, RIVALS, Unsupported  # noqa: E402


def result(name: str, **ms) -> dict:
    rows = {rival: {"ms": x, "tflops": 1 / x, "host_us": 1.0, "first_s": 1.0, "memory_mib": 1.0, "mask_ms": None}
            for rival, x in ms.items()}
    return {"case": {"name": name}, "rivals": rows, "machine": "a GPU"}


def test_every_rival_is_listed_and_runs_by_default(monkeypatch, capsys):
    assert list(RIVALS)[0] == "flexfa4" and {"fa4", "cudnn", "triton", "flash"} <= set(RIVALS)
    monkeypatch.setattr(sys, "argv", ["forward.py"])
    monkeypatch.setattr(forward.torch.cuda, "is_available", lambda: False)
    forward.main()
    assert "nothing measured" in capsys.readouterr().out


@pytest.mark.parametrize("mod", MODS)
def test_every_mod_has_a_case(mod):
    (case, *_) = [c for c in forward.cases() if c.mod == mod]
    if mod not in ("plain", "causal"):
        with pytest.raises(Unsupported):
            RIVALS["cudnn"](case, None, None, None)


def test_a_case_that_lacks_a_rival_is_measured_again_with_all():
    """A ratio is of one run."""
    known = result("causal", flexfa4=1.0, fa4=1.1)
    assert forward.rivals_of(None, ["flexfa4", "triton"]) == ["flexfa4", "triton"]
    assert forward.rivals_of(known, ["flexfa4", "fa4"]) == []
    assert forward.rivals_of(known, ["triton"]) == ["flexfa4", "fa4", "triton"]


def test_a_table_has_the_rivals_of_every_row():
    results = [result("causal", flexfa4=1.0, fa4=1.1), result("window", flexfa4=2.0, triton=5.0, flash=4.0)]
    rivals = forward.columns(results, ["flexfa4"])
    assert rivals == ["flexfa4", "fa4", "triton", "flash"]
    head, _, causal, window = forward.report(results, rivals).splitlines()[2:6]
    assert "triton ms" in head and causal.endswith("| 1.100 |") and window.endswith("| 2.000 |")


def test_of_a_case_in_two_shards_the_more_complete_stays():
    one, other = (case.name for case in forward.cases()[:2])
    whole, part, last = result(one, flexfa4=1.0, fa4=1.1), result(one, flexfa4=2.0), result(other, flexfa4=3.0)
    again = result(one, flexfa4=4.0, fa4=1.0)
    part["rivals"]["fa4"] = {"unsupported": "no native form"}
    assert forward.merged([last, part, whole]) == forward.merged([whole, last, part]) == [whole, last]
    assert forward.merged([whole, again]) == [again]
