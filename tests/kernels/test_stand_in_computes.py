"""Calls of flex_attention in the emulator with a kernel of the same mod that stands in, and with their own: both compute
attention. `stand_in_emulated.py` makes the calls."""
import pytest
from own_process import printed

pytestmark = [pytest.mark.compile, pytest.mark.emulate]
# Of the largest value: P and the output are rounded to bfloat16; the LSE is not.
OUT, LSE = 2.0**-7, 2e-5


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_either_kernel_computes_attention(arch):
    found = printed("stand_in_emulated.py", arch)
    assert found.pop("findings") == []
    for name, (waited, begun) in {"masked": (["forward"], 4), "with hooks": (["combine", "forward"], 1)}.items():
        row = found[name]
        assert (row["waited"], row["waited_later"]) == (waited, []), row
        assert row["begun"] == row["used"] == begun, row
        assert all(out <= OUT and lse <= LSE for out, lse in row["errors"].values()), row["errors"]
