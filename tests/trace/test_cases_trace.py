"""Every case traces and means what calling it means, or is refused with the words the case asks for."""
import importlib.util
import io
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from at_positions import assert_same_as_called

from flexfa4.errors import TraceError
from flexfa4.trace import bind, trace

FILES = sorted((Path(__file__).resolve().parents[1] / "cases").glob("case*.py"))
# Refused by the call, not by the trace: a table too short for the call's lengths.
AT_THE_CALL = {"case67_error_mod_on_wrong_length"}


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mods_of(case):
    return [(kind, case[f"{kind}_mod"]) for kind in ("score", "mask") if case[f"{kind}_mod"] is not None]


VALUES = [p for p in FILES if load(p).EXPECT["kind"] != "error"]
ERRORS = [p for p in FILES if load(p).EXPECT["kind"] == "error" and p.stem not in AT_THE_CALL]


def test_the_cases_are_there():
    assert len(FILES) >= 46 and len(ERRORS) >= 8


@pytest.mark.parametrize("path", VALUES, ids=lambda p: p.stem)
def test_traced_equals_called(path):
    module = load(path)
    for case in module.variants("cpu") if hasattr(module, "variants") else [module.make("cpu")]:
        q, kv = case["q_shape"], case["kv_shape"]
        for kind, mod in mods_of(case):
            shape = (q[0], q[1], q[2], kv[2])
            if "ref_score_mod" in case and kind == "score":
                shape = (q[0], q[1], q[2], case["requires_grad_captured"][0].shape[0])       # where the table can be read
            with redirect_stdout(io.StringIO()):
                assert_same_as_called(mod, kind, shape, tolerance=2e-3 if case["dtype"].itemsize == 2 else 2e-5)


@pytest.mark.parametrize("path", ERRORS, ids=lambda p: p.stem)
def test_refused_with_the_words_asked_for(path):
    module = load(path)
    case = module.make("cpu")
    with pytest.raises(TraceError) as caught:
        for kind, mod in mods_of(case):
            trace(mod, kind)
    message = str(caught.value)
    assert any(word.lower() in message.lower() for word in module.EXPECT["message_has_any"]), message
    assert str(path) in message and "Write instead:" in message
    if "message_states" in module.EXPECT:
        assert "mask_mod(b, h, q_idx, kv_idx)" in message


@pytest.mark.parametrize("stem", [p.stem for p in VALUES if hasattr(load(p), "variants")])
def test_new_values_are_no_new_graph(stem):
    module = load(next(p for p in FILES if p.stem == stem))
    graphs = {kind: {trace(mod, kind).graph for case in module.variants("cpu") for k, mod in mods_of(case) if k == kind}
              for kind in ("score", "mask")}
    limit = module.EXPECT.get("max_compiles_for_variants", module.EXPECT.get("max_compiles_for_new_values", 1))
    assert all(len(g) <= limit for g in graphs.values())


@pytest.mark.parametrize("stem", ["case43_state_changes_between_calls", "case64_item_on_captured_number"])
def test_changed_state_is_seen_by_bind(stem):
    case = load(next(p for p in FILES if p.stem == stem)).make("cpu")
    before = bind(case["mask_mod"], "mask")
    assert bind(case["mask_mod"], "mask") is before
    case["mutate"]()
    after = bind(case["mask_mod"], "mask")
    assert after.literals != before.literals or after.graph != before.graph
