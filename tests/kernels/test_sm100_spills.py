"""Registers of the Blackwell forward suffice, also for long edits and the widest head dims."""

import pytest
from own_process import printed

pytestmark = pytest.mark.compile
# Head dim, dtype and graphs of what spilled 16 to 920 bytes with the registers of other plans or with a look-up for each score,
# and the bytes that are left: a word that every role keeps there from the start and reads once in a while.
KERNELS = [("64", "f16", "relative_bias_2d", 0), ("64", "bf16", "causal alibi gated", 8), ("192", "bf16", "causal", 0),
           ("256", "bf16", "causal", 8), ("128", "bf16", "causal of_two_lines", 0),
           ("128", "f16", "of_two_masked_lines", 0)]  # fmt: skip


def test_spilled_bytes():
    words = [":".join(kernel[:3]) for kernel in KERNELS]
    found = printed("spilled_bytes.py", *words)
    assert all(got <= most for got, (*_, most) in zip(found, KERNELS)), dict(zip(words, found))
