"""The combine of split rows is launched while the parts may still be being written: it waits for them before it reads."""
import pytest
from own_process import printed

pytestmark = [pytest.mark.compile, pytest.mark.emulate]


@pytest.mark.parametrize("kernel", ["sm90", "sm100"])
def test_the_combine_waits_for_the_parts(kernel):
    found = printed("waits_emulated.py", kernel)
    waits = [kind for kind, message in found["strict"] if "griddepcontrol" in message]
    assert waits == []
    assert any(kind == "order" and "before griddepcontrol.wait" in message for kind, message in found["late"])
    assert [kind for kind, _ in found["never"]] == ["early"]
