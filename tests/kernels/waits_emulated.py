"""Whether the combine waits for the parts of split rows, which it may be launched before (programmatic dependent launch); run by
test_combine_waits.py.

Arguments: those of forward_emulated.py, of which the first is taken. Prints one JSON object of findings: "strict", of the combine
by the strict rules; "late", the same where it waits at its end; "never", of a launch whose combine was compiled without."""
import json

import forward_emulated as emulated
from forward_emulated import Case

from flexfa4 import emulator
from flexfa4.emulator import driver
from flexfa4.kernels import combine

CASE = Case("split", (1, 1000), (1, 1), (64, 64), split_over=4, runs=1)
WAIT = "griddepcontrol.wait;"


def launched() -> list:
    """Records of the parts' and the combine's launch, and the findings of both."""
    tensors = emulated.inputs(CASE)
    plan = emulated.engine.choose(emulated.KERNEL, *tensors, CASE.dims[0]**-0.5, [None] * 3, False).plan
    lists = emulated.lists_of(CASE, plan, *tensors[:2])
    with emulator.device(emulated.ARCH, races=True) as dev:
        dev.recorded = []
        crew = emulated.kernels.Crew(emulated.kernels.work_items(plan, *tensors[:2], lists), None, dev.tensor)
        emulated.kernels.forward(plan, tensors, CASE.dims[0]**-0.5, [None] * 3, lists, crew)
    return [dev.recorded, dev.findings]


def strict(record, ptx: str) -> list:
    return driver.run_recorded(record, ptx, races="strict")[0].findings


(_, record), findings = launched()
assert findings == [] and record.ptx.count(WAIT) == 1
before, end, after = record.ptx.replace(WAIT, "").rpartition("ret;")
found = {"strict": strict(record, record.ptx), "late": strict(record, before + WAIT + end + after)}
combine.cute.arch.griddepcontrol_wait = lambda: None
emulated.kernels._found.clear()
emulated.kernels._functions.clear()
found["never"] = launched()[1]
print("\n" + json.dumps(found))
